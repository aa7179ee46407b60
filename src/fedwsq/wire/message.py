"""The versioned binary message, written down in `docs/wire-format.md`.

One layout serves all three kinds: a broadcast (shared by all clients of a round), an order (the small head each
client gets on top of it) and a reply. Names and shapes are agreed once, as a `Schema`; a message carries its digest.
`decode` treats its input as hostile: everything is checked against the buffer and the schema before anything is
allocated for it.
"""

import hashlib
import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedwsq.codecs.base import MAX_MAGNITUDE, Packet, rows_of
from fedwsq.core.errors import MessageError
from fedwsq.core.types import Key, Rate, Shapes

MAGIC = b"FWSQ"
VERSION = 1
EVERYONE = 2**64 - 1  # the client field of a broadcast
MAX_NAME_BYTES = 64
MAX_METRICS = 64
MAX_VECTORS = 64
MAX_WEIGHT = 1e12
MAX_RATE = 64
REPLY_METRICS = (
    "loss",
    "steps",
    "lr_sum",
    "train_seconds",
    "codec_seconds",
)  # what every client reports
SPARE_VALUES = 64  # elements that a codec may add to a tensor: a rotation fills its last slice

_HEADER = struct.Struct("<4sHBBQ16s16s16sQQQQddIIII")
_ENTRY = struct.Struct("<BBfIQ")  # codec id, flags, rate, side values, code length
_STATE = struct.Struct("<II")  # tensor index, values
_COUNT = struct.Struct("<I")  # tensors of a vector
_OWN_SCALE = 1
CHECKSUM_BYTES = 16
HEADER_BYTES = _HEADER.size
ENTRY_BYTES = _ENTRY.size

Packets: TypeAlias = dict[str, dict[str, Packet]]  # vector -> tensor -> packet
Shared: TypeAlias = dict[str, dict[str, Tensor]]  # vector -> tensor -> codec state


class Kind(IntEnum):
    """What a message is."""

    BROADCAST = 1
    ORDER = 2
    REPLY = 3


@dataclass(frozen=True)
class Schema:
    """The tensors both ends agreed on: names and shapes in the model's order."""

    shapes: Shapes
    frozen: bytes = (
        b""  # 16 bytes that stand for the model's tensors that never travel; none if all do
    )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Tensor names in order."""
        return tuple(self.shapes)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Elements of each tensor."""
        return {name: math.prod(shape) for name, shape in self.shapes.items()}

    @cached_property
    def digest(self) -> bytes:
        """16 bytes that stand for all names and shapes, and for what is frozen."""
        text = json.dumps([[name, list(shape)] for name, shape in self.shapes.items()])
        return hashlib.blake2b(text.encode() + self.frozen, digest_size=16).digest()


@dataclass(frozen=True)
class Message:
    """One message, decoded. Fields that a kind does not use keep their defaults and cost their fixed bytes."""

    kind: Kind
    key: Key
    run: bytes
    nonce: bytes = bytes(16)
    accepted: int = 0  # order: the last round the server accepted from this client, 0 for none
    weight: float = 0.0  # reply: the share in the mean
    error: float = (
        0.0  # reply: squared error of the code relative to the squared norm of the update
    )
    rates: tuple[
        Rate, ...
    ] = ()  # order: one for all coded tensors, or one for each tensor of the schema
    metrics: Mapping[str, float] = field(default_factory=dict)
    states: Shared = field(default_factory=dict)  # broadcast: the uplink codec's shared state
    packets: Packets = field(default_factory=dict)


def encode(message: Message, schema: Schema) -> bytes:
    """The bytes of `message`; their length is the cost that a run reports."""
    parts: list[bytes] = [np.asarray(message.rates, "<f4").tobytes()]
    for name, value in message.metrics.items():
        parts += [_name_bytes(name), struct.pack("<d", value)]
    index = {name: i for i, name in enumerate(schema.names)}
    for vector, tensors in message.states.items():
        parts += [_name_bytes(vector), _COUNT.pack(len(tensors))]
        for name in sorted(tensors, key=index.__getitem__):
            values = tensors[name]
            parts += [
                _STATE.pack(index[name], values.numel()),
                values.numpy().astype("<f4").tobytes(),
            ]
    for vector, packets in message.packets.items():
        parts += [_name_bytes(vector), _COUNT.pack(len(schema.names))]
        for name in schema.names:
            parts += _packet_bytes(packets[name])
    length = HEADER_BYTES + sum(map(len, parts)) + CHECKSUM_BYTES
    header = _HEADER.pack(
        MAGIC, VERSION, message.kind, 0, length,
        schema.digest, message.run, message.nonce, *message.key, message.accepted, message.weight, message.error,
        len(message.rates), len(message.metrics), len(message.states), len(message.packets),
    )  # fmt: skip
    return b"".join((header, *parts, _checksum(header, *parts)))


def float32_bytes(message: Message, schema: Schema) -> int:
    """How long the message would be with every tensor in float32: what its saving is measured against."""
    metrics = sum(1 + len(name.encode()) + 8 for name in message.metrics)
    tensors = sum(ENTRY_BYTES + 4 * size for size in schema.sizes.values())
    vectors = sum(1 + len(vector.encode()) + _COUNT.size + tensors for vector in message.packets)
    return HEADER_BYTES + 4 * len(message.rates) + metrics + vectors + CHECKSUM_BYTES


def reply_overhead(vectors: tuple[str, ...], metrics: tuple[str, ...] = REPLY_METRICS) -> int:
    """The bytes of a reply besides its tensors."""
    named = sum(1 + len(name.encode()) + 8 for name in metrics)
    return (
        HEADER_BYTES
        + named
        + sum(1 + len(name.encode()) + _COUNT.size for name in vectors)
        + CHECKSUM_BYTES
    )


def decode(
    data: bytes | memoryview,
    schema: Schema | None,
    kind: Kind | None = None,
    run: bytes | None = None,
) -> Message:
    """Read a message, or raise `MessageError` saying which field is wrong.

    Without a schema the structure is checked and tensors are named by position (`fedwsq inspect`).
    """
    fields = _open(data)
    digest, run_id, nonce = fields[5:8]
    if schema is not None and digest != schema.digest:
        frozen = (
            "; frozen weights count, and must be the same at every site" if schema.frozen else ""
        )
        raise MessageError(
            f"foreign schema {digest.hex()}: this run's tensors have digest {schema.digest.hex()}{frozen}"
        )
    if run is not None and run_id != run:
        raise MessageError(f"message of run {run_id.hex()}, not of this run, {run.hex()}")
    if kind is not None and fields[2] != kind:
        raise MessageError(
            f"message is of kind {Kind(fields[2]).name.lower()}, expected {kind.name.lower()}"
        )
    key, accepted, weight, error = Key(*fields[8:11]), fields[11], fields[12], fields[13]
    _require_scale("aggregation weight", weight, MAX_WEIGHT)
    _require_scale("quantization error", error)
    reader = _Reader(memoryview(data)[HEADER_BYTES : len(data) - CHECKSUM_BYTES])
    rates, metrics, states, packets = _sections(reader, schema, fields[14:18])
    if fields[2] == Kind.ORDER and not rates:
        raise MessageError("0 rates: an order has one, or one for each tensor")
    if reader.left:
        raise MessageError(f"{reader.left} trailing bytes after the last tensor")
    return Message(
        Kind(fields[2]), key, run_id, nonce, accepted, weight, error, rates, metrics, states, packets
    )  # fmt: skip


def _open(data: bytes | memoryview) -> tuple[Any, ...]:
    """Check magic, version, length and checksum, and unpack the header."""
    if len(data) < HEADER_BYTES + CHECKSUM_BYTES:
        raise MessageError(
            f"truncated: {len(data)} bytes, a message has at least {HEADER_BYTES + CHECKSUM_BYTES}"
        )
    fields = _HEADER.unpack_from(data)
    magic, version, kind, reserved, length = fields[:5]
    if magic != MAGIC:
        raise MessageError(f"wrong magic {magic!r}: a message starts with {MAGIC!r}")
    if version != VERSION:
        raise MessageError(f"unknown version {version}: this build reads version {VERSION}")
    if length != len(data):
        what = "truncated" if length > len(data) else "trailing bytes"
        raise MessageError(f"{what}: {len(data)} bytes, the header says {length}")
    view = memoryview(data)
    if _checksum(view[:HEADER_BYTES], view[HEADER_BYTES:-CHECKSUM_BYTES]) != view[-CHECKSUM_BYTES:]:
        raise MessageError("bad checksum: the message was damaged on its way")
    if kind not in list(Kind):
        raise MessageError(
            f"unknown kind {kind}: known are {', '.join(f'{k.value} ({k.name.lower()})' for k in Kind)}"
        )
    if reserved:
        raise MessageError(f"reserved byte is {reserved}, must be 0")
    return fields


def _sections(
    reader: "_Reader", schema: Schema | None, counts: Sequence[int]
) -> tuple[tuple[Rate, ...], dict[str, float], Shared, Packets]:
    """The four variable parts, in the order they are written."""
    rates, metrics, states, vectors = counts
    if schema is not None and rates not in (0, 1, len(schema.names)):
        raise MessageError(
            f"{rates} rates: a message has none, one, or one for each of {len(schema.names)} tensors"
        )
    if metrics > MAX_METRICS:
        raise MessageError(f"{metrics} metrics, at most {MAX_METRICS} are allowed")
    if states > MAX_VECTORS:
        raise MessageError(f"{states} vectors of codec state, at most {MAX_VECTORS} are allowed")
    if vectors > MAX_VECTORS:
        raise MessageError(f"{vectors} vectors, at most {MAX_VECTORS} are allowed")
    return (
        tuple(_require_rate(rate) for rate in reader.floats(rates, "rates")),
        _named(metrics, reader, lambda name: reader.metric(name), "metric"),
        _named(
            states, reader, lambda name: _read_states(reader, schema, name), "vector of codec state"
        ),
        _named(vectors, reader, lambda name: _read_packets(reader, schema, name), "vector"),
    )


def _named(count: int, reader: "_Reader", read: Callable[[str], Any], what: str) -> dict[str, Any]:
    """`count` values that each follow their name; a name may not come twice."""
    found: dict[str, Any] = {}
    for _ in range(count):
        name = reader.name(what)
        if name in found:
            raise MessageError(f"{what} {name!r} comes twice")
        found[name] = read(name)
    return found


def _read_states(reader: "_Reader", schema: Schema | None, vector: str) -> dict[str, Tensor]:
    """Codec state of some of the tensors, by ascending index."""
    (count,) = reader.unpack(_COUNT, f"codec state of {vector!r}")
    if schema is not None and count > len(schema.names):
        raise MessageError(
            f"codec state of {vector!r} names {count} tensors, the schema has {len(schema.names)}"
        )
    found: dict[str, Tensor] = {}
    last = -1
    for _ in range(count):
        index, values = reader.unpack(_STATE, f"codec state of {vector!r}")
        if index <= last or (schema is not None and index >= len(schema.names)):
            raise MessageError(
                f"codec state of {vector!r} names tensor {index} after tensor {last}"
            )
        name = schema.names[index] if schema is not None else f"#{index}"
        limit = schema.sizes[name] + SPARE_VALUES if schema is not None else reader.left // 4
        if values > limit:
            raise MessageError(
                f"codec state of {vector!r} {name}: {values} values, at most {limit} are allowed"
            )
        numbers = reader.floats(values, f"codec state of {vector!r} {name}")
        if not all(0 <= number <= MAX_MAGNITUDE for number in numbers):  # NaN fails too
            for number in numbers:
                _require_scale(f"codec state of {vector!r} {name}", number)
        found[name] = torch.tensor(numbers, dtype=torch.float32)
        last = index
    return found


def _read_packets(reader: "_Reader", schema: Schema | None, vector: str) -> dict[str, Packet]:
    """One packet for each tensor of the schema, in its order."""
    (count,) = reader.unpack(_COUNT, f"tensors of {vector!r}")
    if schema is None:
        return {f"#{i}": _read_packet(reader, vector, f"#{i}", None) for i in range(count)}
    if count != len(schema.names):
        raise MessageError(
            f"vector {vector!r} has {count} tensors, the schema has {len(schema.names)}"
        )
    return {
        name: _read_packet(reader, vector, name, schema.sizes[name], rows_of(shape))
        for name, shape in schema.shapes.items()
    }


def _read_packet(
    reader: "_Reader", vector: str, name: str, size: int | None, rows: int = 1
) -> Packet:
    what = f"tensor {name} of {vector!r}"
    codec, flags, rate, sides, length = reader.unpack(_ENTRY, what)
    if flags & ~_OWN_SCALE:
        raise MessageError(f"{what}: unknown flags {flags:#04x}")
    _require_rate(rate, what)
    if size is not None and sides > size + SPARE_VALUES:
        raise MessageError(f"{what}: {sides} side values for {size} elements")
    # The codec's own bound is tighter; this one holds for all, so that no length can exceed what the schema allows.
    if size is not None and length > 8 * (size + SPARE_VALUES) + 64:
        raise MessageError(f"{what}: code of {length} bytes for {size} elements")
    side = reader.floats(sides, f"side values of {what}")
    if not all(0 <= value <= MAX_MAGNITUDE for value in side):  # NaN fails too
        for value in side:
            _require_scale(f"scale of {what}", value)
    code = reader.take(length, f"code of {what}")
    return Packet(
        bytes(code), side, rate, -1 if size is None else size, bool(flags & _OWN_SCALE), codec, rows
    )


class _Reader:
    """A cursor that never runs past its buffer."""

    def __init__(self, view: memoryview) -> None:
        self._view, self._at = view, 0

    @property
    def left(self) -> int:
        return len(self._view) - self._at

    def take(self, count: int, what: str) -> memoryview:
        if count > self.left:
            raise MessageError(f"{what}: {count} bytes announced, {self.left} left in the message")
        self._at += count
        return self._view[self._at - count : self._at]

    def unpack(self, layout: struct.Struct, what: str) -> tuple[Any, ...]:
        return layout.unpack(self.take(layout.size, what))

    def floats(self, count: int, what: str) -> tuple[float, ...]:
        return tuple(np.frombuffer(self.take(4 * count, what), "<f4").tolist()) if count else ()

    def name(self, what: str) -> str:
        (length,) = self.take(1, f"name of a {what}")
        if not 1 <= length <= MAX_NAME_BYTES:
            raise MessageError(f"name of a {what}: {length} bytes, must be 1 to {MAX_NAME_BYTES}")
        try:
            return bytes(self.take(length, f"name of a {what}")).decode()
        except UnicodeDecodeError:
            raise MessageError(f"name of a {what} is not UTF-8") from None

    def metric(self, name: str) -> float:
        (value,) = struct.unpack("<d", self.take(8, f"metric {name!r}"))
        if not abs(value) <= MAX_MAGNITUDE:  # NaN fails too
            raise MessageError(
                f"metric {name!r} is {value}, must be finite and at most {MAX_MAGNITUDE:g} in size"
            )
        return float(value)


def _name_bytes(name: str) -> bytes:
    text = name.encode()
    if not 1 <= len(text) <= MAX_NAME_BYTES:
        raise MessageError(f"name {name!r} has {len(text)} bytes, must have 1 to {MAX_NAME_BYTES}")
    return bytes([len(text)]) + text


def _packet_bytes(packet: Packet) -> list[bytes]:
    flags = _OWN_SCALE if packet.own_scale else 0
    entry = _ENTRY.pack(packet.codec, flags, packet.rate, len(packet.side), len(packet.code))
    side = np.asarray(packet.side, "<f4").tobytes() if packet.side else b""
    return [entry, side, packet.code]


def _require_scale(what: str, value: float, limit: float = MAX_MAGNITUDE) -> None:
    if not 0 <= value <= limit:  # NaN fails both
        raise MessageError(f"{what} is {value}, must be finite, not negative and at most {limit:g}")


def _require_rate(rate: float, what: str = "rates") -> Rate:
    if not 0 < rate <= MAX_RATE:  # NaN fails both
        raise MessageError(f"{what}: rate is {rate}, must be above 0 and at most {MAX_RATE} bits")
    return rate


def _checksum(*parts: bytes | memoryview) -> bytes:
    digest = hashlib.blake2b(digest_size=CHECKSUM_BYTES)
    for part in parts:
        digest.update(part)
    return digest.digest()
