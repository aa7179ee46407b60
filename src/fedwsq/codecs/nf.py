"""NF, NormalFloat: levels at quantiles of the normal distribution (QLoRA, arXiv:2305.14314)."""

import functools
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

from fedwsq.codecs.grid import Grid


@dataclass(frozen=True)
class Nf(Grid):
    """Levels that N(0, 1) data fill about equally, -1, 0 and 1 among them; one bit is +-1."""

    wire_id: ClassVar[int] = 4

    @property
    def rates(self) -> frozenset[int]:
        """1 to 4 bits."""
        return frozenset(range(1, 5))

    def levels(self, bits: int) -> tuple[float, ...]:
        """The 2^bits levels."""
        return normal_float(bits)


@functools.cache
def normal_float(bits: int) -> tuple[float, ...]:
    """NF levels by QLoRA's recipe; it has no one-bit set (it would be 0 and 1), so that one is +-1.

    Above 0 lie 2^(bits - 1) quantiles, evenly spaced in probability from 1/2 to 1 - delta, below it one fewer.
    """
    if bits == 1:
        return (-1.0, 1.0)
    half, cells = 2 ** (bits - 1), 2 ** (bits + 1)
    delta = (1 / cells + 1 / (cells - 2)) / 2
    largest = NormalDist().inv_cdf(1 - delta)

    def side(count: int) -> list[float]:
        return [
            NormalDist().inv_cdf(0.5 + (0.5 - delta) * k / count) / largest for k in range(1, count)
        ] + [1.0]

    return (*(-q for q in reversed(side(half - 1))), 0.0, *side(half))
