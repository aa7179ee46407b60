"""All clients one after the other, in this process."""

from collections.abc import Iterator, Sequence

from fedwsq.transports.base import Answer, Order, Serve, attempt


class Serial:
    """The example of `base`, as it is used."""

    def __init__(self, serve: Serve) -> None:
        self.serve = serve

    def dispatch(self, body: bytes, orders: Sequence[Order]) -> Iterator[Answer]:
        for order in orders:
            yield attempt(self.serve, body, order)

    def close(self) -> None:
        """Nothing to let go of."""
