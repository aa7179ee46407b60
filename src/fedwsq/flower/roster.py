"""Which nodes are there, and which clients live on them.

Nodes come and go, under ids that Flower draws. A node that is new is sent a hello with the server's
settings, and says who lives there; one that works by other settings says in what they differ and
is left out.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from flwr.app import Message, MessageType
from flwr.serverapp import Grid
from torch import Tensor

from fedwsq.core.errors import MessageError, RunError
from fedwsq.core.types import Key
from fedwsq.federation.charter import Charter
from fedwsq.federation.hello import Introduction, encode_hello, read_introduction
from fedwsq.flower.envelope import read_response, write_request
from fedwsq.flower.plain import Malformed, Request, Response
from fedwsq.flower.settings import write_format
from fedwsq.transports import Reply
from fedwsq.transports.blame import printable
from fedwsq.wire.message import EVERYONE

POLL_SECONDS = 0.1
HELLO_SECONDS = 90.0  # a node may have to import torch and read its data first
PATIENCE_SECONDS = 600.0  # without a single client
NO_RUN = bytes(16)  # nodes introduce themselves to a server, whatever it runs


@dataclass
class Known:
    """A node that was asked: its clients, or why it takes no part."""

    clients: dict[int, Introduction] = field(default_factory=dict)
    refused: str = ""


class Asked(NamedTuple):
    """A hello on its way."""

    node: int
    since: float


class Roster:
    """Asks new nodes who they are; `note` is told of those that come and are refused."""

    def __init__(self, grid: Grid, charter: Charter, note: Callable[[str], None]) -> None:
        self.grid = grid
        self.charter = charter
        self.note = note
        self.format = write_format(charter.model.format)
        self._known: dict[int, Known] = {}
        self._online: list[int] = []
        self._asked: dict[str, Asked] = {}
        self._enough = charter.plan.clients_per_round  # before the first round

    def present(self) -> list[int]:
        """The clients that are there, in ascending order, once every node has introduced itself.

        Before the first round as many as it asks for are waited for, later any will do.
        """
        began = time.monotonic()
        self._ask([node for node in self._known if self._known[node].refused])
        while True:
            self.refresh()
            here = sorted(self._homes())
            waited = time.monotonic() - began
            if len(here) >= self._enough and not self._unknown():
                break
            if here and waited > HELLO_SECONDS:
                self.note(f"{len(here)} clients are there, {self._enough} were hoped for")
                break
            if waited > PATIENCE_SECONDS:
                raise RunError(
                    f"no client was there for {PATIENCE_SECONDS:.0f} s; start nodes, and run it "
                    "again with the same folder to go on"
                )
            time.sleep(POLL_SECONDS)
        self._enough = 1
        return here

    def refresh(self) -> None:
        """See which nodes are online, greet new ones, and hear who answered."""
        self._online = sorted(self.grid.get_node_ids())
        self._ask([node for node in self._online if node not in self._known])
        if not self._asked:
            return
        for message in self.grid.pull_messages(list(self._asked)):
            asked = self._asked.pop(message.metadata.reply_to_message_id, None)
            if asked is not None:
                self._meet(asked.node, message)

    def node_of(self, client: int) -> int | None:
        """The node that a client lives on, if that is there."""
        return self._homes().get(client)

    def examples(self, client: int) -> int | None:
        found = self._introductions().get(client)
        return None if found is None else found.examples

    def label_counts(self) -> Tensor | None:
        """Of every client that has introduced itself, [clients, classes]."""
        found = self._introductions()
        rows = [found[client].labels for client in sorted(found)]
        if not rows or not all(len(row) == self.charter.model.format.classes for row in rows):
            return None
        return torch.tensor([list(row) for row in rows])

    def _homes(self) -> dict[int, int]:
        """Client -> the node it lives on; of two nodes that claim one, the first to come."""
        homes: dict[int, int] = {}
        for node, known in self._known.items():
            if node in self._online:
                for client in known.clients:
                    homes.setdefault(client, node)
        return homes

    def _introductions(self) -> dict[int, Introduction]:
        found: dict[int, Introduction] = {}
        for known in self._known.values():
            found = known.clients | found
        return found

    def _unknown(self) -> list[int]:
        """Nodes that have been asked and may still answer for the first time."""
        late = time.monotonic() - HELLO_SECONDS
        return [
            asked.node
            for asked in self._asked.values()
            if asked.node not in self._known and asked.since > late
        ]

    def _ask(self, nodes: Sequence[int]) -> None:
        waiting = {asked.node for asked in self._asked.values()}
        for node in nodes:
            if node in waiting:
                continue
            head = encode_hello(self.charter, EVERYONE, NO_RUN)
            content = write_request(Request([b""], [head], [0], self.format))
            message = Message(content, node, MessageType.QUERY, ttl=PATIENCE_SECONDS)
            (number,) = self.grid.push_messages([message])
            self._asked[number] = Asked(node, time.monotonic())

    def _meet(self, node: int, message: Message) -> None:
        """Take a node in, or note why not."""
        before = self._known.get(node, Known())
        known = self._read(message)
        self._known[node] = known
        if known.refused and known.refused != before.refused:
            self.note(f"node {node} is refused: {printable(known.refused)}")
        elif known.clients:
            names = ", ".join(map(str, known.clients))
            self.note(f"node {node} is there, with client {names}")

    def _read(self, message: Message) -> Known:
        if message.has_error():
            return Known(refused=message.error.reason or f"error {message.error.code}")
        try:
            return Known(self._introduced(read_response(message.content)))
        except (Malformed, MessageError) as error:
            return Known(refused=str(error))

    def _introduced(self, response: Response) -> dict[int, Introduction]:
        """The clients of a node; one that is refused means all of them."""
        for reason in filter(None, response.reasons):
            raise MessageError(reason)
        if len(response.clients) != len(response.payloads):
            raise Malformed(
                f"{len(response.clients)} clients and {len(response.payloads)} introductions"
            )
        plan = self.charter.plan
        found: dict[int, Introduction] = {}
        for client, payload in zip(response.clients, response.payloads, strict=True):
            if not 0 <= client < plan.data.clients:
                raise MessageError(f"client {client} is not one of {plan.data.clients}")
            reply = Reply(Key(plan.seed, 0, client), payload)
            found[client] = read_introduction(self.charter, reply, NO_RUN)
        return found
