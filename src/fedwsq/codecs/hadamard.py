"""Random rotations that both ends draw from a seed: Hadamard transforms of slices, and signs.

Made of elementwise float32 additions alone, so that every machine finds the same bits.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedwsq.codecs.kernels import Floats
from fedwsq.core.seeds import numpy_rng

LARGEST_SLICE = 4096
SMALLEST_SLICE = 64
SLICES_AT_ONCE = 32  # 16 kB each, and as much again to work in: what a core's own cache holds
# The eight signs that a byte of random bits stands for, its lowest bit first.
_BYTES = np.arange(256, dtype=np.uint8)[:, None]
SIGNS = 1 - 2 * np.unpackbits(_BYTES, axis=1, bitorder="little").astype(np.float32)


@dataclass(frozen=True)
class Block:
    """Neighbouring slices of one size, the first of them slice number `first`."""

    first: int
    start: int  # its first element
    count: int
    size: int

    def rows(self, flat: Floats) -> Floats:
        """Their elements in a padded vector, a slice in each row; a view."""
        end = self.start + self.count * self.size
        return flat[self.start : end].reshape(self.count, self.size)

    @property
    def slices(self) -> slice:
        """Where they are among the slices."""
        return slice(self.first, self.first + self.count)


def padded(numel: int) -> int:
    """How many elements are rotated: `numel` and up to 63 zeros, to whole smallest slices."""
    return -(-numel // SMALLEST_SLICE) * SMALLEST_SLICE


def slice_count(numel: int) -> int:
    """As many of the largest slices as fit, then descending powers of two, each at most once."""
    whole, rest = divmod(padded(numel), LARGEST_SLICE)
    return whole + rest.bit_count()


def blocks(numel: int) -> Iterator[Block]:
    """All slices in order, as many at once as stay in cache."""
    whole, rest = divmod(padded(numel), LARGEST_SLICE)
    for first in range(0, whole, SLICES_AT_ONCE):
        count = min(SLICES_AT_ONCE, whole - first)
        yield Block(first, first * LARGEST_SLICE, count, LARGEST_SLICE)

    # Fewer than 64 zeros are padded, however long the update: what is left goes by powers of two.
    first = whole
    start = whole * LARGEST_SLICE
    while rest:
        size = 1 << rest.bit_length() - 1
        yield Block(first, start, 1, size)
        first += 1
        start += size
        rest -= size


def rotate(values: Floats, seed: int) -> Floats:
    """Each slice times H D' H D / size: H the Hadamard matrix, D and D' random signs; orthonormal.

    Once is not enough: H D makes a slice with one huge value into +-1 and a little, and such values
    do not round as normal ones do. After the second time every slice is as good as normal.
    """
    out = np.zeros(padded(len(values)), np.float32)
    out[: len(values)] = values
    first, second = random_signs(len(out), seed)
    for block in blocks(len(values)):
        rows = block.rows(out)
        flip(rows, first, block)
        hadamard(rows)
        flip(rows, second, block)
        hadamard(rows)
        rows *= np.float32(1 / block.size)  # a power of two: nothing is rounded
    return out


def unrotate(rotated: Floats, numel: int, seed: int) -> Floats:
    """The `numel` values that `rotate` would turn into this; it is worked on in place."""
    first, second = random_signs(len(rotated), seed)
    for block in blocks(numel):
        rows = block.rows(rotated)
        hadamard(rows)
        flip(rows, second, block)
        hadamard(rows)
        flip(rows, first, block)
        rows *= np.float32(1 / block.size)
    return rotated[:numel]


def hadamard(rows: Floats) -> None:
    """Multiply each row, of a power of two elements, by Sylvester's Hadamard matrix, in place."""
    count, size = rows.shape
    now = rows.T.copy()  # the rows side by side, so that every addition runs over neighbours
    after = np.empty_like(now)
    step = 1
    while step < size:
        a, b = now.reshape(-1, 2, step * count).swapaxes(0, 1)
        total, difference = after.reshape(-1, 2, step * count).swapaxes(0, 1)
        np.add(a, b, out=total)
        np.subtract(a, b, out=difference)
        now, after = after, now
        step *= 2
    rows[:] = now.T


def random_signs(count: int, seed: int) -> NDArray[np.uint8]:
    """Two rows of `count` random bits, eight in a byte; a bit that is set flips a sign."""
    # The raw words: what numpy makes of them may change between its versions, they may not.
    words = numpy_rng(seed, "rotation").bit_generator.random_raw(2 * count // 64)
    return words.astype("<u8").view(np.uint8).reshape(2, count // 8)


def flip(rows: Floats, signs: NDArray[np.uint8], block: Block) -> None:
    """Give a block's elements their random signs, in place."""
    start = block.start // 8
    chosen = signs[start : start + rows.size // 8]
    rows *= SIGNS.take(chosen, axis=0).reshape(rows.shape)
