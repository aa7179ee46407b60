"""Which nodes are there, and which clients live on them.

Nodes come and go, under ids that Flower draws. A node that is new is sent a hello with the server's
settings, and says who lives there; one that works by other settings says in what they differ and
is left out.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from flwr.app import Message, MessageType
from flwr.serverapp import Grid
from torch import Tensor

from fedwsq.core.errors import MessageError, RunError
from fedwsq.core.text import printable
from fedwsq.core.types import Channel, Key
from fedwsq.federation.charter import Charter
from fedwsq.federation.hello import Introduction, encode_hello, read_introduction
from fedwsq.flower.envelope import read_response, write_request
from fedwsq.flower.mailbox import POLL_SECONDS, Letter, Mailbox
from fedwsq.flower.plain import Malformed, Request, Response
from fedwsq.flower.settings import write_format
from fedwsq.flower.speed import Exchange, Speed
from fedwsq.transports import Order, Reply
from fedwsq.wire import Kind, kind_of
from fedwsq.wire.channels import Measured
from fedwsq.wire.message import EVERYONE

HELLO_SECONDS = 90.0  # without news: no node came, and none that was greeted has answered
PATIENCE_SECONDS = 600.0  # without a single client, or for a node that was greeted at the start
NO_RUN = bytes(16)  # nodes introduce themselves to a server, whatever it runs


@dataclass
class Known:
    """A node that was asked: its clients, or why it takes no part."""

    clients: dict[int, Introduction] = field(default_factory=dict)
    refused: str = ""


class Sent(NamedTuple):
    """A message on its way to a node."""

    node: int
    pushed: float  # seconds since 1970
    bytes: int
    orders: Sequence[Order] = ()  # none: a hello

    @property
    def keys(self) -> list[Key]:
        return [order.key for order in self.orders]


class Heard(NamedTuple):
    """What a node answered to orders; None and a reason if that is of no use."""

    number: str  # of the message that it answers
    sent: Sent
    response: Response | None
    reason: str = ""
    lost: bool = False  # asked again, it might answer


class Roster:
    """Asks new nodes who they are; `note` is told of those that come and are refused."""

    def __init__(
        self,
        grid: Grid,
        charter: Charter,
        note: Callable[[str], None],
        class_names: Sequence[str] = (),
    ) -> None:
        self.grid = grid
        self.charter = charter
        self.note = note
        self.format = write_format(charter.model.format, class_names)
        self._known: dict[int, Known] = {}
        self._online: list[int] = []
        self._sent: dict[str, Sent] = {}  # what nobody has answered yet
        self._answered: dict[str, Sent] = {}  # since the round began
        self._unread: list[Heard] = []  # came between two rounds
        self._mail = Mailbox(grid)
        self._speeds: dict[int, Speed] = {}
        self._enough = charter.plan.clients_per_round  # before the first round
        self._news = time.monotonic()  # when a node last came, or introduced itself

    def present(self) -> list[int]:
        """The clients that are there, in ascending order, once every node has introduced itself.

        Before the first round as many as it asks for are waited for, later any will do.
        """
        began = time.monotonic()
        self._ask([node for node in self._known if self._known[node].refused])
        wait = 0.0
        while True:
            self.refresh()
            self._unread += self._heard(wait)  # too late for their round
            wait = POLL_SECONDS
            here = sorted(self._homes())
            if len(here) >= self._enough and not self._unknown(HELLO_SECONDS):
                break
            tired = time.monotonic() - began > PATIENCE_SECONDS
            if here and (tired or self._is_quiet()):
                break
            if tired:
                raise RunError(
                    f"no client was there for {PATIENCE_SECONDS:.0f} s; start nodes, and run it "
                    "again with the same folder to go on"
                )
        if len(here) < self._enough:
            self.note(f"{len(here)} clients are there, {self._enough} were hoped for")
        self._enough = 1
        self._answered.clear()
        return here

    def refresh(self) -> None:
        """See which nodes are online, and greet new ones."""
        online = sorted(self.grid.get_node_ids())
        if not set(online) <= set(self._online):
            self._news = time.monotonic()
        self._online = online
        self._ask([node for node in self._online if node not in self._known])

    def answers(self, seconds: float) -> Iterator[Heard]:
        """Answers to orders, timed, if some come within some seconds; whoever introduces itself is
        taken in. One that comes twice comes out twice: the server counts them.
        """
        unread, self._unread = self._unread, []
        yield from unread
        yield from self._heard(0.0 if unread else seconds)

    def _heard(self, seconds: float) -> Iterator[Heard]:
        for letter in self._mail.take(seconds):
            again = self._answered.get(letter.answers)
            sent = self._sent.pop(letter.answers, again)
            if sent is None:
                self.note(f"an answer to nothing that was asked: {printable(letter.answers)}")
                continue
            self._answered[letter.answers] = sent
            heard = self._read(sent, letter)
            if sent.orders:
                yield heard
            elif again is None:
                self._meet(heard)

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

    def channel(self, client: int) -> Channel | None:
        """How fast a client's link and machine were measured to be, where the plan wants that."""
        first = self.charter.plan.channels
        node = self.node_of(client)
        if not isinstance(first, Measured) or node is None:
            return None
        return self._speeds.get(node, Speed()).channel(first(Key(0, 0, client)), time.time())

    def _homes(self) -> dict[int, int]:
        """Client -> the node it lives on; of two nodes that claim one, the first to come.

        A node takes one message at a time: what is still at an earlier round's is as good as away.
        """
        homes: dict[int, int] = {}
        busy = {sent.node for sent in self._sent.values() if sent.orders}
        for node, known in self._known.items():
            if node in self._online and node not in busy:
                for client in known.clients:
                    homes.setdefault(client, node)
        return homes

    def _introductions(self) -> dict[int, Introduction]:
        found: dict[int, Introduction] = {}
        for known in self._known.values():
            found = known.clients | found
        return found

    def _unknown(self, seconds: float) -> list[int]:
        """Nodes that were greeted within some seconds, and may still answer for the first time."""
        since = time.time() - seconds
        return [
            sent.node
            for sent in self._sent.values()
            if sent.node not in self._known and sent.pushed > since
        ]

    def _is_quiet(self) -> bool:
        """Whether nobody else is to be expected.

        A node that was greeted may have to import torch and read its data first, on a machine that
        is busy: before the first round, which decides what becomes of a run, it is given its time.
        """
        if self._enough > 1 and self._unknown(PATIENCE_SECONDS):
            return False
        return time.monotonic() - self._news > HELLO_SECONDS

    def _ask(self, nodes: Sequence[int]) -> None:
        waiting = {sent.node for sent in self._sent.values()}
        head = encode_hello(self.charter, EVERYONE, NO_RUN)
        for node in nodes:
            if node not in waiting:
                request = Request([b""], [head], [0], self.format)
                self.push(node, MessageType.QUERY, request, PATIENCE_SECONDS)

    def push(
        self, node: int, kind: str, request: Request, ttl: float, orders: Sequence[Order] = ()
    ) -> list[str]:
        """Send a node a message: its id, or none if it was not taken."""
        message = Message(write_request(request), node, kind, ttl=ttl)
        numbers = self._mail.post(message)
        length = sum(map(len, request.bodies)) + sum(map(len, request.heads))
        for number in numbers:
            self._sent[number] = Sent(node, time.time(), length, orders)
            self._mail.expect(number)
        return numbers

    def _read(self, sent: Sent, letter: Letter) -> Heard:
        """What a node answered, timed."""
        message = letter.message
        if message.has_error():
            reason = message.error.reason or f"Flower's error {message.error.code}"
            return Heard(letter.answers, sent, None, reason, lost=True)
        try:
            response = read_response(message.content)
        except Malformed as error:
            return Heard(letter.answers, sent, None, f"its node sent {error}")
        training = self.charter.plan.training
        trained = [order for order in sent.orders if kind_of(order.head) is Kind.ORDER]
        exchange = Exchange(
            sent.pushed,
            response.began,
            response.ended,
            letter.arrived,
            sent.bytes,
            sum(map(len, response.payloads)),
            sum(training.steps(order.cost) for order in trained if order.cost),
        )
        speed = self._speeds.get(sent.node)
        if speed is None:  # its start is in this: a process, torch, reading its data
            self._speeds[sent.node] = Speed()
        else:
            speed.add(exchange)
        return Heard(letter.answers, sent, response)

    def _meet(self, heard: Heard) -> None:
        """Take a node in, or note why not.

        Where speeds are measured it is greeted once more first, now that it has started: how long
        it waits for a short message is what everything else is told from.
        """
        node = heard.sent.node
        self._news = time.monotonic()
        before = self._known.get(node, Known())
        known = self._known_by(heard)
        measured = isinstance(self.charter.plan.channels, Measured)
        if measured and known.clients and not self._speeds[node].heard:
            self._ask([node])
            return
        self._known[node] = known
        if known.refused and known.refused != before.refused:
            self.note(f"node {node} is refused: {printable(known.refused)}")
        elif known.clients and not before.clients:
            names = ", ".join(map(str, known.clients))
            self.note(f"node {node} is there, with client {names}")

    def _known_by(self, heard: Heard) -> Known:
        if heard.response is None:
            return Known(refused=heard.reason)
        try:
            return Known(self._introduced(heard.response))
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
