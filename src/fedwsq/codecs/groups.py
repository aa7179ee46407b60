"""Which elements share a scale, and what is measured of them.

One scale for the whole tensor, one for each output channel, or one for each block of elements.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedwsq.codecs import kernels
from fedwsq.codecs.base import MAX_MAGNITUDE, Packet, name_of
from fedwsq.codecs.kernels import Doubles, Floats
from fedwsq.core.errors import ConfigError, MessageError

ScalePer = Literal["tensor", "channel", "block"]
Vector = TypeVar("Vector", NDArray[np.float32], Tensor)
# The largest that every receiver takes: float32 rounds MAX_MAGNITUDE itself up.
LARGEST_SCALE = float(np.nextafter(np.float32(MAX_MAGNITUDE), np.float32(0)))


class Survey(NamedTuple):
    """What one pass finds in each row."""

    largest: Doubles  # max|x|, NaN if any is
    std: Doubles  # unbiased; |x| of a single element

    @property
    def scale(self) -> Doubles:
        """The std, or |x| where all are equal: never 0 for a row that is not zero."""
        return np.where(self.std > 0, self.std, self.largest)


@dataclass(frozen=True)
class Groups:
    """`count` runs of `size` elements each; the last may be shorter."""

    count: int
    size: int

    def rows(self, values: Vector) -> list[Vector]:
        """The groups, one in each row: all whole ones, then a shorter last one by itself."""
        if self.count == 1:
            return [values[None]]
        whole = len(values) // self.size
        end = whole * self.size
        rows = values[:end].reshape(whole, self.size)
        if whole == self.count:
            return [rows]
        return [rows, values[end:][None]]

    def measure(self, values: Vector, statistic: Callable[[Vector], Doubles]) -> Floats:
        """The statistic, a function of rows, of every group."""
        return as_scales(np.concatenate([statistic(rows) for rows in self.rows(values)]))

    def survey(self, values: Floats) -> Survey:
        """Largest and std of every group."""
        if self.count == 1:
            return survey(values[None])
        parts = [survey(rows) for rows in self.rows(values)]
        return Survey(*np.concatenate(parts, axis=1))


class Grouped:
    """What codecs share that have a scale for each group of elements.

    `scale_per` and `block` are settings, so each of these codecs has them among its own fields.
    """

    scale_per: ScalePer
    block: int

    def groups(self, numel: int, rows: int = 1) -> Groups:
        return make_groups(numel, rows, self.scale_per, self.block)

    def side_values(self, numel: int, rows: int = 1) -> int:
        """One scale for each group."""
        return self.groups(numel, rows).count

    def require_block(self) -> None:
        if not 2 <= self.block <= 2**20:
            raise ConfigError(
                f"{name_of(self)} block = {self.block} is out of range; "
                f"a block has 2 to {2**20} elements"
            )

    def check_side(self, packet: Packet) -> None:
        """Refuse a packet that has not one scale for each group."""
        count = self.side_values(packet.numel, packet.rows)
        if len(packet.side) != count:
            raise MessageError(
                f"a {name_of(self)} packet has {count} side value(s), its scales, "
                f"not {len(packet.side)}"
            )


@functools.lru_cache(maxsize=1024)
def make_groups(numel: int, rows: int, scale_per: ScalePer, block: int) -> Groups:
    """The groups of a tensor: a pure function of its size, known to both ends."""
    if scale_per == "channel" and numel:
        return Groups(rows, numel // rows)
    if scale_per == "block" and numel:
        return Groups(math.ceil(numel / block), block)
    return Groups(1, numel)  # of nothing too: every packet has a scale


def as_scales(found: Doubles) -> Floats:
    """In float32, and never more than a receiver takes."""
    return np.minimum(found, LARGEST_SCALE).astype(np.float32)


# What is measured of each row


def largest(rows: Floats) -> Doubles:
    """max|x| of each row, 0 of nothing."""
    # Two passes over the rows but no copy of them.
    above = rows.max(1, initial=0.0)
    below = -rows.min(1, initial=0.0)
    top: Doubles = np.abs(np.maximum(above, below)).astype(np.float64)
    return top


def survey(rows: Floats) -> Survey:
    """Largest and std of each row; their bits depend on nothing but the values."""
    count = rows.shape[1]
    if not count:
        return Survey(np.zeros(len(rows)), np.zeros(len(rows)))
    found = moments(rows)
    top, total, squares = found.T
    if count == 1:
        return Survey(top, top)
    if len(rows) == 1:  # the same in plain numbers: quicker, and most tensors are one row
        ((_, total, squares),) = found.tolist()
        variance = max(squares - total * total / count, 0.0) / (count - 1)
        return Survey(top, np.array([math.sqrt(variance)]))
    with np.errstate(invalid="ignore"):  # what is not finite is for the caller to refuse
        variance = np.maximum(squares - total * total / count, 0) / (count - 1)
        return Survey(top, np.sqrt(variance))


def moments(rows: Floats) -> Doubles:
    """max|x|, the sum of x - x[0] and that of its square, of each row, in float64: [rows, 3].

    One pass is exact enough since x[0] is one of the values: it cannot be farther from their mean
    than sqrt(n) stds, so that no more than log2(n) of 53 bits are lost. Sums run in 512 lanes,
    element i in lane i % 512, first to last; then the upper half of the lanes is added to the lower
    until one is left.
    """
    count, size = rows.shape
    if kernels.usable(rows.size):
        return kernels.survey(rows.reshape(-1), size)

    lanes = min(2 ** (size - 1).bit_length(), kernels.LANES)
    sums = np.zeros((count, lanes))
    squares = np.zeros((count, lanes))
    first = rows[:, :1].astype(np.float64)
    with np.errstate(invalid="ignore"):
        for start in range(0, size, 32 * lanes):  # what stays in the cache
            d = rows[:, start : start + 32 * lanes] - first
            missing = -d.shape[1] % lanes
            d = np.pad(d, ((0, 0), (0, missing))).reshape(count, -1, lanes)
            # numpy adds in pairs along the last axis only; along any other it goes first to last.
            sums = np.concatenate([sums[:, None], d], axis=1).sum(1)
            squares = np.concatenate([squares[:, None], d * d], axis=1).sum(1)
        while lanes > 1:
            lanes //= 2
            sums = sums[:, :lanes] + sums[:, lanes:]
            squares = squares[:, :lanes] + squares[:, lanes:]

    top = np.abs(np.maximum(rows.max(1), -rows.min(1)))
    return np.stack([top, sums[:, 0], squares[:, 0]], axis=1)


def self_scale(rows: Floats) -> Doubles:
    """The std of each row, or |x| where all its elements are equal."""
    return survey(rows).scale


def norm(rows: Floats) -> Doubles:
    """The Euclidean norm of each row."""
    found: Doubles = np.sqrt(np.square(rows, dtype=np.float64).sum(1))
    return found


def mean_magnitude(rows: Floats) -> Doubles:
    """mean|x| of each row, 0 of nothing."""
    if not rows.shape[1]:
        return np.zeros(len(rows))
    found: Doubles = np.abs(rows).mean(1, dtype=np.float64)
    return found
