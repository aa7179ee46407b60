"""A link over the tensors of one model: the one place where algorithm, codec and bits meet."""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwsq.codecs import Codec, Float32
from fedwsq.codecs.base import MAX_MAGNITUDE, Extent, Packet, extent_of, flat_values, on_gpu
from fedwsq.codecs.bits import Request
from fedwsq.codecs.measure import normal_error
from fedwsq.codecs.rates import as_sent, spread_rates
from fedwsq.core.errors import ConfigError, MessageError, UpdateError
from fedwsq.core.seeds import derive
from fedwsq.core.types import Channel, Key, Params, Rate, Vectors
from fedwsq.wire.link import SELECTS, Link
from fedwsq.wire.message import ENTRY_BYTES, EVERYONE, Packets, Shared, reply_overhead
from fedwsq.wire.schema import Schema

T = TypeVar("T")
EXACT = Float32()
NOTHING = torch.empty(0)  # the shared state of a tensor that has none
SMALL = 2**12  # elements; tensors that are exact and no larger are worked on together
REMEMBERED = 64  # lists of items; a policy may grant something new to every client
ENTRIES = 2**13  # lengths of packets: a few dozen kinds of tensors at every rate of some policy
# vector -> tensor -> the side values of every accepted packet
SideValues = dict[str, dict[str, list[tuple[float, ...]]]]


class Sent(NamedTuple):
    """What a line made of some vectors."""

    packets: Packets
    error: float  # squared, relative to the squared norm
    residuals: Vectors  # what the code lost, of every lossy tensor; only with error feedback


class Slot(NamedTuple):
    """A tensor of the schema, and the codec in charge of it."""

    name: str
    codec: Codec
    only_rate: Rate | None  # of a codec that has just one, as it travels

    @classmethod
    def of(cls, name: str, codec: Codec) -> "Slot":
        only = codec.rates.only
        return cls(name, codec, None if only is None else as_sent(only))


class Packed(NamedTuple):
    """A tensor in float32."""

    packet: Packet
    energy: float  # its squared norm


@dataclass(frozen=True)
class Item:
    """One tensor of one vector at one rate: all that is known before there are values."""

    vector: str
    name: str
    codec: Codec
    rate: Rate
    size: int
    rows: int

    def __str__(self) -> str:
        return f"tensor {self.name} of {self.vector!r}"

    @cached_property
    def exact(self) -> bool:
        """Whether it arrives as it was sent."""
        return isinstance(self.codec, Float32)

    @cached_property
    def small(self) -> bool:
        """Whether it costs more to turn to it than to work on it: norms and biases."""
        # What a subclass makes of its values is its own affair.
        return type(self.codec) is Float32 and self.size <= SMALL

    @cached_property
    def head(self) -> tuple[int, Rate, int]:
        """What its packet must say of itself: codec, rate, how many side values."""
        return self.codec.wire_id, self.rate, self.sides

    @cached_property
    def sides(self) -> int:
        """How many side values its packet has."""
        return self.codec.side_values(self.size, self.rows)

    @cached_property
    def lengths(self) -> range:
        """What its code may have, in bytes."""
        most = self.codec.max_bytes(self.size, self.rate)
        return range(most if self.codec.rates.fixed_length else 0, most + 1)

    def state(self, shared: Shared) -> Tensor:
        """What both ends share before anything is coded."""
        return shared.get(self.vector, {}).get(self.name, NOTHING)

    def seed(self, key: Key) -> int:
        """Where the code's randomness starts: the same at both ends, and sent by nobody."""
        if not self.codec.draws:
            return 0
        return derive(key.seed, "codec", key.round, key.client, self.vector, self.name)


@dataclass(frozen=True)
class Line:
    """`Line(link, schema)` codes, checks and decodes the vectors of a model with that schema."""

    link: Link
    schema: Schema

    @cached_property
    def coded(self) -> frozenset[str]:
        """The tensors that the link's codec takes."""
        names = SELECTS[self.link.select](self.schema.shapes)
        if not names and not isinstance(self.link.codec, Float32):
            raise ConfigError(
                f'select = "{self.link.select}" chooses no tensor of this model, so nothing would '
                'be coded; use "weights" or "all", for example uplink.select=weights'
            )
        return frozenset(names)

    @cached_property
    def slots(self) -> list[Slot]:
        """Who codes what, in the schema's order."""
        found = []
        for name in self.schema.names:
            codec = self.link.codec if name in self.coded else self.link.rest
            found.append(Slot.of(name, codec))
        return found

    @cached_property
    def coded_sizes(self) -> dict[str, int]:
        """The elements of each tensor that the link's codec takes."""
        return {name: size for name, size in self.schema.sizes.items() if name in self.coded}

    @cached_property
    def lossy(self) -> bool:
        """Whether any tensor may arrive changed."""
        return any(not isinstance(slot.codec, Float32) for slot in self.slots)

    # Before a round: what is shared, and what each client is granted.

    def init(self, vectors: tuple[str, ...]) -> Shared:
        """The codec's shared state before the first round, for those tensors that have any."""
        coded = self.coded  # refuses a select that takes nothing, even of no tensors
        states: dict[str, Tensor] = {}
        for name, size in self.schema.sizes.items():
            if name not in coded:
                continue
            state = self.link.codec.init(size, self.schema.rows[name])
            if state.numel():
                states[name] = state
        if not states:
            return {}
        return {vector: dict(states) for vector in vectors}

    def grant(
        self,
        key: Key,
        channel: Channel | None,
        shared: Shared,
        vectors: tuple[str, ...] = ("delta",),
        seconds_before_upload: float = 0.0,
    ) -> tuple[Rate, ...] | None:
        """What the bit policy grants this client, as an order carries it; None: it sits out."""
        link = self.link
        coded = self.coded
        granted = link.bits(
            Request(
                key,
                channel,
                self.coded_sizes,
                shared.get("delta", {}),
                link.codec.rates,
                lambda rates: self.reply_bytes(rates, vectors),
                lambda name, rate: len(vectors) * self.tensor_bytes(name, rate),
                lambda rate: normal_error(link.codec, rate),
                seconds_before_upload,
            )
        )
        if granted is None:
            return None
        if not isinstance(granted, Mapping):
            link.require_rate(granted)
            return (as_sent(granted),)

        if granted.keys() != coded:
            odd = ", ".join(sorted(granted.keys() ^ coded))
            raise ConfigError(
                f"bits for each tensor must name exactly the coded ones; these differ: {odd}"
            )
        for rate in granted.values():
            link.require_rate(rate)
        rest = link.rest.rates.only
        assert rest is not None  # the link saw to it
        return tuple(as_sent(granted.get(name, rest)) for name in self.schema.names)

    def rates(self, granted: tuple[Rate, ...]) -> tuple[Rate, ...]:
        """One for each tensor of the schema, from what an order carries."""
        if len(granted) > 1:
            return granted
        if self.link.spread == "elements":
            return granted * len(self.slots)
        (mean,) = granted
        each = spread_rates(self.coded_sizes, mean, self.link.codec.rates)
        return tuple(as_sent(each.get(name, mean)) for name in self.schema.names)

    def reply_bytes(self, rates: Rate | Mapping[str, Rate], vectors: tuple[str, ...]) -> int:
        """The length of a whole reply; at most, where a code's length depends on the data."""
        tensors = 0
        if not isinstance(rates, Mapping):
            rates = dict(zip(self.schema.names, self.rates((rates,)), strict=True))
        for slot in self.slots:
            asked = rates.get(slot.name, 0.0)
            rows = self.schema.rows[slot.name]
            size = self.schema.sizes[slot.name]
            tensors += entry_bytes(slot.codec, size, rows, slot.only_rate or asked)
        return reply_overhead(vectors) + len(vectors) * tensors

    def tensor_bytes(self, name: str, rate: Rate) -> int:
        """The bytes of one coded tensor in a vector; at most, as those of a reply."""
        codec = self.link.codec
        size = self.schema.sizes[name]
        rows = self.schema.rows[name]
        return entry_bytes(codec, size, rows, codec.rates.only or rate)

    def granted_bytes(self, granted: tuple[Rate, ...], vectors: tuple[str, ...]) -> int:
        """The same for rates as an order carries them."""
        if len(granted) == 1:
            return self.reply_bytes(granted[0], vectors)
        return self.reply_bytes(dict(zip(self.schema.names, granted, strict=True)), vectors)

    def mean_bits(self, granted: tuple[Rate, ...]) -> float:
        """Bits a coded parameter at the granted rates; of any parameter where none is coded."""
        if len(granted) == 1:
            return granted[0]
        counted = self.coded or self.schema.names
        bits = 0.0
        elements = 0
        for name, rate in zip(self.schema.names, granted, strict=True):
            if name in counted:
                bits += rate * self.schema.sizes[name]
                elements += self.schema.sizes[name]
        return bits / elements

    # The sender's end.

    def send(
        self,
        vectors: Vectors,
        shared: Shared,
        key: Key,
        granted: tuple[Rate, ...],
        residuals: Vectors | None = None,
    ) -> Sent:
        """Code every tensor, on top of what was lost before, and measure what the code lost."""
        packets: Packets = {vector: {} for vector in vectors}
        left: Vectors = {vector: {} for vector in vectors} if self.link.error_feedback else {}
        small = {vector: self._pack_small(vector, vectors[vector]) for vector in vectors}
        lost = 0.0
        energy = 0.0
        for item, x in self._walk(vectors, granted):
            packed = small[item.vector].get(item.name)
            if packed is not None:
                packets[item.vector][item.name] = packed.packet
                energy += packed.energy
                continue

            x = x.detach().to(torch.float32)
            if residuals and item.name in residuals.get(item.vector, {}):
                x = x + residuals[item.vector][item.name].to(x.device)
            state = item.state(shared)
            seed = item.seed(key)
            try:
                packet = item.codec.encode(x, state, item.rate, seed)
            except UpdateError as error:
                # Which client and which round it was, is said by whoever hears of it.
                where = f"{item.vector} {item.name}"
                if key.client == EVERYONE:
                    where = f"the server, round {key.round}, {where}"
                raise UpdateError(f"{where}: {error}; lower the learning rate or clip") from None
            packets[item.vector][item.name] = packet._replace(codec=item.codec.wire_id)

            energy += energy_of(x)
            if item.exact:
                continue
            residual = x.flatten().clone()
            item.codec.accumulate(packet, state, seed, residual, -1.0)
            lost += energy_of(residual)
            if self.link.error_feedback:
                left[item.vector][item.name] = residual.view(x.shape).cpu()
        lost_share = min(lost / energy, MAX_MAGNITUDE) if energy else 0.0
        return Sent(packets, lost_share, left)

    def _pack_small(self, vector: str, tensors: Params) -> dict[str, Packed]:
        """The small tensors, as their codec packs them; what is not plainly sane is left to it."""
        items = [item for item in self.items(vector) if item.small]
        if not items or on_gpu(tensors[items[0].name]):
            return {}
        values = flat_values(torch.cat([tensors[item.name].flatten() for item in items]))
        squares = np.square(values, dtype=np.float64)
        code = values.astype("<f4", copy=False).tobytes()

        found: dict[str, Packed] = {}
        at = 0
        for item in items:
            end = at + item.size
            energy = float(np.add.reduce(squares[at:end]))
            if energy <= MAX_MAGNITUDE:  # NaN fails too
                packet = Packet(code[4 * at : 4 * end], (), item.rate, item.size, rows=item.rows)
                found[item.name] = Packed(packet, energy)
            at = end
        return found

    # The receiver's end.

    def check(self, packets: Packets, vectors: tuple[str, ...], granted: tuple[Rate, ...]) -> None:
        """Refuse packets that this line, asked for these vectors at these rates, does not send."""
        if tuple(packets) != vectors:
            raise MessageError(f"message carries {list(packets)}, expected {list(vectors)}")
        small: list[bytes] = []
        for item, packet in self._walk(packets, granted):
            head = (packet.codec, packet.rate, len(packet.side))
            if head != item.head or len(packet.code) not in item.lengths:
                raise MessageError(f"{item}: {_what_is_wrong(packet, item)}")
            if item.small:
                small.append(packet.code)
            else:
                _check_code(packet, item)
        try:
            EXACT.check_values(b"".join(small))
        except MessageError:
            # Together they only say that something is wrong; one by one, which it is.
            for item, packet in self._walk(packets, granted):
                _check_code(packet, item)

    def check_states(self, states: Shared, vectors: tuple[str, ...]) -> None:
        """Refuse codec state that does not fit this link's codec and tensors."""
        start = self.init(vectors)
        if _lengths(states) != _lengths(start):
            raise MessageError(
                "the broadcast's codec state is not that of this run's codec and tensors"
            )
        # A codec that calibrates itself starts from 0; all others never reach it.
        may_be_zero = any(not x.all() for tensors in start.values() for x in tensors.values())
        positive = all((x > 0).all() for tensors in states.values() for x in tensors.values())
        if not may_be_zero and not positive:
            raise MessageError("the broadcast's codec state has a scale of 0")

    def extents(self, packets: Packets, shared: Shared, key: Key) -> dict[str, Extent]:
        """How large each vector is once decoded; nothing is kept of it."""
        found: dict[str, Extent] = {}
        for vector, tensors in packets.items():
            items = self.items(vector)
            small = b"".join([tensors[item.name].code for item in items if item.small])
            each = [extent_of(np.frombuffer(small, "<f4"))]
            for item in items:
                if not item.small:
                    packet = tensors[item.name]
                    each.append(item.codec.extent(packet, item.state(shared), item.seed(key)))
            largest = float(np.max([extent.largest for extent in each]))  # NaN if any is
            found[vector] = Extent(largest, sum(extent.energy for extent in each))
        return found

    def receive(self, packets: Packets, shared: Shared, key: Key) -> Vectors:
        """Decode what the other end sent."""
        vectors: Vectors = {vector: {} for vector in packets}
        for item, packet in self._walk(packets):
            flat = item.codec.decode(packet, item.state(shared), item.seed(key))
            vectors[item.vector][item.name] = flat.reshape(self.schema.shapes[item.name])
        return vectors

    def accumulate(
        self, packets: Packets, shared: Shared, key: Key, out: Vectors, weight: float
    ) -> None:
        """`out += weight * received`."""
        sums = Sums(self, out)
        sums.add(packets, shared, key, weight)
        sums.settle()

    def fold(self, shared: Shared, sides: SideValues) -> Shared:
        """The shared state after a round, from the side values of its accepted packets."""
        after: Shared = {}
        for vector, states in shared.items():
            found = sides.get(vector, {})
            after[vector] = {
                name: self.link.codec.fold(state, found.get(name, []))
                for name, state in states.items()
            }
        return after

    def _walk(
        self, vectors: Mapping[str, Mapping[str, T]], granted: tuple[Rate, ...] = (0.0,)
    ) -> Iterator[tuple[Item, T]]:
        """Every tensor of every vector in the schema's order, with its codec and its rate."""
        for vector, tensors in vectors.items():
            for item in self.items(vector, granted):
                yield item, tensors[item.name]

    def items(self, vector: str, granted: tuple[Rate, ...] = (0.0,)) -> list[Item]:
        """The tensors of a vector at the granted rates, in the schema's order."""
        return self._items(vector, granted)

    @cached_property
    def _items(self) -> Callable[[str, tuple[Rate, ...]], list[Item]]:
        # Most clients have what the one before them had.
        return functools.lru_cache(maxsize=REMEMBERED)(self._make_items)

    def _make_items(self, vector: str, granted: tuple[Rate, ...]) -> list[Item]:
        found = []
        for slot, rate in zip(self.slots, self.rates(granted), strict=True):
            size = self.schema.sizes[slot.name]
            rows = self.schema.rows[slot.name]
            at = slot.only_rate or rate
            found.append(Item(vector, slot.name, slot.codec, at, size, rows))
        return found


class Sums:
    """sum(weight * received), client after client; at most one large tensor is ever unpacked.

    The small tensors of a vector lie side by side until `settle` puts them where they belong.
    """

    def __init__(self, line: Line, vectors: Vectors) -> None:
        self.vectors = vectors
        self._large: dict[str, list[tuple[Item, Tensor]]] = {}
        self._small: dict[str, list[str]] = {}
        self._sums: dict[str, NDArray[np.float32]] = {}
        for vector, tensors in vectors.items():
            items = line.items(vector)
            large = [item for item in items if not item.small]
            self._large[vector] = [(item, tensors[item.name].view(-1)) for item in large]
            self._small[vector] = [item.name for item in items if item.small]
            flat = [flat_values(tensors[name]) for name in self._small[vector]]
            self._sums[vector] = np.concatenate([np.empty(0, np.float32), *flat])

    def add(self, packets: Packets, shared: Shared, key: Key, weight: float) -> None:
        for vector, tensors in packets.items():
            code = b"".join([tensors[name].code for name in self._small[vector]])
            # Two roundings, as everywhere.
            self._sums[vector] += np.frombuffer(code, "<f4") * np.float32(weight)
            for item, into in self._large[vector]:
                packet = tensors[item.name]
                item.codec.accumulate(packet, item.state(shared), item.seed(key), into, weight)

    def settle(self) -> None:
        """Bring `vectors` up to date."""
        for vector, names in self._small.items():
            at = 0
            for name in names:
                into = self.vectors[vector][name]
                found = self._sums[vector][at : at + into.numel()]
                into.copy_(torch.from_numpy(found).view(into.shape))
                at += into.numel()


@functools.lru_cache(maxsize=ENTRIES)
def entry_bytes(codec: Codec, numel: int, rows: int, rate: Rate) -> int:
    """The bytes of one packet in a message, at most; a policy asks for the same again and again."""
    return ENTRY_BYTES + 4 * codec.side_values(numel, rows) + codec.max_bytes(numel, rate)


def energy_of(x: Tensor) -> float:
    """The squared norm in float64, so that no square overflows.

    On the CPU by numpy, so that its last bits never depend on threads.
    """
    if on_gpu(x):
        return float(x.reshape(-1).double().square().sum())
    return float(np.add.reduce(np.square(flat_values(x), dtype=np.float64)))


def _check_code(packet: Packet, item: Item) -> None:
    try:
        item.codec.check(packet)
    except MessageError as error:
        raise MessageError(f"{item}: {error}") from None


def _what_is_wrong(packet: Packet, item: Item) -> str:
    """With a packet that is not what its item says."""
    if packet.codec != item.codec.wire_id:
        return f"codec id {packet.codec}, this link uses {item.codec.wire_id}"
    if packet.rate != item.rate:
        return f"rate {packet.rate:g}, the order was for {item.rate:g}"
    if len(packet.side) != item.sides:
        return f"{len(packet.side)} side values, such a packet has {item.sides}"
    most = item.lengths[-1]
    return f"code of {len(packet.code)} bytes, {item.rate:g} bits make {most}"


def _lengths(shared: Shared) -> dict[str, dict[str, int]]:
    return {
        vector: {name: x.numel() for name, x in states.items()} for vector, states in shared.items()
    }
