"""NF, NormalFloat: levels at quantiles of the normal distribution (QLoRA, arXiv:2305.14314)."""

import functools
from dataclasses import dataclass
from statistics import NormalDist

from fedwsq.codecs.grid import Grid
from fedwsq.codecs.levels import mirrored
from fedwsq.codecs.rates import Rates


@dataclass(frozen=True)
class Nf(Grid):
    """Levels that N(0, 1) data fill about equally, -1, 0 and 1 among them; one bit is +-1."""

    wire_id = 4
    rates = Rates.of(1, 2, 3, 4)

    def levels(self, bits: int) -> tuple[float, ...]:
        return normal_float(bits)


@functools.cache
def normal_float(bits: int) -> tuple[float, ...]:
    """NF levels by QLoRA's recipe: 2^(bits - 1) quantiles above 0, and below it one fewer.

    They are evenly spaced in probability, from 1/2 to 1 - delta. The recipe has no one-bit set (it
    would be 0 and 1), so that one is +-1.
    """
    if bits == 1:
        return (-1.0, 1.0)
    half = 2 ** (bits - 1)
    cells = 2 ** (bits + 1)
    delta = (1 / cells + 1 / (cells - 2)) / 2
    largest = NormalDist().inv_cdf(1 - delta)

    def side(count: int) -> list[float]:
        shares = [0.5 + (0.5 - delta) * k / count for k in range(1, count)]
        return [NormalDist().inv_cdf(share) / largest for share in shares] + [1.0]

    return (*mirrored(side(half - 1)), 0.0, *side(half))
