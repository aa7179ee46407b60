"""How the model travels to the clients: whole, as what it has learned since its start, or as coded
differences of a public model.

Each way owns both of its ends: what is broadcast, what a client's order adds to it, and how the
client gets from there to where it starts. Nobody else asks which of them it is.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np
import torch

from fedwsq.core.errors import MessageError
from fedwsq.core.tree import add, sub
from fedwsq.core.types import Key, Params, Vectors
from fedwsq.wire import Downlink, Kind, Line, Message, Packets, Schema, decode, encode
from fedwsq.wire.message import (
    EVERYONE,
    MAX_VECTORS,
    float32_bytes,
    order_bytes,
    vectors_bytes,
)

MAX_DIFFERENCES = MAX_VECTORS // 2  # that an order carries at most
KEPT = "kept"  # the metric of a broadcast that says how much of the start is left
MAX_KEPT = 1e3  # weights that grew a thousandfold along their start are no model's


class PublicModel(NamedTuple):
    """The model that clients can rebuild after a round, and the differences that led up to it."""

    vectors: Vectors
    differences: Mapping[int, bytes]  # round -> the broadcast that carried its difference


class Parcel(NamedTuple):
    """What one client gets besides the round's broadcast."""

    packets: Packets = {}  # noqa: RUF012  in its order
    body: bytes = b""  # another broadcast in place of the round's


NOTHING_MORE = Parcel()


@dataclass(frozen=True)
class Broadcast:
    """What all clients of a round receive."""

    body: bytes
    float32_bytes: int  # how long it would be with every tensor in float32
    public: PublicModel | None = None  # what the next broadcast builds on

    def parcel(self, key: Key, accepted: int) -> Parcel:
        """What a client needs whose reply of round `accepted` was the last to count.

        A whole model is the same for everyone.
        """
        return NOTHING_MORE


class Way(Protocol):
    """A way down. The first two methods are the server's, the others the client's."""

    # Whether a client must remember the model it rebuilt.
    keeps_model: bool

    def broadcast(self, vectors: Vectors, empty: Message, public: PublicModel | None) -> Broadcast:
        """Code the vectors into the `empty` broadcast message, on top of what is `public`."""
        ...

    def read(self, message: Message, expected: frozenset[str]) -> Vectors:
        """The vectors that a broadcast carries; {} when it carries differences of the client's own
        copy. What this way would not have sent of the `expected` vectors is refused.
        """
        ...

    def rebuild(self, order: Message, differences: Packets, held: Vectors) -> Vectors:
        """Where a client starts that received differences and holds an earlier public model."""
        ...


class WholeModel:
    """The vectors themselves, with no memory at either end."""

    keeps_model = False

    def __init__(self, link: Downlink, schema: Schema) -> None:
        self.line = Line(link, schema)
        self.rate = link.rate

    def broadcast(
        self, vectors: Vectors, empty: Message, public: PublicModel | None = None
    ) -> Broadcast:
        sent = self.line.send(vectors, {}, empty.key, self.rate(empty.key.round))
        message = replace(empty, packets=sent.packets)
        schema = self.line.schema
        return Broadcast(encode(message, schema), float32_bytes(message, schema))

    def read(self, message: Message, expected: frozenset[str]) -> Vectors:
        _require_names(set(message.packets), expected)
        self.line.check(message.packets, tuple(message.packets), self.rate(message.key.round))
        return self.line.receive(message.packets, {}, message.key)

    def rebuild(self, order: Message, differences: Packets, held: Vectors) -> Vectors:
        raise MessageError("a broadcast without a model")


def plain_model(schema: Schema) -> WholeModel:
    """Every tensor in float32: how the exact model travels to be evaluated."""
    return WholeModel(Downlink(), schema)


class SinceStart(WholeModel):
    """What the parameters have learned since the start, which both ends make for themselves.

    What is left of the start has a known direction, so that one number says all of it: weight decay
    takes it down to a third within 35 accelerated rounds of ResNet-8 on CIFAR-10, where the plain
    difference to the start would have twice the energy of the weights. Every coded tensor is its
    difference to `kept` times its start; the others, which have bits enough, are differences to the
    start itself. Other vectors start from nothing, and travel as they are.
    """

    def __init__(self, link: Downlink, schema: Schema, start: Params) -> None:
        super().__init__(link, schema)
        self.start = start

    def broadcast(
        self, vectors: Vectors, empty: Message, public: PublicModel | None = None
    ) -> Broadcast:
        params = vectors["params"]
        share = share_kept(params, self.start, self.line.coded)
        kept = min(max(share, -MAX_KEPT), MAX_KEPT)
        learned = sub(params, self._expected(kept))
        return super().broadcast(
            {**vectors, "params": learned}, replace(empty, metrics={KEPT: kept})
        )

    def read(self, message: Message, expected: frozenset[str]) -> Vectors:
        kept = message.metrics.get(KEPT)
        if kept is None or abs(kept) > MAX_KEPT:
            raise MessageError(
                f"a broadcast since the start says that {kept} of it is kept; "
                f"it must say how much, and at most {MAX_KEPT:g}"
            )
        vectors = super().read(message, expected)
        return {**vectors, "params": add(self._expected(kept), vectors["params"])}

    def _expected(self, kept: float) -> Params:
        """The model as it would be, had it learned nothing."""
        coded = self.line.coded
        return {name: kept * x if name in coded else x for name, x in self.start.items()}


def share_kept(params: Params, start: Params, names: Collection[str]) -> float:
    """The factor c that brings c times the start closest to the parameters, over `names` together.

    In float64 and one order, as every part of a result. 1 where the start is all zeros.
    """
    along = 0.0
    energy = 0.0
    for name in start:
        if name in names:
            before = start[name].double().cpu().numpy()
            now = params[name].double().cpu().numpy()
            along += float(np.add.reduce(before * now, axis=None))
            energy += float(np.add.reduce(before * before, axis=None))
    return along / energy if energy else 1.0


@dataclass(frozen=True)
class ChainBroadcast(Broadcast):
    """The round's difference, and what it takes to bring any client up to it."""

    whole: bytes = b""  # the public model in one piece, for those who cannot use differences
    earlier: Mapping[int, Packets] = field(default_factory=dict)  # the differences of past rounds
    schema: Schema = field(default_factory=lambda: Schema({}))

    def parcel(self, key: Key, accepted: int) -> Parcel:
        """The differences that the client missed, or the whole model where that is shorter."""
        missed = _missed(self.earlier, accepted, key.round)
        if missed is None:
            return Parcel(body=self.whole)
        head = order_bytes(1) + vectors_bytes(missed, self.schema)
        if head + len(self.body) >= len(self.whole):
            return Parcel(body=self.whole)
        return Parcel(missed)


class Chain:
    """Coded differences of a public model, which both ends rebuild by the same additions."""

    keeps_model = True

    def __init__(self, link: Downlink, schema: Schema) -> None:
        self.line = Line(link, schema)
        self.rate = link.rate
        self.plain = plain_model(schema)

    def broadcast(self, vectors: Vectors, empty: Message, public: PublicModel | None) -> Broadcast:
        schema = self.line.schema
        after, packets = self._advance(vectors, empty.key, public)
        whole = self.plain.broadcast(after, empty)
        body = encode(replace(empty, packets=packets), schema)
        kept: dict[int, bytes] = {}
        earlier: dict[int, Packets] = {}
        if public is not None:  # the first model has no difference that leads to it
            kept = _worth_keeping(public, empty.key.round, body, len(whole.body))
            for number, data in public.differences.items():
                earlier[number] = decode(data, schema, Kind.BROADCAST).packets
        return ChainBroadcast(
            body, whole.float32_bytes, PublicModel(after, kept), whole.body, earlier, schema
        )

    def _advance(
        self, target: Vectors, key: Key, public: PublicModel | None
    ) -> tuple[Vectors, Packets]:
        """The public model of a round, and the coded difference that leads there.

        The first public model is the target itself, and no difference leads to it.
        """
        if public is None:
            return {vector: dict(params) for vector, params in target.items()}, {}
        difference = {
            vector: sub(params, public.vectors[vector]) for vector, params in target.items()
        }
        packets = self.line.send(difference, {}, key, self.rate(key.round)).packets
        return self._apply(public.vectors, packets, key), _named_by_round(packets, key.round)

    def read(self, message: Message, expected: frozenset[str]) -> Vectors:
        # Only the broadcast for a newcomer is a whole model, under plain names.
        if "params" in message.packets:
            return self.plain.read(message, expected)
        vectors = {name.partition(" ")[2] for name in message.packets}
        if vectors:  # the first public model has no difference that leads to it
            _require_names(vectors, expected)
        return {}

    def rebuild(self, order: Message, differences: Packets, held: Vectors) -> Vectors:
        if not held:
            raise MessageError(
                f"differences for client {order.key.client}, which has no model to add them to"
            )
        first = order.accepted + 1
        last = order.key.round
        by_round = split_by_round({**order.packets, **differences})
        # The number first: a round from elsewhere may be any, and a range of that many is not made.
        complete = len(by_round) == last - first + 1
        if not complete or sorted(by_round) != list(range(first, last + 1)):
            raise MessageError(
                f"differences of rounds {sorted(by_round)}, expected {first} to {last}"
            )
        for number in range(first, last + 1):
            self.line.check(by_round[number], tuple(held), self.rate(number))
            held = self._apply(held, by_round[number], Key(order.key.seed, number, EVERYONE))
        if not all(torch.isfinite(x).all() for params in held.values() for x in params.values()):
            raise MessageError("the differences lead to a model that is not finite")
        return held

    def _apply(self, vectors: Vectors, packets: Packets, key: Key) -> Vectors:
        """One more difference: the same additions at both ends, so the same bits."""
        decoded = self.line.receive(packets, {}, key)
        return {vector: add(params, decoded[vector]) for vector, params in vectors.items()}


def way_down(link: Downlink, schema: Schema, start: Callable[[], Params]) -> Way:
    """The way that a plan's downlink asks for; `start` makes the parameters of round 0."""
    if link.mode == "chain":
        return Chain(link, schema)
    if link.mode == "start":
        return SinceStart(link, schema, start())
    return WholeModel(link, schema)


def _require_names(found: set[str], expected: frozenset[str]) -> None:
    if found != expected:
        raise MessageError(f"the broadcast carries {sorted(found)}, expected {sorted(expected)}")


def _missed(earlier: Mapping[int, Packets], accepted: int, last: int) -> Packets | None:
    """The differences after round `accepted`, before `last`, if all are at hand and few enough."""
    rounds = range(accepted + 1, last)
    if not accepted or any(number not in earlier for number in rounds):
        return None
    found: Packets = {}
    for number in rounds:
        found |= earlier[number]
    return found if len(found) <= MAX_DIFFERENCES else None


def _worth_keeping(
    public: PublicModel, number: int, body: bytes, whole_bytes: int
) -> dict[int, bytes]:
    """The newest difference and as many before it as together are shorter than the whole model."""
    kept = {number: body}
    length = len(body)
    for earlier in sorted(public.differences, reverse=True):
        length += len(public.differences[earlier])
        if length >= whole_bytes or len(kept) >= MAX_DIFFERENCES:
            break
        kept[earlier] = public.differences[earlier]
    return kept


def _named_by_round(packets: Packets, number: int) -> Packets:
    """On the wire a difference's vectors are named after its round: `17 params`."""
    return {f"{number} {vector}": tensors for vector, tensors in packets.items()}


def split_by_round(packets: Packets) -> dict[int, Packets]:
    """The opposite of `_named_by_round`, for any number of rounds."""
    found: dict[int, Packets] = {}
    for name, tensors in packets.items():
        number, _, vector = name.partition(" ")
        canonical = number.isascii() and number.isdigit() and str(int(number)) == number
        if not (canonical and vector):
            raise MessageError(f"vector {name!r} is not named after a round")
        found.setdefault(int(number), {})[vector] = tensors
    return found
