"""QSGD: the sign and a random magnitude between evenly spaced ones.

(Alistarh et al., 2017, arXiv:1610.02132)
"""

from dataclasses import dataclass

import numpy as np

from fedwsq.codecs import kernels
from fedwsq.codecs.grid import Grid, RoundingMode, Unit
from fedwsq.codecs.kernels import Floats
from fedwsq.codecs.packing import Codes
from fedwsq.codecs.rates import Rates


@dataclass(frozen=True)
class Qsgd(Grid):
    """Magnitudes 0, 1/s, ..., 1 of the Euclidean norm with a sign, s = 2^(bits - 1) - 1.

    It is what FedPAQ first used. The norm of n elements is about sqrt(n) times their std, so that
    at few bits nearly all become 0: take blocks, or `unit = "absmax"`, which at 2 bits is TernGrad
    (arXiv:1705.07878).
    """

    unit: Unit = "norm"
    rounding: RoundingMode = "stochastic"
    wire_id = 3
    rates = Rates.of(*range(2, 9))  # one bit would leave no magnitude but 0
    form = kernels.MAGNITUDE

    def levels(self, bits: int) -> tuple[float, ...]:
        """2^bits - 1 evenly spaced levels from -1 to 1, with 0 among them."""
        s = steps(bits)
        return tuple(k / s for k in range(-s, s + 1))

    def _codes(self, ratios: Floats, bits: int, draws: Floats) -> Codes:
        return quantize_magnitude(ratios, bits, draws)


def steps(bits: int) -> int:
    """The largest magnitude that fits beside a sign."""
    return int(2 ** (bits - 1)) - 1


def quantize_magnitude(ratios: Floats, bits: int, u: Floats | float) -> Codes:
    """The codes s + sign(x) l of x / scale, l = floor(s|x|) + [u < fraction], never above s.

    With `u` uniform on [0, 1) the level's expectation is `x`. With u = 1/2 it is the nearest, of
    two equals that nearer to 0.
    """
    s = steps(bits)
    magnitude = np.abs(ratios) * np.float32(s)
    whole = np.floor(magnitude)
    whole += u < magnitude - whole
    signed = np.copysign(np.minimum(whole, s), ratios)
    codes: Codes = (s + signed).astype(np.uint8)
    return codes
