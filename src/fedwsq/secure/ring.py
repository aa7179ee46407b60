"""Integers modulo a small power of two: masked, added, packed."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from fedwsq.core.errors import ConfigError, MessageError

Words: TypeAlias = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class Part:
    """So many integers, each modulo 2^bits."""

    count: int
    bits: int

    @cached_property
    def dtype(self) -> np.dtype[np.unsignedinteger[Any]]:
        """The smallest word that holds one. Sums may wrap in it, as 2^bits divides its range."""
        for width in (8, 16, 32):
            if self.bits <= width:
                return np.dtype(f"<u{width // 8}")
        raise ConfigError(f"integers of {self.bits} bits are too wide to be summed; at most 32")

    @property
    def length(self) -> int:
        """In bytes, packed."""
        return (self.count * self.bits + 7) // 8

    def reduce(self, words: Words) -> Words:
        return words & self.dtype.type(2**self.bits - 1)

    def pack(self, words: Words) -> bytes:
        """`bits` bits each, the lowest first, without gaps."""
        rows = words.astype(self.dtype, copy=False).view(np.uint8)
        rows = rows.reshape(self.count, self.dtype.itemsize)
        planes = np.unpackbits(rows, axis=1, count=self.bits, bitorder="little")
        return np.packbits(planes, bitorder="little").tobytes()

    def require(self, data: bytes) -> None:
        """Refuse bytes that `pack` never gives."""
        if len(data) != self.length:
            raise MessageError(
                f"{self.count} integers of {self.bits} bits take {self.length} bytes, "
                f"not {len(data)}"
            )
        used = self.count * self.bits % 8  # of the last byte
        if used and data[-1] >> used:
            raise MessageError("the bits after the last integer must be zero; it is damaged")

    def unpack(self, data: bytes) -> Words:
        self.require(data)
        stream = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        used = self.count * self.bits
        found = np.packbits(stream[:used].reshape(self.count, self.bits), axis=1, bitorder="little")
        rows = np.zeros((self.count, self.dtype.itemsize), np.uint8)
        rows[:, : found.shape[1]] = found
        return rows.view(self.dtype).reshape(-1)


Layout: TypeAlias = Sequence[Part]


def mask(layout: Layout, key: bytes) -> list[Words]:
    """The masks that a 32-byte key stands for; a key is used for one ballot and no more."""
    sizes = [part.count * part.dtype.itemsize for part in layout]
    # A nonce of zeros: no key is ever used twice.
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(sum(sizes)))
    masks: list[Words] = []
    at = 0
    for part, size in zip(layout, sizes, strict=True):
        # As wide as its word: whoever adds it reduces the sum.
        masks.append(np.frombuffer(stream, part.dtype, part.count, at))
        at += size
    return masks


def add(into: Sequence[Words], words: Sequence[Words], sign: int = 1) -> None:
    """Add in place, or with a sign of -1 subtract; sums wrap, and are reduced once at the end."""
    work = np.add if sign > 0 else np.subtract
    for mine, other in zip(into, words, strict=True):
        work(mine, other, out=mine)


def reduced(layout: Layout, words: Sequence[Words]) -> list[Words]:
    return [part.reduce(each) for part, each in zip(layout, words, strict=True)]


def words_digest(words: Sequence[Words]) -> str:
    """Whether integers are the same; it stays with whoever cast them."""
    digest = hashlib.blake2b(digest_size=16)
    for each in words:
        digest.update(each.tobytes())
    return digest.hexdigest()


def zeros(layout: Layout) -> list[Words]:
    return [np.zeros(part.count, part.dtype) for part in layout]


def pack(layout: Layout, words: Sequence[Words]) -> bytes:
    return b"".join(part.pack(each) for part, each in zip(layout, words, strict=True))


def unpack(layout: Layout, data: bytes) -> list[Words]:
    """What `pack` packed, or `MessageError`."""
    codes = split(layout, data)
    return [part.unpack(code) for part, code in zip(layout, codes, strict=True)]


def split(layout: Layout, data: bytes) -> list[bytes]:
    """The same, still packed."""
    whole = sum(part.length for part in layout)
    if len(data) != whole:
        raise MessageError(f"a ballot of {len(data)} bytes, this one takes {whole}")
    found: list[bytes] = []
    at = 0
    for part in layout:
        code = data[at : at + part.length]
        part.require(code)
        found.append(code)
        at += part.length
    return found
