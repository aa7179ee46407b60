"""Ways to damage bytes of any kind, from a seed."""

import random
import struct
from collections.abc import Callable

SPECIAL = (0, 1, 127, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1)
FLOATS = (float("nan"), float("inf"), -1.0, 1e-45, 3e38, 1e20)

Damage = Callable[[random.Random, bytes, bytes, tuple[bytes, ...]], bytes]


def damaged(
    rng: random.Random, data: bytes, others: list[bytes], tokens: tuple[bytes, ...]
) -> bytes:
    """`data` after one to four changes; some of them borrow from another sample."""
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        if not data:
            return data
        other = rng.choice(others)
        data = rng.choice(DAMAGES)(rng, data, other, tokens)
    return data


def flip(rng: random.Random, data: bytes, other: bytes, tokens: tuple[bytes, ...]) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def replace(rng: random.Random, data: bytes, other: bytes, tokens: tuple[bytes, ...]) -> bytes:
    at = rng.randrange(len(data))
    piece = rng.randbytes(rng.randint(1, 8))
    return data[:at] + piece + data[at + len(piece) :]


def number(rng: random.Random, data: bytes, other: bytes, tokens: tuple[bytes, ...]) -> bytes:
    """A number that is special as some type, at some width, over what is there."""
    at = rng.randrange(len(data))
    width = rng.choice((1, 2, 4, 8))
    order = rng.choice(("little", "big"))
    piece = (rng.choice(SPECIAL) % 256**width).to_bytes(width, order)
    if rng.random() < 0.3:
        piece = struct.pack(rng.choice(("<f", "<d")), rng.choice(FLOATS))
    return data[:at] + piece + data[at + len(piece) :]


def cut(rng: random.Random, data: bytes, other: bytes, tokens: tuple[bytes, ...]) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + data[at + rng.choice((1, 4, 64, len(data))) :]


def repeat(rng: random.Random, data: bytes, other: bytes, tokens: tuple[bytes, ...]) -> bytes:
    at = rng.randrange(len(data))
    end = at + rng.choice((1, 8, 64, 512))
    return data[:end] + data[at:end] * rng.choice((1, 1, 2, 16)) + data[end:]


def splice(rng: random.Random, data: bytes, other: bytes, tokens: tuple[bytes, ...]) -> bytes:
    if not other:
        return data
    start = rng.randrange(len(other))
    piece = other[start : start + rng.choice((4, 16, 64, len(other)))]
    at = rng.randrange(len(data))
    return data[:at] + piece + data[at + rng.choice((0, len(piece))) :]


def insert(rng: random.Random, data: bytes, other: bytes, tokens: tuple[bytes, ...]) -> bytes:
    """A word of the format, anywhere."""
    if not tokens:
        return replace(rng, data, other, tokens)
    at = rng.randrange(len(data))
    piece = rng.choice(tokens)
    return data[:at] + piece + data[at + rng.choice((0, 1, len(piece))) :]


def swap(rng: random.Random, data: bytes, other: bytes, tokens: tuple[bytes, ...]) -> bytes:
    """A word of the format in place of another that is there: what is still well-formed."""
    there = [token for token in tokens if token in data]
    if not there:
        return insert(rng, data, other, tokens)
    old = rng.choice(there)
    alike = [token for token in tokens if len(token) == len(old)]
    starts = [at for at in range(len(data)) if data.startswith(old, at)]
    at = rng.choice(starts)
    return data[:at] + rng.choice(alike) + data[at + len(old) :]


DAMAGES: tuple[Damage, ...] = (flip, replace, number, number, cut, repeat, splice, insert, swap)
