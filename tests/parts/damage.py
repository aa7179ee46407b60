"""Packed dictionaries, damaged: bytes that changed, and lies that were sealed again."""

import copy
import hashlib
import json
import math
import random
import struct
from collections.abc import Callable
from typing import Any

import torch

import fedwsq
from fedwsq.codecs import CODECS
from fedwsq.wire import Schema
from fedwsq.wire.message import CHECKSUM_BYTES, HEADER, HEADER_BYTES, Header

DEEP = json.loads("[" * 200 + "]" * 200)
# What stands in a label instead of what should.
ODD: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 3, 16, 2**22, 2**31, 2**40, 10**17, 10**30),
    *(0.5, 1e-30, 1e300, -0.0, math.nan, math.inf),
    *("", "w", "danuq", "ecq", "rotated", "os:system", "float64", "bool", "complex64", "\ud800"),
    *([], {}, [[]], {"name": "os:getcwd"}, {"name": "danuq", "inner": "ecq"}, DEEP),
]


def originals() -> list[bytes]:
    """An honest message of every codec, and one that carries codec state."""
    torch.manual_seed(0)
    tensors = {
        "weight": torch.randn(4, 3, 2),
        "half": torch.randn(5, 4).half(),
        "bias": torch.randn(3),
        "steps": torch.tensor(7),
        "mask": torch.tensor([True, False]),
    }
    found = [fedwsq.pack(tensors, codec) for codec in CODECS]
    found.append(fedwsq.pack({"zeros": torch.zeros(9, 9)}, "ecq"))
    for codec in (fedwsq.Danuq(), fedwsq.Danuq(scale_per="channel")):
        compressor = fedwsq.Compressor(codec)
        compressor.compress(tensors)
        found.append(compressor.compress(tensors))
    return found


def reseal(data: bytes) -> bytes:
    """The same with a length and a checksum that fit what is in it now."""
    if len(data) < HEADER_BYTES + CHECKSUM_BYTES:
        return data
    data = data[:8] + struct.pack("<Q", len(data)) + data[16:]
    sealed = data[:-CHECKSUM_BYTES]
    return sealed + hashlib.blake2b(sealed, digest_size=CHECKSUM_BYTES).digest()


def label_of(data: bytes) -> Any:
    return json.loads(data[len(data) - CHECKSUM_BYTES - header_of(data).text : -CHECKSUM_BYTES])


def header_of(data: bytes) -> Header:
    return Header(*HEADER.unpack_from(data))


def relabelled(data: bytes, label: object) -> bytes:
    """The message with another label, and the digest of the schema that this one describes."""
    return with_text(data, json.dumps(label), schema_of(label))


def with_text(data: bytes, text: str, schema: Schema | None = None) -> bytes:
    header = header_of(data)
    sections = data[HEADER_BYTES : len(data) - CHECKSUM_BYTES - header.text]
    header = header._replace(text=len(text.encode()))
    if schema is not None:
        header = header._replace(schema=schema.digest)
    return reseal(HEADER.pack(*header) + sections + text.encode() + bytes(CHECKSUM_BYTES))


def schema_of(label: Any) -> Schema | None:
    try:
        return Schema({row[0]: tuple(row[1]) for row in label["tensors"]})
    except (TypeError, LookupError):
        return None


# One way of damaging each.


def flipped(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def sealed_flip(rng: random.Random, data: bytes) -> bytes:
    return reseal(flipped(rng, data))


def numbers_changed(rng: random.Random, data: bytes) -> bytes:
    """Eight bytes somewhere become a number that is special as some type."""
    at = rng.randrange(len(data))
    special = (0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, 0x7F800000, 0x7FC00000, 0xFF800000)
    number = struct.pack("<Q", rng.choice(special))
    return reseal(data[:at] + number + data[at + len(number) :])


def cut(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data))
    return reseal(data[:start] + data[start + rng.randint(1, 64) :])


def repeated(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data))
    end = start + rng.randint(1, 64)
    return reseal(data[:end] + data[start:end] + data[end:])


def mislabelled(rng: random.Random, data: bytes) -> bytes:
    label = label_of(data)
    for _ in range(rng.randint(1, 2)):
        change(rng, label)
    return relabelled(data, label)


def text_changed(rng: random.Random, data: bytes) -> bytes:
    text = json.dumps(label_of(data))
    at = rng.randrange(len(text))
    inserted = rng.choice(['"', "[", "]", "{", "}", ",", ":", "0", "9" * 30, "\\", "\x00", "é"])
    return with_text(data, text[:at] + inserted + text[at + rng.randint(0, 3) :])


def change(rng: random.Random, node: Any) -> None:
    """Replace, drop or repeat something in a tree of lists and tables."""
    keys = list(node) if isinstance(node, dict) else list(range(len(node)))
    if not keys:
        return
    key = rng.choice(keys)
    below = node[key]
    if isinstance(below, list | dict) and rng.random() < 0.8:
        change(rng, below)
        return
    match rng.randrange(4):
        case 0 if isinstance(node, list):
            node.insert(key, below)
        case 1:
            del node[key]
        case _:
            # A copy: a later change may go into it, and would leave it so for all that follow.
            node[key] = copy.deepcopy(rng.choice(ODD))


DAMAGES: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    flipped,
    sealed_flip,
    sealed_flip,
    numbers_changed,
    cut,
    repeated,
    mislabelled,
    mislabelled,
    text_changed,
)
