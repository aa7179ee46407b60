"""Scales by group: one for the whole tensor, one for each output channel, or one for each block of elements."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedwsq.codecs.base import MAX_MAGNITUDE
from fedwsq.core.errors import ConfigError, MessageError

Scales = Literal["tensor", "channel", "block"]
Floats = NDArray[np.float32]
Measured = NDArray[np.float64]
# The largest that every receiver takes: float32 rounds MAX_MAGNITUDE itself up.
LARGEST_SCALE = float(np.nextafter(np.float32(MAX_MAGNITUDE), np.float32(0)))


@dataclass(frozen=True)
class Groups:
    """`count` runs of `size` elements each; the last may be shorter."""

    count: int
    size: int

    def measure(self, values: Floats, statistic: Callable[[Floats], Measured]) -> Floats:
        """The statistic, a function of rows, of every group."""
        if self.count == 1:
            found = statistic(values[None])
        else:
            whole = len(values) // self.size
            found = statistic(values[: whole * self.size].reshape(whole, self.size))
            if whole < self.count:
                found = np.concatenate([found, statistic(values[whole * self.size :][None])])
        return np.minimum(found, LARGEST_SCALE).astype(np.float32)

    def spread(self, scales: Floats, numel: int) -> Floats:
        """The scale of every element; a single one is left as it is, to be broadcast."""
        return scales if self.count == 1 else np.repeat(scales, self.size)[:numel]


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
        raise ConfigError(f'{codec} scales = "{scales}" is unknown; it is "tensor", "channel" or "block"')
    if not 2 <= block <= 2**20:
        raise ConfigError(f"{codec} block = {block} is out of range; a block has 2 to {2**20} elements")


def check_sides(codec: str, side: tuple[float, ...], groups: Groups) -> None:
    """Refuse a packet that has not one scale for each group."""
    if len(side) != groups.count:
        raise MessageError(f"a {codec} packet has {groups.count} side value(s), its scales, not {len(side)}")


def largest(rows: Floats) -> Measured:
    """max|x| of each row."""
    # Two passes over the rows but no copy of them.
    found: Measured = np.maximum(rows.max(1, initial=0.0), -rows.min(1, initial=0.0)).astype(np.float64)
    return found


def deviation(rows: Floats) -> Measured:
    """The unbiased std of each row, mean removed, or |x| of a single element."""
    # numpy, since the last bits of a torch reduction depend on the number of threads.
    if rows.shape[1] == 1:
        magnitude: Measured = np.abs(rows[:, 0]).astype(np.float64)
        return magnitude
    if len(rows) == 1:
        return np.array([np.std(rows[0], dtype=np.float64, ddof=1)]) if rows.size else np.zeros(1)
    std: Measured = np.std(rows, axis=1, dtype=np.float64, ddof=1)
    return std


def self_scale(rows: Floats) -> Measured:
    """The std of each row, or |x| where all its elements are equal: a scale that never loses a row that is not zero."""
    std = deviation(rows)
    return np.where(std > 0, std, largest(rows))


def norm(rows: Floats) -> Measured:
    """The Euclidean norm of each row."""
    found: Measured = np.sqrt(np.square(rows, dtype=np.float64).sum(1))
    return found


def mean_magnitude(rows: Floats) -> Measured:
    """mean|x| of each row."""
    return np.abs(rows).mean(1, dtype=np.float64) if rows.shape[1] else np.zeros(len(rows))
