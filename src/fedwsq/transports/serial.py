"""All clients one after the other, in this process."""

from collections.abc import Iterator, Sequence

from fedwsq.transports.base import Answer, Order, Serve, attempt, of_this_machine
from fedwsq.transports.deadlines import NOT_BEGUN, in_time, is_over, too_late


class Serial:
    """The example of `base`, as it is used.

    Nothing can end a client that is at work in this process: it is waited for, and found to be
    late.
    """

    def __init__(self, serve: Serve) -> None:
        self.serve = serve

    def dispatch(
        self, body: bytes, orders: Sequence[Order], deadline: float | None = None
    ) -> Iterator[Answer]:
        for order in orders:
            if is_over(deadline):
                yield too_late(order.key, NOT_BEGUN)
            else:
                answer = of_this_machine(attempt(self.serve, body, order))
                yield in_time(answer, deadline)

    def close(self) -> None:
        """Nothing to let go of."""
