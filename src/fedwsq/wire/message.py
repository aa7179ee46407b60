"""The versioned binary message, written down in `docs/wire-format.md`.

One layout serves all kinds: a broadcast (shared by all clients of a round), an order (the small
head that each client gets on top of it) and a reply. Names and shapes are agreed once, as a
`Schema`; a message carries its digest, and the digest of the settings that both ends must share.
This file writes; `parse` reads.
"""

import functools
import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, TypeAlias

import numpy as np
from torch import Tensor

from fedwsq.codecs.base import Packet
from fedwsq.core.errors import MessageError
from fedwsq.core.types import Key, Rate
from fedwsq.wire.schema import Schema

MAGIC = b"FWSQ"
VERSION = 2
EVERYONE = 2**64 - 1  # the client field of a broadcast
MAX_NAME_BYTES = 64
MAX_METRICS = 64
MAX_VECTORS = 64
MAX_TEXT_BYTES = 2**20
MAX_WEIGHT = 1e12
MAX_RATE = 64
REPLY_METRICS = ("loss", "steps", "lr_sum", "train_seconds", "codec_seconds")  # of every client
SPARE_VALUES = 64  # elements that a codec may add to a tensor: a rotation fills its last slice

HEADER = struct.Struct("<4sHBBQ16s16s16s16sQQQQddIIIII")
ENTRY = struct.Struct("<BBfIQ")  # codec id, flags, rate, side values, code length
STATE = struct.Struct("<II")  # tensor index, values
COUNT = struct.Struct("<I")  # tensors of a vector
METRIC = struct.Struct("<d")
OWN_SCALE = 1
CHECKSUM_BYTES = 16
HEADER_BYTES = HEADER.size
ENTRY_BYTES = ENTRY.size

Packets: TypeAlias = dict[str, dict[str, Packet]]  # vector -> tensor -> packet
Shared: TypeAlias = dict[str, dict[str, Tensor]]  # vector -> tensor -> codec state


class Kind(IntEnum):
    """What a message is. Orders go to a client on top of a broadcast; each has its own answer."""

    BROADCAST = 1
    ORDER = 2  # train; answered by REPLY, or FORGOT
    REPLY = 3
    EVALUATE = 4  # score the broadcast model on the client's own test data; answered by SCORES
    SCORE = 5  # score it on one batch of the server's data, which starts at `client`; SCORES
    SCORES = 6
    HELLO = 7  # the server's settings as text; answered by WELCOME
    WELCOME = 8
    FORGOT = 9  # the client has no memory of the round that the order names as accepted
    PACK = 10  # a dictionary of tensors that stands for itself; the text says what is in it
    PHASE = 11  # a phase of a round that counts; the text says which; answered by SAID, or FORGOT
    SAID = 12


@dataclass(frozen=True)
class Message:
    """One message, decoded. What a kind does not use keeps its default and costs fixed bytes."""

    kind: Kind
    key: Key
    run: bytes
    nonce: bytes = bytes(16)
    agreement: bytes = bytes(16)  # digest of the settings that both ends must share
    accepted: int = 0  # order: the last round the server accepted from this client, 0 for none
    weight: float = 0.0  # reply: the share in the mean
    error: float = 0.0  # reply: squared error of the code over the squared norm of the update
    rates: tuple[Rate, ...] = ()  # order: one for all coded tensors, or one for each of the schema
    metrics: Mapping[str, float] = field(default_factory=dict)
    states: Shared = field(default_factory=dict)  # broadcast: the uplink codec's shared state
    packets: Packets = field(default_factory=dict)
    text: str = ""  # hello, welcome, scores, pack, phase, said: JSON


class Header(NamedTuple):
    """The fixed part, in the order of its bytes."""

    magic: bytes
    version: int
    kind: int
    reserved: int
    length: int
    schema: bytes
    agreement: bytes
    run: bytes
    nonce: bytes
    seed: int
    round: int
    client: int
    accepted: int
    weight: float
    error: float
    rates: int
    metrics: int
    states: int
    vectors: int
    text: int


def encode(message: Message, schema: Schema) -> bytes:
    """The bytes of `message`; their length is the cost that a run reports."""
    parts = [np.asarray(message.rates, "<f4").tobytes()]
    for name, value in message.metrics.items():
        parts += [_name_bytes(name), METRIC.pack(value)]
    for vector, states in message.states.items():
        parts += [_name_bytes(vector), COUNT.pack(len(states))]
        for name in sorted(states, key=schema.index.__getitem__):
            parts += _state_bytes(schema.index[name], states[name])
    parts += _vector_parts(message.packets, schema)
    text = message.text.encode()
    parts.append(text)

    header = HEADER.pack(
        *Header(
            magic=MAGIC,
            version=VERSION,
            kind=message.kind,
            reserved=0,
            length=HEADER_BYTES + sum(map(len, parts)) + CHECKSUM_BYTES,
            schema=schema.digest,
            agreement=message.agreement,
            run=message.run,
            nonce=message.nonce,
            seed=message.key.seed,
            round=message.key.round,
            client=message.key.client,
            accepted=message.accepted,
            weight=message.weight,
            error=message.error,
            rates=len(message.rates),
            metrics=len(message.metrics),
            states=len(message.states),
            vectors=len(message.packets),
            text=len(text),
        )
    )
    return b"".join((header, *parts, checksum(header, *parts)))


def order_bytes(rates: int) -> int:
    """The length of an order that carries this many rates and no vectors."""
    return HEADER_BYTES + 4 * rates + CHECKSUM_BYTES


def vectors_bytes(packets: Packets, schema: Schema) -> int:
    """The length of the section that carries these vectors."""
    return sum(len(part) for part in _vector_parts(packets, schema))


def float32_bytes(message: Message, schema: Schema) -> int:
    """How long it would be with every tensor in float32: what its saving is measured against."""
    around = reply_overhead(tuple(message.packets), tuple(message.metrics))
    return around + 4 * len(message.rates) + len(message.packets) * _float32_tensors(schema)


def float32_reply_bytes(vectors: tuple[str, ...], schema: Schema) -> int:
    """The length of a reply with every tensor in float32."""
    return reply_overhead(vectors) + len(vectors) * _float32_tensors(schema)


def _float32_tensors(schema: Schema) -> int:
    """The bytes of one vector's tensors in float32."""
    return ENTRY_BYTES * len(schema.names) + 4 * schema.elements


@functools.lru_cache(maxsize=16)
def reply_overhead(vectors: tuple[str, ...], metrics: tuple[str, ...] = REPLY_METRICS) -> int:
    """The bytes of a reply besides its tensors."""
    for_metrics = sum(1 + len(name.encode()) + 8 for name in metrics)
    for_vectors = sum(1 + len(name.encode()) + COUNT.size for name in vectors)
    return HEADER_BYTES + for_metrics + for_vectors + CHECKSUM_BYTES


@functools.lru_cache(maxsize=64)
def _name_bytes(name: str) -> bytes:
    text = name.encode()
    if not 1 <= len(text) <= MAX_NAME_BYTES:
        raise MessageError(f"name {name!r} has {len(text)} bytes, must have 1 to {MAX_NAME_BYTES}")
    return bytes([len(text)]) + text


def _state_bytes(index: int, values: Tensor) -> list[bytes]:
    return [STATE.pack(index, values.numel()), values.numpy().astype("<f4").tobytes()]


def _vector_parts(vectors: Packets, schema: Schema) -> list[bytes]:
    parts: list[bytes] = []
    for vector, packets in vectors.items():
        parts += [_name_bytes(vector), COUNT.pack(len(schema.names))]
        for name in schema.names:
            packet = packets[name]
            flags = OWN_SCALE if packet.own_scale else 0
            sides = len(packet.side)
            parts.append(ENTRY.pack(packet.codec, flags, packet.rate, sides, len(packet.code)))
            if sides:
                parts.append(np.asarray(packet.side, "<f4").tobytes())
            parts.append(packet.code)
    return parts


def checksum(*parts: bytes | memoryview) -> bytes:
    digest = hashlib.blake2b(digest_size=CHECKSUM_BYTES)
    for part in parts:
        digest.update(part)
    return digest.digest()
