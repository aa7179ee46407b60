"""Asking clients, and once more those whose work was lost on the way."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fedwsq.core.types import Key
from fedwsq.transports import Answer, Failure, Order, Transport, is_over


@dataclass
class Asking:
    """Iterate over it for the answers to some orders.

    Work is lost with a worker that died or was stuck, which is no fault of the client: asked again,
    it gives the answer that it would have given.
    """

    transport: Transport
    body: bytes
    orders: Sequence[Order]
    deadline: float | None
    again: dict[int, str] = field(default_factory=dict)  # who was asked again -> why

    def __iter__(self) -> Iterator[Answer]:
        orders = {order.key: order for order in self.orders}
        lost: dict[Key, Failure] = {}
        for answer in self.transport.dispatch(self.body, self.orders, self.deadline):
            if isinstance(answer, Failure) and answer.lost and answer.key in orders:
                lost[answer.key] = answer
            else:
                yield answer
        if is_over(self.deadline):
            yield from lost.values()
        elif lost:
            self.again = {key.client: failure.reason for key, failure in lost.items()}
            again = [orders[key] for key in lost]
            yield from self.transport.dispatch(self.body, again, self.deadline)
