"""FP: the values of floating-point numbers of 1, 2 or 4 bits."""

import functools
from dataclasses import dataclass
from typing import ClassVar, Literal

from fedwsq.codecs.grid import Grid
from fedwsq.core.errors import ConfigError

FORMATS = {2: (1, 0), 4: (2, 1)}  # exponent and mantissa bits beside the sign
# The magnitudes of bitsandbytes' FP4, which is a format of its own.
BITSANDBYTES = (0, 1 / 192, 1 / 6, 1 / 4, 1 / 3, 1 / 2, 2 / 3, 1)


@dataclass(frozen=True)
class Fp(Grid):
    """Small floats over the largest of them: 4 bits are E2M1, 2 bits -1, 0 and 1, one bit +-1.

    -0 and 0 are one level, so one code is never used. `table = "bitsandbytes"` has that library's 4-bit levels instead.
    """

    table: Literal["e2m1", "bitsandbytes"] = "e2m1"
    wire_id: ClassVar[int] = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.table not in ("e2m1", "bitsandbytes"):
            raise ConfigError(
                f'fp table = "{self.table}" is unknown; it is "e2m1" or "bitsandbytes"'
            )

    @property
    def rates(self) -> frozenset[int]:
        """1, 2 and 4 bits."""
        return frozenset({1, *FORMATS})

    def levels(self, bits: int) -> tuple[float, ...]:
        """The distinct values of this width, over the largest."""
        if bits == 1:
            return (-1.0, 1.0)
        return mirrored(
            BITSANDBYTES
            if bits == 4 and self.table == "bitsandbytes"
            else magnitudes(*FORMATS[bits])
        )


def magnitudes(exponent_bits: int, mantissa_bits: int) -> tuple[float, ...]:
    """The magnitudes of a float without infinities: subnormals first, then a binade for each exponent above 0."""
    parts = [m / 2**mantissa_bits for m in range(2**mantissa_bits)]
    return (*parts, *((1 + part) * 2.0**e for e in range(2**exponent_bits - 1) for part in parts))


@functools.cache
def mirrored(found: tuple[float, ...]) -> tuple[float, ...]:
    """Ascending magnitudes from 0, over the largest, with both signs."""
    scaled = [q / found[-1] for q in found]
    return (*(-q for q in reversed(scaled[1:])), *scaled)
