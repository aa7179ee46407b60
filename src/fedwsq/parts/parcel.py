"""A line over the tensors of one dictionary: coded, sealed as a message, and opened again."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from fedwsq.codecs import CODECS, Codec, Float32, Packet
from fedwsq.codecs.rates import as_sent
from fedwsq.core.errors import ConfigError, MessageError, UpdateError
from fedwsq.core.types import Key, Params, Rate
from fedwsq.parts.integers import Integers
from fedwsq.parts.label import FLOATS, Label, Row, read_label, write_label
from fedwsq.wire import Kind, Line, Message, Schema, Shared, decode, encode
from fedwsq.wire.line import Slot
from fedwsq.wire.message import MAX_TEXT_BYTES

VECTOR = "tensors"  # the only vector of the message

# A byte of the sparsest code stands for so many elements. A vector of zeros may take no bytes at
# all, so the first few million are free, and beyond them a label is filled up with spaces.
ELEMENTS_PER_BYTE = int(8 / min(codec().rates.listed[0] for codec in CODECS.values()))
FREE_ELEMENTS = 2**22


@dataclass(frozen=True)
class Parcel(Line):
    """A line whose label says of each tensor how it travels: coded, in float32, or as integers."""

    label: Label

    @classmethod
    def of(cls, label: Label) -> "Parcel":
        return cls(label.link, Schema(label.shapes), label)

    @cached_property
    def coded(self) -> frozenset[str]:
        return frozenset(row.name for row in self.label.rows if row.coded)

    @cached_property
    def slots(self) -> list[Slot]:
        found = []
        for row in self.label.rows:
            codec = self._codec(row)
            found.append(Slot.of(row.name, codec))
        return found

    @cached_property
    def granted(self) -> tuple[Rate, ...]:
        """The rate of each tensor; a codec that has only one goes by that."""
        (bits,) = self.link.bits.grants
        rate = as_sent(bits)
        rates = []
        for slot in self.slots:
            if isinstance(slot.codec, Integers):
                rates.append(slot.codec.rate)
            else:
                rates.append(rate)
        return tuple(rates)

    def _codec(self, row: Row) -> Codec:
        if row.coded:
            return self.link.codec
        if row.dtype in FLOATS:
            return Float32()
        return Integers(row.dtype)

    def first_states(self) -> Params:
        """The codec's state before anything was sent, of those tensors that have any."""
        return self.init((VECTOR,)).get(VECTOR, {})

    # The sender's end.

    def code(self, tensors: Mapping[str, Tensor], shared: Shared, key: Key) -> dict[str, Packet]:
        """The packet of each tensor."""
        packets = {}
        for item, x in self._walk({VECTOR: tensors}, self.granted):
            x = x.detach()
            # Integers keep their type: float32 holds them exactly only to 2^24.
            if x.is_floating_point():
                x = x.float()
            state = item.state(shared)
            try:
                packet = item.codec.encode(x, state, item.rate, item.seed(key))
            except UpdateError as error:
                raise UpdateError(
                    f"tensor {item.name}: {error}; look for what made them, or clamp them before"
                ) from None
            packets[item.name] = packet._replace(codec=item.codec.wire_id)
        return packets

    def losses(
        self, tensors: Mapping[str, Tensor], packets: dict[str, Packet], shared: Shared, key: Key
    ) -> Params:
        """What the code of each coded tensor lost: the tensor, less what arrives."""
        found = {}
        for item, packet in self._walk({VECTOR: packets}, self.granted):
            if item.name not in self.coded:
                continue
            x = tensors[item.name].detach().float()
            left = x.clone(memory_format=torch.contiguous_format)
            state = item.state(shared)
            item.codec.accumulate(packet, state, item.seed(key), left.view(-1), weight=-1.0)
            found[item.name] = left
        return found

    def seal(self, packets: dict[str, Packet], shared: Shared, key: Key) -> bytes:
        """The message; the state that it was coded with goes along."""
        message = Message(
            Kind.PACK,
            key,
            run=bytes(16),
            states=shared,
            packets={VECTOR: packets},
            text=write_label(self.label),
        )
        data = encode(message, self.schema)
        # So that whoever opens it can tell many zeros from a few bytes that claim the world.
        missing = least_bytes(self.label.span) - len(data)
        if missing > 0:
            message = replace(message, text=message.text + missing * " ")
            data = encode(message, self.schema)
        size = len(message.text.encode())
        if size > MAX_TEXT_BYTES:
            raise ConfigError(
                f"names and shapes take {size} bytes, at most {MAX_TEXT_BYTES} fit; "
                "pack the dictionary in parts"
            )
        return data

    # The receiver's end.

    def open(self, data: bytes | memoryview) -> Params:
        """The tensors, after the checks that a link makes of any message."""
        # Read before without a schema, to see the label; now every section is held against it.
        message = decode(data, self.schema, Kind.PACK)
        self.check(message.packets, (VECTOR,), self.granted)
        self._check_carried(message.states)
        found = self.receive(message.packets, message.states, message.key)[VECTOR]
        return {row.name: _restored(found[row.name], row) for row in self.label.rows}

    def _check_carried(self, states: Shared) -> None:
        """Refuse codec state that the sender's codec cannot have had."""
        if not states.keys() <= {VECTOR}:
            raise MessageError(f"codec state of {list(states)}, expected that of {VECTOR!r}")
        start = self.first_states()
        for name, state in states.get(VECTOR, {}).items():
            if name not in start or start[name].numel() != state.numel():
                raise MessageError(f"tensor {name}: codec state that its codec does not have")


def open_parcel(data: bytes | memoryview) -> Parcel:
    """The parcel that a message says it is; none of its tensors is read yet."""
    message = decode(data, None, Kind.PACK)
    return Parcel.of(read_label(message.text))


def least_bytes(elements: int) -> int:
    """The length below which a message cannot stand for so many elements."""
    return math.ceil((elements - FREE_ELEMENTS) / ELEMENTS_PER_BYTE)


def _restored(x: Tensor, row: Row) -> Tensor:
    """The tensor in its own type."""
    dtype = FLOATS.get(row.dtype)
    if dtype in (None, torch.float32):
        return x
    # Near the top of float16 a level may lie beyond the largest value: it must not become infinite.
    limit = min(torch.finfo(dtype).max, torch.finfo(torch.float32).max)
    return x.clamp(-limit, limit).to(dtype)
