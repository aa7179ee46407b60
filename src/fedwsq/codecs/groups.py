"""Scales by group: one for the whole tensor, one for each output channel, or one for each block of elements."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedwsq.codecs import kernels
from fedwsq.codecs.base import MAX_MAGNITUDE
from fedwsq.core.errors import ConfigError, MessageError

Scales = Literal["tensor", "channel", "block"]
Floats = NDArray[np.float32]
Measured = NDArray[np.float64]
Vector = TypeVar("Vector", NDArray[np.float32], Tensor)
# The largest that every receiver takes: float32 rounds MAX_MAGNITUDE itself up.
LARGEST_SCALE = float(np.nextafter(np.float32(MAX_MAGNITUDE), np.float32(0)))


class Survey(NamedTuple):
    """What one pass finds in each row: max|x|, NaN if any is, and the unbiased std, or |x| of a single element."""

    largest: Measured
    std: Measured

    @property
    def scale(self) -> Measured:
        """The std, or |x| where all elements are equal: a scale that never loses a row that is not zero."""
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
        rows = values[: whole * self.size].reshape(whole, self.size)
        return [rows] if whole == self.count else [rows, values[whole * self.size :][None]]

    def measure(self, values: Vector, statistic: Callable[[Vector], Measured]) -> Floats:
        """The statistic, a function of rows, of every group."""
        return as_scales(np.concatenate([statistic(rows) for rows in self.rows(values)]))

    def survey(self, values: Floats) -> Survey:
        """The `survey` of every group."""
        return Survey(*map(np.concatenate, zip(*map(survey, self.rows(values)), strict=True)))

    def spread(self, scales: Floats, numel: int) -> Floats:
        """The scale of every element; a single one is left as it is, to be broadcast."""
        return scales if self.count == 1 else np.repeat(scales, self.size)[:numel]


def as_scales(found: Measured) -> Floats:
    """In float32, and never more than a receiver takes."""
    return np.minimum(found, LARGEST_SCALE).astype(np.float32)


def make_groups(numel: int, rows: int, scales: Scales, block: int) -> Groups:
    """The groups of a tensor: a pure function of its size, known to both ends."""
    if scales == "channel" and numel:
        return Groups(rows, numel // rows)
    if scales == "block" and numel:
        return Groups(math.ceil(numel / block), block)
    return Groups(1, numel)


def check_scales(codec: str, scales: str, block: int) -> None:
    """Refuse settings that name no groups."""
    if scales not in ("tensor", "channel", "block"):
        raise ConfigError(
            f'{codec} scales = "{scales}" is unknown; it is "tensor", "channel" or "block"'
        )
    if not 2 <= block <= 2**20:
        raise ConfigError(
            f"{codec} block = {block} is out of range; a block has 2 to {2**20} elements"
        )


def check_sides(codec: str, side: tuple[float, ...], groups: Groups) -> None:
    """Refuse a packet that has not one scale for each group."""
    if len(side) != groups.count:
        raise MessageError(
            f"a {codec} packet has {groups.count} side value(s), its scales, not {len(side)}"
        )


def largest(rows: Floats) -> Measured:
    """max|x| of each row."""
    # Two passes over the rows but no copy of them.
    found: Measured = np.abs(
        np.maximum(rows.max(1, initial=0.0), -rows.min(1, initial=0.0))
    ).astype(np.float64)
    return found


def survey(rows: Floats) -> Survey:
    """Largest and std of each row; their bits depend on nothing but the values."""
    count = rows.shape[1]
    if not count:
        return Survey(np.zeros(len(rows)), np.zeros(len(rows)))
    top, total, squares = moments(rows).T
    if count == 1:
        return Survey(top, top)
    with np.errstate(invalid="ignore"):  # what is not finite is for the caller to refuse
        return Survey(top, np.sqrt(np.maximum(squares - total * total / count, 0) / (count - 1)))


def moments(rows: Floats) -> Measured:
    """max|x|, the sum of x - x[0] and that of its square, of each row, in float64: [rows, 3].

    One pass is exact enough since x[0] is one of the values: it cannot be farther from their mean than sqrt(n) stds, so
    that no more than log2(n) of 53 bits are lost. Sums run in 512 lanes, element i in lane i % 512, first to last;
    then the upper half of the lanes is added to the lower until one is left.
    """
    if kernels.usable(rows.size):
        return kernels.survey(rows.reshape(-1), rows.shape[1])
    lanes = min(2 ** (rows.shape[1] - 1).bit_length(), kernels.LANES)
    sums, squares = np.zeros((2, len(rows), lanes))
    first = rows[:, :1].astype(np.float64)
    with np.errstate(invalid="ignore"):
        for start in range(0, rows.shape[1], 32 * lanes):  # what stays in the cache
            d = rows[:, start : start + 32 * lanes] - first
            d = np.pad(d, ((0, 0), (0, -d.shape[1] % lanes))).reshape(len(rows), -1, lanes)
            # numpy adds in pairs along the last axis only; along any other it goes first to last.
            sums = np.concatenate([sums[:, None], d], axis=1).sum(1)
            squares = np.concatenate([squares[:, None], d * d], axis=1).sum(1)
        while lanes > 1:
            lanes //= 2
            sums, squares = (
                sums[:, :lanes] + sums[:, lanes:],
                squares[:, :lanes] + squares[:, lanes:],
            )
    return np.stack(
        [np.abs(np.maximum(rows.max(1), -rows.min(1))), sums[:, 0], squares[:, 0]], axis=1
    )


def self_scale(rows: Floats) -> Measured:
    """The std of each row, or |x| where all its elements are equal."""
    return survey(rows).scale


def norm(rows: Floats) -> Measured:
    """The Euclidean norm of each row."""
    found: Measured = np.sqrt(np.square(rows, dtype=np.float64).sum(1))
    return found


def mean_magnitude(rows: Floats) -> Measured:
    """mean|x| of each row."""
    return np.abs(rows).mean(1, dtype=np.float64) if rows.shape[1] else np.zeros(len(rows))
