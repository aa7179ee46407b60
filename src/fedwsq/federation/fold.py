"""Replies to sums: what is let in, in which order, and what it adds up to."""

import math
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fedwsq.core.errors import MessageError
from fedwsq.core.tree import zeros_like
from fedwsq.core.types import Channel, Key, Params, Rate, Update, Vectors
from fedwsq.federation.bounds import (
    MAX_CLAIM,
    Limits,
    Seen,
    Usual,
    bounded_mean,
    check_claims,
    limits,
)
from fedwsq.federation.charter import Charter
from fedwsq.federation.spool import Spool
from fedwsq.federation.stack import Stack
from fedwsq.plan import WEIGH
from fedwsq.plan.combine import Mean
from fedwsq.training.settings import sum_of_rates
from fedwsq.transports import Answer, Failure, Order
from fedwsq.wire import Kind, Message, Shared, SideValues, Sums, decode
from fedwsq.wire.digest import reply_digest
from fedwsq.wire.message import (
    MAX_METRICS,
    MAX_NAME_BYTES,
    METRIC,
    float32_bytes,
    float32_reply_bytes,
)

MAX_FOREIGN = 20  # answers to nothing that was asked, by name; the others only count
METRICS_BYTES = MAX_METRICS * (1 + MAX_NAME_BYTES + METRIC.size)  # a method may add its own
MIN_WEIGHT = 1e-6  # a client has at least one example; far less would make the mean overflow


class Assignment(NamedTuple):
    """An order as sent, with what the reply will be held against."""

    message: Message
    order: Order
    down_bytes: int
    float32_bytes: int
    channel: Channel | None
    steps: int | None  # of local training; None where the server does not know the client's size
    examples: int | None = None  # of the client, as far as the server knows
    certain: bool = False  # whether the server knows so itself, or was told


class Before(NamedTuple):
    """The state that a round starts from, as far as replies are held against it."""

    params: Params
    shared: Shared
    usual: Usual = Usual()


class Reply(NamedTuple):
    """A message that was read and checked, and what it is compared by."""

    message: Message
    seen: Seen


@dataclass
class Folded:
    """What a round's replies add up to: sum(p x) and sum(p), divided once by `mean`."""

    vectors: Vectors
    weight: float = 0.0
    lr_sum: float = 0.0  # sum(p l), l the learning rates of all steps on as many examples
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
    seen: list[Seen] = field(default_factory=list)  # of the replies let in
    digests: list[bytes] = field(default_factory=list)  # of the replies let in
    clipped: int = 0  # updates that were too long, and count for less
    unanimous: float | None = None  # share of the elements on which all who were counted agree
    more_down_bytes: int = 0  # beyond the assignments: a round that counts has several orders
    seconds: float = 0.0

    @property
    def clients(self) -> list[int]:
        """Whose replies are in the sums."""
        return [message.key.client for message in self.replies]

    def refuse(self, reason: str) -> None:
        """Count every reply as a failure."""
        self.failures |= dict.fromkeys(self.clients, reason)
        self.replies = []
        self.digests = []
        self.sides = {}
        self.clipped = 0

    def mean(self) -> Update:
        """The weighted mean update and the means of its metrics; divides in place."""
        for params in self.vectors.values():
            for x in params.values():
                x.div_(self.weight)
        carried = Counter(name for message in self.replies for name in message.metrics)
        metrics = {
            name: bounded_mean(self.metric(name))
            for name, count in carried.items()
            # One client can neither add a metric nor take one away.
            if 2 * count > len(self.replies)
        }
        return Update(self.vectors, self.weight, metrics)

    def metric(self, name: str) -> list[float]:
        """A metric of all replies that carry it."""
        return [message.metrics[name] for message in self.replies if name in message.metrics]


class Fold:
    """Takes answers in any order and adds them up in client order; early ones wait packed.

    Floating-point sums depend on their order: this way they do not depend on who was quicker.
    While little is known of what is usual, in a run's first rounds, all wait for the last: then
    the cohort itself is what each is held against, too.
    """

    def __init__(
        self,
        charter: Charter,
        assignments: Mapping[int, Assignment],
        before: Before,
        spool: Spool,
    ) -> None:
        self.charter = charter
        self.assignments = assignments
        self.before = before
        self.shared = before.shared
        self.spool = spool
        self.bounds = charter.plan.bounds
        sends = charter.plan.algorithm.sends
        self.limits: Limits | None = None  # not known yet
        if before.usual.knows(sends):
            self.limits = limits(self.bounds, before.usual)
        self.folded = Folded({vector: zeros_like(before.params) for vector in sends})
        self._sums = self._open_sums()
        self._turn = deque(assignments)
        self._lengths: dict[tuple[Rate, ...], int] = {}  # of replies, by the rates of the order

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
            self._keep(client, answer.payload, asked)
        while self.limits and self._turn and self._has_answered(self._turn[0]):
            self._add(self._turn.popleft(), self.limits)

    def finish(self) -> Folded:
        """Fold what still waits: someone before them never answered."""
        found = self.limits or self._limits_of_cohort()
        self.folded.missing = [c for c in self._turn if not self._has_answered(c)]
        for client in self._turn:
            self._add(client, found)
        self._sums.settle()
        if isinstance(self._sums, Stack) and self.folded.replies:
            self.folded.weight = 1.0  # they are one already, and there is nothing to divide
        return self.folded

    def _open_sums(self) -> Sums | Stack:
        """Where updates go: a mean can be added up, anything else needs all of them."""
        uplink = self.charter.uplink
        combine = self.charter.plan.combine
        if isinstance(combine, Mean):
            return Sums(uplink, self.folded.vectors)
        return Stack(uplink, self.folded.vectors, combine, self.spool.folder)

    def _keep(self, client: int, payload: bytes, asked: Assignment) -> None:
        """Have a payload wait for its turn; one that is too long for a reply is not kept at all."""
        longest = self._longest(asked.message.rates)
        if len(payload) <= longest:
            self.spool.put(client, payload)
            return
        self.folded.lengths[client] = len(payload)
        self._refuse(client, f"{len(payload)} bytes, a reply to this order has at most {longest}")

    def _longest(self, rates: tuple[Rate, ...]) -> int:
        """The bytes of the longest reply at these rates; most orders of a round have the same."""
        if rates not in self._lengths:
            sends = self.charter.plan.algorithm.sends
            self._lengths[rates] = self.charter.uplink.granted_bytes(rates, sends) + METRICS_BYTES
        return self._lengths[rates]

    def _refuse(self, client: int, why: object) -> None:
        self.folded.failures[client] = f"MessageError: {why}"
        # It would have been refused in float32 too, and been as long as any other.
        sends = self.charter.plan.algorithm.sends
        self.folded.float32_bytes += float32_reply_bytes(sends, self.charter.schema)

    def _has_answered(self, client: int) -> bool:
        return client in self.spool or client in self.folded.failures

    def _count_foreign(self, key: Key) -> None:
        """Anybody may send any number of them; a row has an end."""
        foreign = self.folded.foreign
        name = f"round {key.round}, client {key.client}"
        known = name in foreign or len(foreign) < MAX_FOREIGN
        foreign[name if known else "others"] += 1

    def _limits_of_cohort(self) -> Limits:
        """From those who wait, too; they are read once more when their turn comes."""
        cohort = []
        for client in self._turn:
            if client not in self.spool:
                continue
            try:
                reply = self._read(self.spool.peek(client), self.assignments[client])
            except MessageError:
                continue
            if reply.message.kind == Kind.REPLY:
                cohort.append(reply.seen)
        return limits(self.bounds, self.before.usual, cohort)

    def _add(self, client: int, most: Limits) -> None:
        """Add a client's reply, or note why not; it is checked whole before any of it counts."""
        folded = self.folded
        if client not in self.spool:
            folded.failures.setdefault(client, "no reply")
            return
        began = time.perf_counter()
        payload = self.spool.pop(client)
        folded.lengths[client] = len(payload)
        try:
            message, seen = self._read(payload, self.assignments[client])
        except MessageError as error:
            self._refuse(client, error)
            return
        if message.kind == Kind.FORGOT:
            folded.forgot.append(client)
            folded.float32_bytes += len(payload)
            folded.failures[client] = "it lost its memory of earlier rounds and starts anew"
            return

        self._count(message, seen, most)
        folded.seen.append(seen)
        folded.float32_bytes += float32_bytes(message, self.charter.schema)
        folded.digests.append(reply_digest(message))
        self._keep_sides(message)
        message.packets.clear()  # it is our own, and has done its work
        folded.replies.append(message)
        folded.seconds += time.perf_counter() - began

    def _count(self, message: Message, seen: Seen, most: Limits) -> None:
        """Add an update with its weight, and for less where it is too long."""
        certain = self.assignments[message.key.client].certain
        examples = seen.examples if certain else min(seen.examples, most.examples)
        plan = self.charter.plan
        weight = WEIGH[plan.aggregation](examples, message.error)
        self.folded.weight += weight
        # What a reply itself says of its steps counts for nothing.
        lr_sum = sum_of_rates(plan.training, message.key.round, plan.rounds, math.ceil(examples))
        self.folded.lr_sum += weight * lr_sum
        known = examples if certain else 0.0
        shortest = 1.0
        for vector, norm in seen.norms.items():
            factor = most.factor(vector, norm, known)
            shortest = min(shortest, factor)
            packets = {vector: message.packets[vector]}
            self._sums.add(packets, self.shared, message.key, weight * factor)
        self.folded.clipped += shortest < 1

    def _read(self, payload: bytes, asked: Assignment) -> Reply:
        """A reply to this very order with nothing beyond reason in it, or `MessageError`."""
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
            return Reply(message, Seen({}, 0.0))
        if not message.weight >= MIN_WEIGHT:
            raise MessageError(
                f"aggregation weight is {message.weight}, must be at least {MIN_WEIGHT:g}"
            )
        charter.uplink.check(message.packets, charter.plan.algorithm.sends, asked.message.rates)
        check_claims(message, self.shared, self.bounds.magnitude)
        return Reply(_bounded_claims(message), self._look(message, asked))

    def _look(self, message: Message, asked: Assignment) -> Seen:
        """What a reply is compared by; `MessageError` if a value of it is beyond reason."""
        norms = {}
        extents = self.charter.uplink.extents(message.packets, self.shared, message.key)
        for vector, extent in extents.items():
            if not extent.largest <= self.bounds.magnitude:  # NaN fails too
                raise MessageError(
                    f"{vector!r} has a value of size {extent.largest:g}, "
                    f"at most {self.bounds.magnitude:g} is let in (bounds.magnitude)"
                )
            norms[vector] = math.sqrt(extent.energy)
        # What the server knows counts, not what a reply says.
        examples = message.weight if asked.examples is None else float(max(asked.examples, 1))
        return Seen(norms, examples)

    def _keep_sides(self, message: Message) -> None:
        """What the shared state learns from; other side values have done their work."""
        for vector, states in self.shared.items():
            into = self.folded.sides.setdefault(vector, {})
            for name in states:
                into.setdefault(name, []).append(message.packets[vector][name].side)


def _bounded_claims(message: Message) -> Message:
    """The message with no number beyond reason in what it says of itself."""
    metrics = {
        name: min(max(value, -MAX_CLAIM), MAX_CLAIM) for name, value in message.metrics.items()
    }
    return replace(message, error=min(message.error, MAX_CLAIM), metrics=metrics)
