"""Ascending indices to bytes by the Elias-Fano code, whose length depends on their number and range alone.

An index is split into `low_bits` low bits and the rest, its high part. First all low parts, one after the other; then,
from a new byte, a bit string in which bit (high part of index j) + j is set. Bits are numbered, and the last byte of
each filled up with zeros, as in `packing`.
"""

import numpy as np
from numpy.typing import NDArray

from fedwsq.core.errors import MessageError

Indices = NDArray[np.int64]


def low_bits(count: int, limit: int) -> int:
    """How many bits of each index are written as they are: floor(log2(limit / count)), near the shortest."""
    return max((limit // count).bit_length() - 1, 0) if count else 0


def section_bits(count: int, limit: int) -> tuple[int, int]:
    """The bits of both parts, for `count` indices below `limit`."""
    width = low_bits(count, limit)
    return (count * width, count + ((limit - 1) >> width)) if count else (0, 0)


def index_bytes(count: int, limit: int) -> int:
    """How many bytes `count` indices below `limit` take."""
    return sum((bits + 7) // 8 for bits in section_bits(count, limit))


def pack_indices(indices: Indices, limit: int) -> bytes:
    """The bytes of strictly ascending `indices`, each at least 0 and below `limit`."""
    count, width = len(indices), low_bits(len(indices), limit)
    high = np.zeros(section_bits(count, limit)[1], np.uint8)
    high[(indices >> width) + np.arange(count)] = 1
    as_bytes = indices.astype("<i8").view(np.uint8).reshape(count, 8)
    low = (
        np.unpackbits(as_bytes, axis=1, count=width, bitorder="little")
        if width
        else np.zeros(0, np.uint8)
    )
    return (
        np.packbits(low, bitorder="little").tobytes()
        + np.packbits(high, bitorder="little").tobytes()
    )


def unpack_indices(data: bytes, count: int, limit: int) -> Indices:
    """The `count` indices below `limit` in `data`, or `MessageError` if it is not what `pack_indices` makes of any."""
    size = index_bytes(count, limit)
    if len(data) != size:
        raise MessageError(f"{count} indices below {limit} take {size} bytes, not {len(data)}")
    width, (low_length, high_length) = low_bits(count, limit), section_bits(count, limit)
    split = (low_length + 7) // 8
    low, high = (
        np.unpackbits(np.frombuffer(part, np.uint8), bitorder="little")
        for part in (data[:split], data[split:])
    )
    found = np.flatnonzero(high)
    if low[low_length:].any() or high[high_length:].any():
        raise MessageError(f"the bits after {count} indices must be zero; the code is damaged")
    if len(found) != count:
        raise MessageError(f"the code has {len(found)} indices, not {count}")
    indices = (found - np.arange(count)) << width
    if width:
        planes = np.packbits(low[:low_length].reshape(count, width), axis=1, bitorder="little")
        indices |= np.pad(planes, ((0, 0), (0, 8 - planes.shape[1]))).view("<i8")[:, 0]
    if count and (indices[-1] >= limit or (np.diff(indices) <= 0).any()):
        raise MessageError(
            f"indices must ascend strictly and be below {limit}; the code is damaged"
        )
    return indices
