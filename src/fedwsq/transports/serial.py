"""All clients one after the other, in this process."""

from collections.abc import Iterator, Sequence

from fedwsq.core.threads import one_thread
from fedwsq.transports.base import Answer, Order, Serve, attempt


class Serial:
    """One thread, as a worker of a pool has: sums depend on the number of threads."""

    def __init__(self, serve: Serve) -> None:
        self.serve = serve

    def dispatch(self, body: bytes, orders: Sequence[Order]) -> Iterator[Answer]:
        for order in orders:
            with one_thread():
                answer = attempt(self.serve, body, order)
            yield answer

    def close(self) -> None:
        """Nothing to let go of."""
