"""FP: the values of floating-point numbers of 1, 2 or 4 bits."""

import functools
from dataclasses import dataclass
from typing import Literal

from fedwsq.codecs.grid import Grid
from fedwsq.codecs.levels import mirrored
from fedwsq.codecs.rates import Rates

FORMATS = {2: (1, 0), 4: (2, 1)}  # exponent and mantissa bits beside the sign
# The magnitudes of bitsandbytes' FP4, which is a format of its own.
BITSANDBYTES = (0, 1 / 192, 1 / 6, 1 / 4, 1 / 3, 1 / 2, 2 / 3, 1)


@dataclass(frozen=True)
class Fp(Grid):
    """Small floats over the largest of them: 4 bits are E2M1, 2 bits -1, 0 and 1, one bit +-1.

    -0 and 0 are one level, so one code is never used. `table = "bitsandbytes"` has that library's
    4-bit levels instead.
    """

    table: Literal["e2m1", "bitsandbytes"] = "e2m1"
    wire_id = 5
    rates = Rates.of(1, *FORMATS)

    def levels(self, bits: int) -> tuple[float, ...]:
        if bits == 1:
            return (-1.0, 1.0)
        if bits == 4 and self.table == "bitsandbytes":
            return both_signs(BITSANDBYTES)
        return both_signs(magnitudes(*FORMATS[bits]))


def magnitudes(exponent_bits: int, mantissa_bits: int) -> tuple[float, ...]:
    """The magnitudes of a float without infinities, ascending."""
    parts = [m / 2**mantissa_bits for m in range(2**mantissa_bits)]
    found = list(parts)  # the subnormals
    for exponent in range(2**exponent_bits - 1):  # then a binade for each exponent above 0
        found += [(1 + part) * 2.0**exponent for part in parts]
    return tuple(found)


@functools.cache
def both_signs(found: tuple[float, ...]) -> tuple[float, ...]:
    """Ascending magnitudes from 0, over the largest, with both signs."""
    scaled = [q / found[-1] for q in found]
    return (*mirrored(scaled[1:]), *scaled)
