"""Random rotations that both ends draw from a seed: Hadamard transforms of slices, after random signs.

Made of elementwise float32 additions alone, so that every machine finds the same bits.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedwsq.codecs.groups import Floats
from fedwsq.core.seeds import numpy_rng

Number = TypeVar("Number", bound=np.generic)
LARGEST_SLICE = 4096
SMALLEST_SLICE = 64
SLICES_AT_ONCE = 32  # 16 kB each, and as much again to work in: what a core's own cache holds
# The eight signs that a byte of random bits stands for, its lowest bit first.
SIGNS = 1 - 2 * np.unpackbits(
    np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"
).astype(np.float32)


@dataclass(frozen=True)
class Block:
    """Neighbouring slices of one size, the first of them slice number `first`."""

    first: int
    start: int
    count: int
    size: int

    def rows(self, flat: NDArray[Number]) -> NDArray[Number]:
        """Their elements in a padded vector, a slice in each row; a view."""
        return flat[self.start : self.start + self.count * self.size].reshape(self.count, self.size)

    @property
    def slices(self) -> slice:
        """Where they are among the slices."""
        return slice(self.first, self.first + self.count)


def padded(numel: int) -> int:
    """How many elements are rotated: `numel` and zeros up to a multiple of the smallest slice, 63 at most."""
    return -(-numel // SMALLEST_SLICE) * SMALLEST_SLICE


def slice_count(numel: int) -> int:
    """As many of the largest slices as fit; what is left goes in descending powers of two, each at most once."""
    whole, rest = divmod(padded(numel), LARGEST_SLICE)
    return whole + rest.bit_count()


def blocks(numel: int) -> Iterator[Block]:
    """All slices in order, as many at once as stay in cache."""
    whole, rest = divmod(padded(numel), LARGEST_SLICE)
    for first in range(0, whole, SLICES_AT_ONCE):
        yield Block(first, first * LARGEST_SLICE, min(SLICES_AT_ONCE, whole - first), LARGEST_SLICE)
    first, start = whole, whole * LARGEST_SLICE
    while rest:
        size = 1 << rest.bit_length() - 1
        yield Block(first, start, 1, size)
        first, start, rest = first + 1, start + size, rest - size


def rotate(values: Floats, seed: int) -> Floats:
    """Each slice times H D' H D / size, with the Hadamard matrix H and diagonals of random signs: orthonormal.

    Once is not enough: H D makes a slice with one huge value into +-1 and a little, and such values do not round as
    normal ones do. After the second time every slice is as good as normal.
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
    """Multiply each row, of a power of two elements, by the Hadamard matrix (Sylvester's), in place."""
    count, size = rows.shape
    now = rows.T.copy()  # the rows side by side, so that every addition runs over neighbours
    after = np.empty_like(now)
    step = 1
    while step < size:
        pairs, out = now.reshape(-1, 2, step * count), after.reshape(-1, 2, step * count)
        np.add(pairs[:, 0], pairs[:, 1], out=out[:, 0])
        np.subtract(pairs[:, 0], pairs[:, 1], out=out[:, 1])
        now, after, step = after, now, 2 * step
    rows[:] = now.T


def random_signs(count: int, seed: int) -> NDArray[np.uint8]:
    """Two rows of `count` random bits, eight in a byte; a bit that is set flips a sign."""
    # The raw words: what numpy makes of them may change between its versions, they may not.
    words = numpy_rng(seed, "rotation").bit_generator.random_raw(2 * count // 64)
    return words.astype("<u8").view(np.uint8).reshape(2, count // 8)


def flip(rows: Floats, signs: NDArray[np.uint8], block: Block) -> None:
    """Give a block's elements their random signs, in place."""
    at = block.start // 8
    rows *= SIGNS.take(signs[at : at + rows.size // 8], axis=0).reshape(rows.shape)
