"""Sign: one bit a value and the mean magnitude.

Scaled signSGD (Karimireddy et al., 2019, arXiv:1901.09847).
"""

from dataclasses import dataclass

from fedwsq.codecs.grid import Grid, Unit
from fedwsq.codecs.rates import Rates


@dataclass(frozen=True)
class Sign(Grid):
    """The sign of each value times mean|x| of its group, the scale of least squared error.

    0 counts as negative.
    """

    unit: Unit = "mean"
    wire_id = 6
    rates = Rates.of(1)

    def levels(self, bits: int) -> tuple[float, ...]:
        return (-1.0, 1.0)
