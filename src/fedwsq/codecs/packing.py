"""Codes of 1 to 8 bits to bytes and back.

Code k fills bits [k * bits, (k + 1) * bits) of the stream, where bit i of the stream is bit i % 8
of byte i // 8, least significant first; a code's own lowest bit comes first. Unused bits of the
last byte are zero.
"""

import functools

import numpy as np
from numpy.typing import NDArray

from fedwsq.core.errors import ConfigError, MessageError

Codes = NDArray[np.uint8]
PIECE = 2**14  # bytes counted at a time


def packed_bytes(count: int, bits: int) -> int:
    """How many bytes `count` codes take."""
    if bits not in range(1, 9):
        raise ConfigError(f"a packed code has 1 to 8 bits, not {bits}")
    return (count * bits + 7) // 8


def pack(codes: Codes, bits: int) -> bytes:
    """The bytes of `codes`, each below 2^bits."""
    size = packed_bytes(len(codes), bits)
    if codes.max(initial=0) >> bits:
        raise ValueError(f"code {codes.max()} does not fit in {bits} bits")

    if 8 % bits:  # codes cross bytes: bit by bit
        planes = np.unpackbits(codes[:, None], axis=1, count=bits, bitorder="little")  # [n, bits]
        return np.packbits(planes, bitorder="little").tobytes()

    # Every byte holds the same number of codes: the first of each byte, the second, and so on.
    per_byte = 8 // bits
    padding = size * per_byte - len(codes)
    grid = np.pad(codes, (0, padding)).reshape(size, per_byte)
    packed = grid[:, 0].copy()
    for k in range(1, per_byte):
        packed |= grid[:, k] << k * bits
    return packed.tobytes()


def unpack(data: bytes, bits: int, count: int) -> Codes:
    """The `count` codes in `data`."""
    check_packed(data, bits, count)
    packed = np.frombuffer(data, np.uint8)

    if 8 % bits:
        stream = np.unpackbits(packed, count=count * bits, bitorder="little")
        codes = np.packbits(stream.reshape(count, bits), axis=1, bitorder="little")
        return codes.reshape(count)

    per_byte = 8 // bits
    grid = np.empty((len(packed), per_byte), np.uint8)
    for k in range(per_byte):
        grid[:, k] = (packed >> k * bits) & (2**bits - 1)
    return grid.reshape(-1)[:count]


def count_codes(data: bytes, bits: int, count: int) -> NDArray[np.int64]:
    """How often each of the 2^bits codes comes; none is unpacked where a byte holds whole ones."""
    if 8 % bits:
        return np.bincount(unpack(data, bits, count), minlength=2**bits)
    bytes_found = np.zeros(256, np.int64)
    packed = np.frombuffer(data, np.uint8)
    for start in range(0, len(packed), PIECE):  # numpy counts in a copy of 64 bits an element
        bytes_found += np.bincount(packed[start : start + PIECE], minlength=256)
    found = bytes_found @ _codes_in_bytes(bits)
    found[0] -= len(data) * (8 // bits) - count  # what fills the last byte is no code
    return found


@functools.cache
def _codes_in_bytes(bits: int) -> NDArray[np.int64]:
    """How often each code comes in each byte, [256, codes]."""
    codes = unpack(bytes(range(256)), bits, 256 * 8 // bits).reshape(256, -1)
    return np.stack([np.bincount(row, minlength=2**bits) for row in codes])


def check_packed(data: bytes, bits: int, count: int) -> None:
    """Raise `MessageError` unless `data` is what `pack` makes of some `count` codes."""
    size = packed_bytes(count, bits)
    require_length(data, size, f"{count} codes of {bits} bits")
    spare = 8 * size - count * bits
    if spare and data[-1] >> (8 - spare):
        raise MessageError(
            f"the {spare} bits after {count} codes of {bits} bits must be zero; the code is damaged"
        )


def require_length(data: bytes, size: int, what: str) -> None:
    if len(data) != size:
        raise MessageError(f"{what} take {size} bytes, not {len(data)}")
