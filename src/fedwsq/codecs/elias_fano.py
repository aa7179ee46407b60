"""Ascending indices to bytes by the Elias-Fano code.

An index is split into `low_bits` low bits and the rest, its high part. First all low parts, one
after the other; then, from a new byte, a bit string in which bit (high part of index j) + j is set.
Bits are numbered, and the last byte of each filled up with zeros, as in `packing`.

So the length depends on the number of indices and their range alone: both ends know it beforehand.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedwsq.codecs.packing import require_length
from fedwsq.core.errors import MessageError

Bits = NDArray[np.uint8]  # a 0 or a 1 each
Indices = NDArray[np.int64]


class Layout(NamedTuple):
    """How many bits each part takes."""

    width: int  # the low bits of one index
    low: int
    high: int

    @property
    def low_bytes(self) -> int:
        return (self.low + 7) // 8

    @property
    def total_bytes(self) -> int:
        return self.low_bytes + (self.high + 7) // 8


def layout(count: int, limit: int) -> Layout:
    """That of `count` indices below `limit`."""
    if not count:
        return Layout(0, 0, 0)
    # floor(log2(limit / count)): near the shortest, whatever the indices are.
    width = max((limit // count).bit_length() - 1, 0)
    # One bit for each index, and one more wherever the high part goes up.
    highest = (limit - 1) >> width
    return Layout(width, count * width, count + highest)


def index_bytes(count: int, limit: int) -> int:
    """How many bytes `count` indices below `limit` take."""
    return layout(count, limit).total_bytes


def pack_indices(indices: Indices, limit: int) -> bytes:
    """The bytes of strictly ascending `indices`, each at least 0 and below `limit`."""
    count = len(indices)
    parts = layout(count, limit)

    low = np.zeros((count, 0), np.uint8)
    if parts.width:  # numpy takes a count of 0 for all
        as_bytes = indices.astype("<i8").view(np.uint8).reshape(count, 8)
        low = np.unpackbits(as_bytes, axis=1, count=parts.width, bitorder="little")

    high = np.zeros(parts.high, np.uint8)
    high[(indices >> parts.width) + np.arange(count)] = 1
    return _to_bytes(low) + _to_bytes(high)


def unpack_indices(data: bytes, count: int, limit: int) -> Indices:
    """The `count` indices below `limit` in `data`.

    `MessageError` if it is not what `pack_indices` makes of any.
    """
    parts = layout(count, limit)
    require_length(data, parts.total_bytes, f"{count} indices below {limit}")

    low = _to_bits(data[: parts.low_bytes])
    high = _to_bits(data[parts.low_bytes :])
    if low[parts.low :].any() or high[parts.high :].any():
        raise MessageError(f"the bits after {count} indices must be zero; the code is damaged")

    places = np.flatnonzero(high)
    if len(places) != count:
        raise MessageError(f"the code has {len(places)} indices, not {count}")
    indices = (places - np.arange(count)) << parts.width
    if parts.width:
        planes = low[: parts.low].reshape(count, parts.width)
        as_bytes = np.packbits(planes, axis=1, bitorder="little")
        missing = 8 - as_bytes.shape[1]
        indices |= np.pad(as_bytes, ((0, 0), (0, missing))).view("<i8")[:, 0]

    # Equal high parts leave the order to the low ones, and the last high part may go too far.
    if count and (indices[-1] >= limit or (np.diff(indices) <= 0).any()):
        raise MessageError(
            f"indices must ascend strictly and be below {limit}; the code is damaged"
        )
    return indices


def _to_bytes(bits: Bits) -> bytes:
    return np.packbits(bits, bitorder="little").tobytes()


def _to_bits(data: bytes) -> Bits:
    return np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
