"""Replies to sums: what is let in, in which order, and what it adds up to."""

import statistics
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fedwsq.core.errors import MessageError
from fedwsq.core.tree import zeros_like
from fedwsq.core.types import Channel, Key, Params, Update, Vectors
from fedwsq.federation.charter import Charter
from fedwsq.federation.spool import Spool
from fedwsq.plan import WEIGH
from fedwsq.transports import Answer, Failure, Order
from fedwsq.wire import Kind, Message, Shared, SideValues, Sums, decode
from fedwsq.wire.message import float32_bytes, float32_reply_bytes

MAX_FOREIGN = 20  # answers to nothing that was asked, by name; the others only count
MIN_WEIGHT = 1e-6  # a client has at least one example; far less would make the mean overflow


class Assignment(NamedTuple):
    """An order as sent, with what the reply will be held against."""

    message: Message
    order: Order
    down_bytes: int
    float32_bytes: int
    channel: Channel | None
    steps: int | None  # of local training; None where the server does not know the client's size


@dataclass
class Folded:
    """What a round's replies add up to: sum(p x) and sum(p), divided once by `mean`."""

    vectors: Vectors
    weight: float = 0.0
    sides: SideValues = field(default_factory=dict)
    replies: list[Message] = field(default_factory=list)  # those let in, without their packets
    failures: dict[int, str] = field(default_factory=dict)  # client -> why
    late: list[int] = field(default_factory=list)  # of those who failed: not in time
    missing: list[int] = field(default_factory=list)  # of those who failed: not a word
    duplicates: Counter[int] = field(default_factory=Counter)  # answers of who had answered
    foreign: Counter[str] = field(default_factory=Counter)  # answers to nothing that was asked
    asked_again: dict[int, str] = field(default_factory=dict)  # client -> why
    forgot: list[int] = field(default_factory=list)  # clients that lost their memory
    # client -> bytes of its reply, let in or not: they were paid for
    lengths: dict[int, int] = field(default_factory=dict)
    float32_bytes: int = 0  # the same replies with every tensor in float32
    seconds: float = 0.0

    @property
    def clients(self) -> list[int]:
        """Whose replies are in the sums."""
        return [message.key.client for message in self.replies]

    def refuse(self, reason: str) -> None:
        """Count every reply as a failure."""
        self.failures |= dict.fromkeys(self.clients, reason)
        self.replies = []
        self.sides = {}

    def mean(self) -> Update:
        """The weighted mean update and the plain means of its metrics; divides in place."""
        for params in self.vectors.values():
            for x in params.values():
                x.div_(self.weight)
        common = set.intersection(*(set(message.metrics) for message in self.replies))
        metrics = {name: statistics.fmean(self.metric(name)) for name in common}
        return Update(self.vectors, self.weight, metrics)

    def metric(self, name: str) -> list[float]:
        """A metric of all replies that carry it."""
        return [message.metrics[name] for message in self.replies if name in message.metrics]


class Fold:
    """Takes answers in any order and adds them up in client order; early ones wait packed.

    Floating-point sums depend on their order: this way they do not depend on who was quicker.
    """

    def __init__(
        self,
        charter: Charter,
        assignments: Mapping[int, Assignment],
        shared: Shared,
        like: Params,
        spool: Spool,
    ) -> None:
        self.charter = charter
        self.assignments = assignments
        self.shared = shared
        self.spool = spool
        self.folded = Folded({vector: zeros_like(like) for vector in charter.plan.algorithm.sends})
        self._sums = Sums(charter.uplink, self.folded.vectors)
        self._turn = deque(assignments)

    def take(self, answer: Answer) -> None:
        """Keep one answer, and fold those whose turn it is."""
        client = answer.key.client
        asked = self.assignments.get(client)
        if asked is None or answer.key != asked.order.key:
            self._count_foreign(answer.key)
            return
        if client not in self._turn or self._has_answered(client):
            self.folded.duplicates[client] += 1  # the first answer counts
            return
        if isinstance(answer, Failure):
            self.folded.failures[client] = answer.reason
            if answer.late:
                self.folded.late.append(client)
        else:
            self.spool.put(client, answer.payload)
        while self._turn and self._has_answered(self._turn[0]):
            self._add(self._turn.popleft())

    def finish(self) -> Folded:
        """Fold what still waits: someone before them never answered."""
        self.folded.missing = [c for c in self._turn if not self._has_answered(c)]
        for client in self._turn:
            self._add(client)
        self._sums.settle()
        return self.folded

    def _has_answered(self, client: int) -> bool:
        return client in self.spool or client in self.folded.failures

    def _count_foreign(self, key: Key) -> None:
        """Anybody may send any number of them; a row has an end."""
        foreign = self.folded.foreign
        name = f"round {key.round}, client {key.client}"
        known = name in foreign or len(foreign) < MAX_FOREIGN
        foreign[name if known else "others"] += 1

    def _add(self, client: int) -> None:
        """Add a client's reply, or note why not; it is checked whole before any of it counts."""
        folded = self.folded
        if client not in self.spool:
            folded.failures.setdefault(client, "no reply")
            return
        began = time.perf_counter()
        payload = self.spool.pop(client)
        folded.lengths[client] = len(payload)
        try:
            message = self._read(payload, self.assignments[client])
        except MessageError as error:
            folded.failures[client] = f"MessageError: {error}"
            # It would have been refused in float32 too, and been as long as any other.
            sends = self.charter.plan.algorithm.sends
            folded.float32_bytes += float32_reply_bytes(sends, self.charter.schema)
            return
        if message.kind == Kind.FORGOT:
            folded.forgot.append(client)
            folded.float32_bytes += len(payload)
            folded.failures[client] = "it lost its memory of earlier rounds and starts anew"
            return

        weight = WEIGH[self.charter.plan.aggregation](message.weight, message.error)
        self._sums.add(message.packets, self.shared, message.key, weight)
        folded.weight += weight
        folded.float32_bytes += float32_bytes(message, self.charter.schema)
        self._keep_sides(message)
        message.packets.clear()  # it is our own, and has done its work
        folded.replies.append(message)
        folded.seconds += time.perf_counter() - began

    def _read(self, payload: bytes, asked: Assignment) -> Message:
        """A reply to this very order, or `MessageError`."""
        charter = self.charter
        message = decode(payload, charter.schema, run=asked.message.run)
        if message.kind not in (Kind.REPLY, Kind.FORGOT):
            raise MessageError(f"message is of kind {message.kind.name.lower()}, expected reply")
        charter.require(message)
        if message.key != asked.message.key or message.nonce != asked.message.nonce:
            raise MessageError(
                f"reply to another order: {message.key}, expected {asked.message.key}"
            )
        if message.kind == Kind.FORGOT:
            return message
        if not message.weight >= MIN_WEIGHT:
            raise MessageError(
                f"aggregation weight is {message.weight}, must be at least {MIN_WEIGHT:g}"
            )
        charter.uplink.check(message.packets, charter.plan.algorithm.sends, asked.message.rates)
        return message

    def _keep_sides(self, message: Message) -> None:
        """What the shared state learns from; other side values have done their work."""
        for vector, states in self.shared.items():
            into = self.folded.sides.setdefault(vector, {})
            for name in states:
                into.setdefault(name, []).append(message.packets[vector][name].side)
