"""A transport around a transport: keeps every message that passes."""

from collections.abc import Container, Iterator, Sequence
from pathlib import Path

from fedwsq.core.files import without_links
from fedwsq.transports.base import Answer, Order, Reply, Transport
from fedwsq.wire import Kind, kind_of


class Recorder:
    """Files for `fedwsq inspect` and `analyze`: broadcasts, orders and replies by round and client.

    Of these `rounds` only; of all where none are named.
    """

    def __init__(self, inner: Transport, folder: Path, rounds: Container[int] = ()) -> None:
        self.inner = inner
        self.folder = folder
        self.rounds = rounds
        folder.mkdir(exist_ok=True)

    def dispatch(
        self, body: bytes, orders: Sequence[Order], deadline: float | None = None
    ) -> Iterator[Answer]:
        if not orders:
            return
        if self.rounds and orders[0].key.round not in self.rounds:
            yield from self.inner.dispatch(body, orders, deadline)
            return
        # Clients are also asked to evaluate: those files say so, a round's own do not.
        kind = kind_of(orders[0].head)
        of_round = f"round-{orders[0].key.round}"
        if kind is not Kind.ORDER:
            of_round += f"-{kind.name.lower()}"
        self._keep(f"{of_round}-broadcast", body)
        for order in orders:
            self._keep(f"{of_round}-client-{order.key.client}-order", order.head)
            if order.body:
                self._keep(f"{of_round}-whole", order.body)
        for answer in self.inner.dispatch(body, orders, deadline):
            if isinstance(answer, Reply):
                self._keep(f"{of_round}-client-{answer.key.client}", answer.payload)
            yield answer

    def close(self) -> None:
        self.inner.close()

    def _keep(self, name: str, data: bytes) -> None:
        with open(self.folder / f"{name}.fwsq", "wb", opener=without_links) as file:
            file.write(data)
