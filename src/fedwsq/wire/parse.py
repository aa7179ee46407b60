"""Reading messages, as if every one of them were hostile.

Everything is checked against the buffer and the schema before anything is allocated for it.
"""

import struct
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedwsq.codecs.base import MAX_MAGNITUDE, Packet
from fedwsq.core.errors import ConfigError, MessageError
from fedwsq.core.types import Key, Rate
from fedwsq.wire.message import (
    CHECKSUM_BYTES,
    COUNT,
    ENTRY,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    MAX_METRICS,
    MAX_NAME_BYTES,
    MAX_RATE,
    MAX_TEXT_BYTES,
    MAX_VECTORS,
    MAX_WEIGHT,
    METRIC,
    OWN_SCALE,
    SPARE_VALUES,
    STATE,
    VERSION,
    Header,
    Kind,
    Message,
    checksum,
)
from fedwsq.wire.schema import Schema

T = TypeVar("T")
KINDS = {kind.value: kind for kind in Kind}


class Place(NamedTuple):
    """A tensor of a vector; put into words only where something is wrong with it."""

    tensor: str
    vector: str

    def __str__(self) -> str:
        return f"tensor {self.tensor} of {self.vector!r}"


class Reader:
    """Takes field after field and never runs past its buffer.

    Every field says `what` it is, or what it is a `part` of, for an error to name.
    """

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._at = 0
        self._end = len(view)

    @property
    def left(self) -> int:
        return self._end - self._at

    def take(self, count: int, what: str | Place, part: str = "") -> memoryview:
        return self._view[self._skip(count, what, part) : self._at]

    def unpack(self, layout: struct.Struct, what: str | Place) -> tuple[Any, ...]:
        return layout.unpack_from(self._view, self._skip(layout.size, what))

    def _skip(self, count: int, what: str | Place, part: str = "") -> int:
        """Go on by so many bytes; where they begin."""
        start = self._at
        if count > self._end - start:
            raise MessageError(
                f"{part}{what}: {count} bytes announced, {self.left} left in the message"
            )
        self._at = start + count
        return start

    def floats(self, count: int, what: str | Place, part: str = "") -> tuple[float, ...]:
        if not count:
            return ()
        return tuple(np.frombuffer(self.take(4 * count, what, part), "<f4").tolist())

    def scales(
        self, count: int, what: str | Place, parts: str = "", each: str = ""
    ) -> tuple[float, ...]:
        """Floats that may not be negative; `each` names one of them in an error."""
        found = self.floats(count, what, parts)
        # One pass over all of them first: a message has thousands, and hardly ever a wrong one.
        if not all(0 <= value <= MAX_MAGNITUDE for value in found):
            for value in found:
                require_scale(f"{each}{what}", value)
        return found

    def text(self, length: int, what: str) -> str:
        try:
            return str(self.take(length, what), "utf-8")
        except UnicodeDecodeError:
            raise MessageError(f"{what} is not UTF-8") from None

    def name(self, what: str) -> str:
        length = self._view[self._skip(1, what)]
        if not 1 <= length <= MAX_NAME_BYTES:
            raise MessageError(f"{what}: {length} bytes, must be 1 to {MAX_NAME_BYTES}")
        return self.text(length, what)

    def metric(self, name: str) -> float:
        value: float
        (value,) = self.unpack(METRIC, f"metric {name!r}")
        if not abs(value) <= MAX_MAGNITUDE:  # NaN fails too
            raise MessageError(
                f"metric {name!r} is {value}, must be finite and at most {MAX_MAGNITUDE:g} in size"
            )
        return value


def require_scale(what: str, value: float, limit: float = MAX_MAGNITUDE) -> None:
    if not 0 <= value <= limit:  # NaN fails both
        raise MessageError(f"{what} is {value}, must be finite, not negative and at most {limit:g}")


def require_rate(rate: float, what: str | Place = "rates") -> Rate:
    if not 0 < rate <= MAX_RATE:  # NaN fails both
        raise MessageError(f"{what}: rate is {rate}, must be above 0 and at most {MAX_RATE} bits")
    return rate


class Opened(NamedTuple):
    """An undamaged message of which only the header was read."""

    data: bytes | memoryview
    header: Header

    @property
    def kind(self) -> Kind:
        return KINDS[self.header.kind]


def kind_of(data: bytes | memoryview) -> Kind:
    """What an undamaged message is, without reading its sections."""
    return open_message(data).kind


def decode(
    data: bytes | memoryview | Opened,
    schema: Schema | None,
    kind: Kind | None = None,
    run: bytes | None = None,
) -> Message:
    """Read a message, or raise `MessageError` saying which field is wrong.

    Without a schema the structure is checked and tensors are named by position: `fedwsq inspect`,
    and a hello, which is there to say in what the two ends differ.
    """
    if not isinstance(schema, Schema | None):
        raise ConfigError(
            f"schema is of type {type(schema).__name__}, must be a fedwsq Schema, or None to look "
            "at the structure alone"
        )
    opened = data if isinstance(data, Opened) else open_message(data)
    header = opened.header
    _require_expected(opened, schema, kind, run)
    _require_counts(header, schema)

    reader = Reader(memoryview(opened.data)[HEADER_BYTES:-CHECKSUM_BYTES])
    message = Message(
        kind=opened.kind,
        key=Key(header.seed, header.round, header.client),
        run=header.run,
        nonce=header.nonce,
        agreement=header.agreement,
        accepted=header.accepted,
        weight=header.weight,
        error=header.error,
        # The sections, in the order they are written.
        rates=tuple(require_rate(rate) for rate in reader.floats(header.rates, "rates")),
        metrics=_named(header.metrics, reader, reader.metric, "metric"),
        states=_named(
            header.states,
            reader,
            lambda vector: _read_states(reader, schema, vector),
            "vector of codec state",
        ),
        packets=_named(
            header.vectors, reader, lambda vector: _read_packets(reader, schema, vector), "vector"
        ),
        text=reader.text(header.text, "text"),
    )
    if reader.left:
        raise MessageError(f"{reader.left} trailing bytes after the last section")
    return message


def open_message(data: bytes | memoryview) -> Opened:
    """Check magic, version, length and checksum, and unpack the header."""
    require_bytes(data, "a message is")
    least = HEADER_BYTES + CHECKSUM_BYTES
    # Older versions had shorter headers: say so before anything is read at an offset.
    if len(data) >= 6 and bytes(data[:4]) == MAGIC:
        (version,) = struct.unpack_from("<H", data, 4)
        if version != VERSION:
            raise MessageError(f"unknown version {version}: this build reads version {VERSION}")
    if len(data) < least:
        raise MessageError(f"truncated: {len(data)} bytes, a message has at least {least}")

    header = Header(*HEADER.unpack_from(data))
    if header.magic != MAGIC:
        raise MessageError(f"wrong magic {header.magic!r}: a message starts with {MAGIC!r}")
    if header.length != len(data):
        what = "truncated" if header.length > len(data) else "trailing bytes"
        raise MessageError(f"{what}: {len(data)} bytes, the header says {header.length}")
    view = memoryview(data)
    found = checksum(view[:HEADER_BYTES], view[HEADER_BYTES:-CHECKSUM_BYTES])
    if found != view[-CHECKSUM_BYTES:]:
        raise MessageError("bad checksum: the message was damaged on its way")
    if header.kind not in KINDS:
        known = ", ".join(f"{kind.value} ({kind.name.lower()})" for kind in Kind)
        raise MessageError(f"unknown kind {header.kind}: known are {known}")
    if header.reserved:
        raise MessageError(f"reserved byte is {header.reserved}, must be 0")
    return Opened(data, header)


def require_bytes(data: object, where: str) -> None:
    try:
        memoryview(data)  # type: ignore[arg-type]
    except TypeError:
        raise MessageError(f"{where} bytes, not {type(data).__name__}") from None


def _require_expected(
    opened: Opened, schema: Schema | None, kind: Kind | None, run: bytes | None
) -> None:
    """Refuse a message of other tensors, another run or another kind, or with absurd numbers."""
    header = opened.header
    if schema is not None and header.schema != schema.digest:
        frozen = "; frozen weights count, and must be the same at every site"
        raise MessageError(
            f"foreign schema {header.schema.hex()}: this run's tensors have digest "
            f"{schema.digest.hex()}{frozen if schema.frozen else ''}"
        )
    if run is not None and header.run != run:
        raise MessageError(f"message of run {header.run.hex()}, not of this run, {run.hex()}")
    if kind is not None and header.kind != kind:
        found = opened.kind.name.lower()
        raise MessageError(f"message is of kind {found}, expected {kind.name.lower()}")
    require_scale("aggregation weight", header.weight, MAX_WEIGHT)
    require_scale("quantization error", header.error)


def _require_counts(header: Header, schema: Schema | None) -> None:
    """Refuse more of anything than a message may have, before any of it is read."""
    if schema is not None and header.rates not in (0, 1, len(schema.names)):
        raise MessageError(
            f"{header.rates} rates: a message has none, one, or one for each of "
            f"{len(schema.names)} tensors"
        )
    if header.kind == Kind.ORDER and not header.rates:
        raise MessageError("0 rates: an order has one, or one for each tensor")
    if header.metrics > MAX_METRICS:
        raise MessageError(f"{header.metrics} metrics, at most {MAX_METRICS} are allowed")
    if header.states > MAX_VECTORS:
        raise MessageError(
            f"{header.states} vectors of codec state, at most {MAX_VECTORS} are allowed"
        )
    if header.vectors > MAX_VECTORS:
        raise MessageError(f"{header.vectors} vectors, at most {MAX_VECTORS} are allowed")
    if header.text > MAX_TEXT_BYTES:
        raise MessageError(f"{header.text} bytes of text, at most {MAX_TEXT_BYTES} are allowed")


def _named(count: int, reader: Reader, read: Callable[[str], T], what: str) -> dict[str, T]:
    """`count` values that each follow their name; a name may not come twice."""
    found: dict[str, T] = {}
    name_of = f"name of a {what}"
    for _ in range(count):
        name = reader.name(name_of)
        if name in found:
            raise MessageError(f"{what} {name!r} comes twice")
        found[name] = read(name)
    return found


def _read_states(reader: Reader, schema: Schema | None, vector: str) -> dict[str, Tensor]:
    """Codec state of some of the tensors, by ascending index."""
    what = f"codec state of {vector!r}"
    (count,) = reader.unpack(COUNT, what)
    if schema is not None and count > len(schema.names):
        raise MessageError(f"{what} names {count} tensors, the schema has {len(schema.names)}")
    found: dict[str, Tensor] = {}
    last = -1
    for _ in range(count):
        index, values = reader.unpack(STATE, what)
        if index <= last or (schema is not None and index >= len(schema.names)):
            raise MessageError(f"{what} names tensor {index} after tensor {last}")
        last = index
        name = f"#{index}"
        limit = reader.left // 4
        if schema is not None:
            name = schema.names[index]
            limit = schema.sizes[name] + SPARE_VALUES
        if values > limit:
            raise MessageError(f"{what} {name}: {values} values, at most {limit} are allowed")
        numbers = reader.scales(values, f"{what} {name}")
        found[name] = torch.tensor(numbers, dtype=torch.float32)
    return found


def _read_packets(reader: Reader, schema: Schema | None, vector: str) -> dict[str, Packet]:
    """One packet for each tensor of the schema, in its order."""
    (count,) = reader.unpack(COUNT, f"tensors of {vector!r}")
    if schema is None:
        places = (Place(f"#{index}", vector) for index in range(count))
        return {place.tensor: _read_packet(reader, place) for place in places}
    if count != len(schema.names):
        raise MessageError(
            f"vector {vector!r} has {count} tensors, the schema has {len(schema.names)}"
        )
    found: dict[str, Packet] = {}
    for name, size in schema.sizes.items():
        found[name] = _read_packet(reader, Place(name, vector), size, schema.rows[name])
    return found


def _read_packet(reader: Reader, what: Place, size: int | None = None, rows: int = 1) -> Packet:
    """`size` is the number of elements, where it is known."""
    codec, flags, rate, sides, length = reader.unpack(ENTRY, what)
    if flags & ~OWN_SCALE:
        raise MessageError(f"{what}: unknown flags {flags:#04x}")
    require_rate(rate, what)
    # The codec's own bounds are tighter; these hold for all, so that no count can exceed what the
    # schema allows.
    if size is not None and sides > size + SPARE_VALUES:
        raise MessageError(f"{what}: {sides} side values for {size} elements")
    if size is not None and length > 8 * (size + SPARE_VALUES) + 64:
        raise MessageError(f"{what}: code of {length} bytes for {size} elements")
    side = reader.scales(sides, what, "side values of ", "scale of ") if sides else ()
    code = bytes(reader.take(length, what, "code of "))
    numel = -1 if size is None else size
    return Packet(code, side, rate, numel, bool(flags & OWN_SCALE), codec, rows)
