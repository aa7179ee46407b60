"""UQ: uniform levels over the update's own range, rounded by chance.

As FedPAQ uses it (arXiv:1909.13014).
"""

import functools
from dataclasses import dataclass

import numpy as np

from fedwsq.codecs import kernels
from fedwsq.codecs.grid import Grid, RoundingMode
from fedwsq.codecs.kernels import Floats
from fedwsq.codecs.packing import Codes
from fedwsq.codecs.rates import Rates


@dataclass(frozen=True)
class Uq(Grid):
    """Uniform quantization: 2^bits evenly spaced levels from -scale to scale, both included.

    With `unit = "absmax"` and stochastic rounding the mean is exact; one bit is then +-max|x| with
    odds (1 +- x / max|x|) / 2. Nearest rounding at one bit sends every value to an end.
    """

    rounding: RoundingMode = "stochastic"
    wire_id = 2
    rates = Rates.of(*range(1, 9))
    form = kernels.UNIFORM

    def levels(self, bits: int) -> tuple[float, ...]:
        return uniform_levels(bits)

    def _codes(self, ratios: Floats, bits: int, draws: Floats) -> Codes:
        return quantize_uniform(ratios, bits, draws)


def quantize_uniform(ratios: Floats, bits: int, u: Floats | float) -> Codes:
    """The codes of x / scale on 2^bits levels from -1 to 1.

    floor(f) + [u < f - floor(f)], f = (x + 1) / step. With `u` uniform on [0, 1) the level's
    expectation is `x`. With u = 1/2 it is the nearest, the lower of two equals.
    """
    top = 2**bits - 1
    # (x + 1) * top / 2 is f, and exact at x = -1, 0 and 1; a step of 2 / top may be off there.
    f = (ratios + np.float32(1)) * np.float32(top / 2)
    k = np.floor(f)
    k += u < f - k
    codes: Codes = np.clip(k, 0, top).astype(np.uint8)
    return codes


@functools.cache
def uniform_levels(bits: int) -> tuple[float, ...]:
    """2^bits evenly spaced levels from -1 to 1: symmetric, exact at both ends."""
    top = 2**bits - 1
    return tuple((2 * k - top) / top for k in range(top + 1))
