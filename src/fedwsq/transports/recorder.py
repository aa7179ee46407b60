"""A transport around a transport: keeps every message that passes."""

import json
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

from fedwsq.core.files import without_links
from fedwsq.transports.base import Answer, Order, Reply, Transport
from fedwsq.wire import Kind, decode, kind_of


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
        of_round = f"round-{orders[0].key.round}{_what_for(orders[0].head)}"
        if body:
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


def _what_for(head: bytes) -> str:
    """Clients are also asked to evaluate, or phase by phase: those files say so, a round's own do
    not.
    """
    kind = kind_of(head)
    if kind is Kind.ORDER:
        return ""
    if kind is not Kind.PHASE:
        return f"-{kind.name.lower()}"
    asked = json.loads(decode(head, None).text)
    # Some phases come once for each ballot.
    ballot = f"-{asked['ballot']}" if "ballot" in asked else ""
    return f"-{asked['phase']}{ballot}"
