"""The one place where algorithm, codec and bits meet: which tensors are coded, with what, and what that cost."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

from fedwsq.codecs import BitPolicy, Codec, Fixed, Float32
from fedwsq.codecs.base import MAX_MAGNITUDE, resident_values, rows_of
from fedwsq.codecs.bits import Ask
from fedwsq.codecs.measure import normal_error
from fedwsq.core.errors import ConfigError, MessageError, UpdateError
from fedwsq.core.seeds import derive
from fedwsq.core.types import Channel, Key, Rate, Shapes, Vectors
from fedwsq.wire.message import (
    ENTRY_BYTES,
    EVERYONE,
    REPLY_METRICS,
    Packets,
    Schema,
    Shared,
    reply_overhead,
)

T = TypeVar("T")
NOTHING = torch.empty(0)  # the shared state of a tensor that has none
Sides = dict[
    str, dict[str, list[tuple[float, ...]]]
]  # vector -> tensor -> the side values of every accepted packet


def published(shapes: Shapes) -> list[str]:
    """Every convolution but the first, the stem: norms, stem and classifier travel as they are (published code)."""
    return [name for name, shape in shapes.items() if len(shape) >= 3][1:]


def weights(shapes: Shapes) -> list[str]:
    """Every tensor with two dimensions or more: all weights, no biases and no norms."""
    return [name for name, shape in shapes.items() if len(shape) >= 2]


def everything(shapes: Shapes) -> list[str]:
    """Every tensor."""
    return list(shapes)


Select = Literal["published", "weights", "all"]
SELECTS: dict[str, Callable[[Shapes], list[str]]] = {
    "published": published,
    "weights": weights,
    "all": everything,
}


class Sent(NamedTuple):
    """What a link made of some vectors: the packets, the squared error relative to the squared norm, the residuals."""

    packets: Packets
    error: float
    residuals: Vectors = {}  # noqa: RUF012  what the code lost, of every lossy tensor; only with error feedback


@dataclass(frozen=True)
class Link:
    """One direction of the traffic: a codec, who decides its bits, and the tensors it takes; the `rest` has its own.

    A codec with a single rate leaves nothing to decide: it runs at that rate whatever `bits` says. With
    `error_feedback` what a code lost is added to what its sender codes next (Seide et al., 2014; arXiv:1901.09847).
    """

    codec: Codec = Float32()
    bits: BitPolicy = Fixed()
    select: Select = "published"
    rest: Codec = Float32()
    error_feedback: bool = False

    def __post_init__(self) -> None:
        if self.select not in get_args(Select):
            raise ConfigError(f"select is {self.select!r}; it can be {', '.join(SELECTS)}")
        if only_rate(self.rest) is None:
            raise ConfigError("rest needs a codec with a single rate: float32, float16 or danuq8")
        rate = only_rate(self.codec)
        if rate is not None and isinstance(self.bits, Fixed):
            object.__setattr__(self, "bits", Fixed(rate))
        elif rate is not None and hasattr(self.bits, "choices"):
            object.__setattr__(self, "bits", replace(self.bits, choices=(rate,)))  # type: ignore[type-var]
        for granted in self._foreseen():
            self._require_rate(granted)
        if self.error_feedback:
            self.require_contraction("error_feedback")

    def require_contraction(self, what: str) -> None:
        """Refuse codes that lose more than there is: what they lost would be coded again, and grow."""
        for codec, rates in ((self.codec, self._foreseen()), (self.rest, (only_rate(self.rest),))):
            for rate in rates:
                lost = normal_error(codec, rate) if rate is not None else 0.0  # type: ignore[arg-type]
                if lost >= 1:
                    name = type(codec).__name__.lower()
                    raise ConfigError(
                        f"{what} needs a code that loses less than it is given; {name} at {rate:g} bits loses "
                        f"{lost:.3g} times that on normal data: use more bits, or a codec such as sign, danuq or eden"
                    )

    def _foreseen(self) -> tuple[Rate, ...]:
        """What the policy may grant, where it says so beforehand."""
        choices: tuple[Rate, ...] = getattr(self.bits, "choices", ())
        return (self.bits.bits,) if isinstance(self.bits, Fixed) else choices

    def coded(self, schema: Schema) -> frozenset[str]:
        """The tensors that `codec` takes."""
        names = SELECTS[self.select](schema.shapes)
        if not names and not isinstance(self.codec, Float32):
            raise ConfigError(
                f'select = "{self.select}" chooses no tensor of this model, so nothing would be coded; '
                'use "weights" or "all"'
            )
        return frozenset(names)

    def init(self, schema: Schema, vectors: tuple[str, ...]) -> Shared:
        """The codec's shared state before the first round, for those tensors that have any."""
        coded = self.coded(schema)
        states = {
            name: self.codec.init(math.prod(shape), rows_of(shape))
            for name, shape in schema.shapes.items()
            if name in coded
        }
        states = {name: state for name, state in states.items() if state.numel()}
        return {vector: dict(states) for vector in vectors} if states else {}

    @property
    def lossless(self) -> bool:
        """Whether everything arrives as it was sent."""
        return isinstance(self.codec, Float32) and isinstance(self.rest, Float32)

    def loses(self, schema: Schema) -> bool:
        """Whether any tensor may arrive changed."""
        coded = self.coded(schema)
        return any(
            not isinstance(self.codec if name in coded else self.rest, Float32)
            for name in schema.names
        )

    def rates(
        self,
        key: Key,
        channel: Channel | None,
        schema: Schema,
        shared: Shared,
        vectors: tuple[str, ...] = ("delta",),
        seconds_before_upload: float = 0.0,
        metrics: tuple[str, ...] = REPLY_METRICS,
    ) -> tuple[Rate, ...] | None:
        """What the bit policy grants this client, as an order carries it; None when it sits out."""
        coded = self.coded(schema)
        granted = self.bits(
            Ask(
                key,
                channel,
                {name: size for name, size in schema.sizes.items() if name in coded},
                shared.get("delta", {}),
                self.codec.rates,
                lambda rates: self.reply_bytes(rates, vectors, schema, metrics),
                lambda rate: normal_error(self.codec, rate),  # type: ignore[arg-type]  # codecs are frozen dataclasses
                seconds_before_upload,
            )
        )
        if granted is None:
            return None
        if not isinstance(granted, Mapping):
            self._require_rate(granted)
            return (as_sent(granted),)
        if granted.keys() != coded:
            odd = ", ".join(sorted(granted.keys() ^ coded))
            raise ConfigError(
                f"bits for each tensor must name exactly the coded ones; these differ: {odd}"
            )
        for rate in granted.values():
            self._require_rate(rate)
        rest = only_rate(self.rest)
        assert rest is not None  # __post_init__ saw to it
        return tuple(as_sent(granted.get(name, rest)) for name in schema.names)

    def reply_bytes(
        self,
        rates: Rate | Mapping[str, Rate],
        vectors: tuple[str, ...],
        schema: Schema,
        metrics: tuple[str, ...] = REPLY_METRICS,
    ) -> int:
        """The length of a whole reply at these rates; an upper bound where the code's length depends on the data."""
        coded, tensors = self.coded(schema), 0
        for name, shape in schema.shapes.items():
            codec, size = self.codec if name in coded else self.rest, schema.sizes[name]
            rate = only_rate(codec) or (rates[name] if isinstance(rates, Mapping) else rates)
            tensors += entry_bytes(codec, size, rows_of(shape), rate)  # type: ignore[arg-type]
        return reply_overhead(vectors, metrics) + len(vectors) * tensors

    def mean_bits(self, rates: tuple[Rate, ...], schema: Schema) -> float:
        """Bits a coded parameter at the granted rates; of any parameter where none is coded."""
        if len(rates) == 1:
            return rates[0]
        coded = self.coded(schema) or schema.names
        sizes = [schema.sizes[name] if name in coded else 0 for name in schema.names]
        return sum(rate * size for rate, size in zip(rates, sizes, strict=True)) / sum(sizes)

    def send(
        self,
        vectors: Vectors,
        shared: Shared,
        key: Key,
        rates: tuple[Rate, ...],
        schema: Schema,
        residuals: Vectors | None = None,
    ) -> Sent:
        """Code every tensor of every vector, on top of what was lost before, and measure what the code lost."""
        packets: Packets = {vector: {} for vector in vectors}
        left: Vectors = {vector: {} for vector in vectors} if self.error_feedback else {}
        lost = energy = 0.0
        for vector, name, codec, rate, x in self._walk(vectors, schema, rates):
            state, seed = _state(shared, vector, name), _seed(codec, key, vector, name)
            x = x.detach().to(torch.float32).contiguous()
            if residuals and name in residuals.get(vector, {}):
                x = x + residuals[vector][name].to(x.device)
            flat = x.view(-1)
            try:
                packet = codec.encode(x, state, rate, seed)
            except UpdateError as error:
                who = "the server" if key.client == EVERYONE else f"client {key.client}"
                raise UpdateError(f"{who}, round {key.round}, {vector} {name}: {error}") from None
            packets[vector][name] = (
                packet if packet.codec == codec.wire_id else packet._replace(codec=codec.wire_id)
            )
            energy += energy_of(flat)
            if not isinstance(codec, Float32):
                residual = flat.clone()
                codec.accumulate(packet, state, seed, residual, -1.0)
                lost += energy_of(residual)
                if self.error_feedback:
                    left[vector][name] = residual.view(x.shape).cpu()
        return Sent(packets, min(lost / energy, MAX_MAGNITUDE) if energy else 0.0, left)

    def check(
        self, packets: Packets, vectors: tuple[str, ...], rates: tuple[Rate, ...], schema: Schema
    ) -> None:
        """Refuse packets that this link, asked for these vectors at these rates, would not have sent."""
        if tuple(packets) != vectors:
            raise MessageError(f"message carries {list(packets)}, expected {list(vectors)}")
        for vector, name, codec, rate, packet in self._walk(packets, schema, rates):
            what = f"tensor {name} of {vector!r}"
            if packet.codec != codec.wire_id:
                raise MessageError(
                    f"{what}: codec id {packet.codec}, this link uses {codec.wire_id}"
                )
            if packet.rate != rate:
                raise MessageError(f"{what}: rate {packet.rate:g}, the order was for {rate:g}")
            if len(packet.side) != codec.side_values(packet.numel, packet.rows):
                expected = codec.side_values(packet.numel, packet.rows)
                raise MessageError(
                    f"{what}: {len(packet.side)} side values, such a packet has {expected}"
                )
            limit = codec.max_bytes(packet.numel, rate)
            if len(packet.code) > limit or (
                isinstance(codec.rates, frozenset) and len(packet.code) != limit
            ):
                raise MessageError(
                    f"{what}: code of {len(packet.code)} bytes, {rate:g} bits make {limit}"
                )
            try:
                codec.check(packet)
            except MessageError as error:
                raise MessageError(f"{what}: {error}") from None

    def check_states(self, states: Shared, vectors: tuple[str, ...], schema: Schema) -> None:
        """Refuse codec state that does not fit this link's codec and tensors."""
        if _numbers(states) != _numbers(self.init(schema, vectors)):
            raise MessageError(
                "the broadcast's codec state is not that of this run's codec and tensors"
            )
        may_be_zero = any(
            not x.all() for x in self.init(schema, ("",)).get("", {}).values()
        )  # not calibrated yet
        if not may_be_zero and any(
            not (x > 0).all() for tensors in states.values() for x in tensors.values()
        ):
            raise MessageError("the broadcast's codec state has a scale of 0")

    def receive(self, packets: Packets, shared: Shared, key: Key, schema: Schema) -> Vectors:
        """Decode what the other end sent."""
        vectors: Vectors = {vector: {} for vector in packets}
        for vector, name, codec, _, packet in self._walk(packets, schema):
            flat = codec.decode(
                packet, _state(shared, vector, name), _seed(codec, key, vector, name)
            )
            vectors[vector][name] = flat.reshape(schema.shapes[name])
        return vectors

    def accumulate(
        self,
        packets: Packets,
        shared: Shared,
        key: Key,
        out: Vectors,
        weight: float,
        schema: Schema,
    ) -> None:
        """`out += weight * received`, tensor by tensor: at most one tensor is ever unpacked."""
        for vector, name, codec, _, packet in self._walk(packets, schema):
            state, seed = _state(shared, vector, name), _seed(codec, key, vector, name)
            codec.accumulate(packet, state, seed, out[vector][name].view(-1), weight)

    def fold(self, shared: Shared, sides: Sides) -> Shared:
        """The shared state after a round, from the side values of its accepted packets."""
        return {
            vector: {
                name: self.codec.fold(state, sides.get(vector, {}).get(name, []))
                for name, state in tensors.items()
            }
            for vector, tensors in shared.items()
        }

    def _walk(
        self,
        vectors: Mapping[str, Mapping[str, T]],
        schema: Schema,
        rates: tuple[Rate, ...] = (0.0,),
    ) -> Iterator[tuple[str, str, Codec, Rate, T]]:
        """Every tensor of every vector in the schema's order, with the codec in charge of it and its rate."""
        coded = self.coded(schema)
        granted = rates if len(rates) > 1 else rates * len(schema.names)
        own, rest = only_rate(self.codec), only_rate(self.rest)
        for vector, tensors in vectors.items():
            for name, rate in zip(schema.names, granted, strict=True):
                if name in coded:
                    yield vector, name, self.codec, own or rate, tensors[name]
                else:
                    yield vector, name, self.rest, rest or rate, tensors[name]

    def _require_rate(self, rate: Rate) -> None:
        offered = self.codec.rates
        fine = (
            rate in offered if isinstance(offered, frozenset) else offered[0] <= rate <= offered[1]
        )
        if not fine:
            name = type(self.codec).__name__.lower()
            raise ConfigError(f"{name} has no {rate:g}-bit rate; it offers {_offer(offered)}")


def only_rate(codec: Codec) -> Rate | None:
    """The rate of a codec that has just one."""
    rates = codec.rates
    return next(iter(rates)) if isinstance(rates, frozenset) and len(rates) == 1 else None


@functools.cache
def entry_bytes(codec: Codec, numel: int, rows: int, rate: Rate) -> int:
    """The bytes of one packet in a message, at most; a policy asks for the same ones again and again."""
    return ENTRY_BYTES + 4 * codec.side_values(numel, rows) + codec.max_bytes(numel, rate)


def as_sent(rate: Rate) -> Rate:
    """The float32 that travels: what a client is granted and what its packets claim must compare equal."""
    return float(np.float32(rate))


def energy_of(flat: Tensor) -> float:
    """The squared norm in float64, so that no square overflows.

    On the CPU by numpy, so that its last bits never depend on threads.
    """
    values = resident_values(flat)
    if isinstance(values, Tensor):
        return float(values.double().square().sum())
    return float(np.add.reduce(np.square(values, dtype=np.float64)))


def _offer(rates: frozenset[int] | tuple[float, float]) -> str:
    if isinstance(rates, frozenset):
        return ", ".join(str(rate) for rate in sorted(rates))
    return f"{rates[0]:g} to {rates[1]:g}"


def _state(shared: Shared, vector: str, name: str) -> Tensor:
    return shared.get(vector, {}).get(name, NOTHING)


def _numbers(shared: Shared) -> dict[str, dict[str, int]]:
    return {
        vector: {name: x.numel() for name, x in tensors.items()}
        for vector, tensors in shared.items()
    }


def _seed(codec: Codec, key: Key, vector: str, name: str) -> int:
    if isinstance(codec, Float32):  # draws nothing
        return 0
    return derive(key.seed, "codec", key.round, key.client, vector, name)
