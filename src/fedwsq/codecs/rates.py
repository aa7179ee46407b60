"""The bit rates that a codec offers, and the one refusal of any other."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from fedwsq.core.errors import ConfigError

if TYPE_CHECKING:  # torch comes with it, and is not needed for numbers
    from fedwsq.core.types import Rate

FLOAT32 = struct.Struct("<f")
USUAL_BITS = 4  # of a codec that is named without bits, and of methods that code their updates


@dataclass(frozen=True)
class Rates:
    """A few rates, `Rates.of(1, 2, 4)`, or all of a closed interval, `Rates.between(0.05, 8)`.

    Rates are compared as they travel, in float32: a codec of 1.6 bits is asked for 1.60000002.

    >>> 3 in Rates.of(1, 2, 4), 3 in Rates.between(0.05, 8)
    (False, True)
    """

    listed: tuple[Rate, ...]  # ascending: every one of a few, or the two ends of an interval
    # Whether a code's length follows from its rate; a code from an interval may be shorter.
    fixed_length: bool

    @classmethod
    def of(cls, *rates: Rate) -> Rates:
        """These and no others."""
        return cls(tuple(sorted(rates)), fixed_length=True)

    @classmethod
    def between(cls, lowest: Rate, highest: Rate) -> Rates:
        """All from `lowest` to `highest`, both included."""
        return cls((lowest, highest), fixed_length=False)

    def __contains__(self, rate: Rate) -> bool:
        sent = as_sent(rate)
        if self.fixed_length:
            return sent in self._sent
        lowest, highest = self._sent
        return lowest <= sent <= highest

    def __str__(self) -> str:
        separator = ", " if self.fixed_length else " to "
        return separator.join(f"{rate:g}" for rate in self.listed)

    @cached_property
    def _sent(self) -> tuple[Rate, ...]:
        """The listed ones as they travel; for people and configs they stay as they were given."""
        return tuple(as_sent(rate) for rate in self.listed)

    @property
    def only(self) -> Rate | None:
        """The rate of a codec that has just one, which leaves nothing to decide."""
        return self.listed[0] if len(self.listed) == 1 else None

    def nearest(self, wanted: Rate) -> Rate:
        """The rate that is wanted, or of those listed the one nearest to it."""
        if wanted in self:
            return wanted
        return min(self.listed, key=lambda rate: abs(rate - wanted))

    def require(self, rate: Rate, who: str, what: str = "rate") -> None:
        """Raise `ConfigError` unless `who` offers this rate: "danuq has no 3-bit rate; ..."."""
        if rate not in self:
            raise ConfigError(f"{who} has no {rate:g}-bit {what}; it offers {self}")

    def width(self, rate: Rate, who: str) -> int:
        """The rate as a number of whole bits, for codecs that offer only such."""
        self.require(rate, who)
        return int(as_sent(rate))


def as_sent(rate: Rate) -> Rate:
    """The float32 that travels: what is granted and what packets claim must compare equal."""
    try:
        sent: float
        (sent,) = FLOAT32.unpack(FLOAT32.pack(float(rate)))
    except OverflowError:
        return math.inf if rate > 0 else -math.inf
    return sent


def spread_rates(sizes: Mapping[str, int], mean: Rate, offered: Rates) -> dict[str, Rate]:
    """A rate for each tensor, `mean` over all elements, so that what tensors lose adds up to least.

    Of R bits an element, a tensor of n elements loses about 4^-R of itself and takes n R bits.
    Tensors count alike, as each is a layer that all others depend on, so a further bit is best
    spent where 4^-R / n is most: R = log4(level / n), or the least or the most on offer.
    """
    lowest, highest = offered.listed
    found: dict[str, Rate] = {}
    largest_first = sorted((name for name in sizes if sizes[name]), key=lambda name: -sizes[name])
    budget = mean * sum(sizes.values())
    for at, name in enumerate(largest_first):
        left = [sizes[each] for each in largest_first[at:]]
        # log4 of the level at which those left spend just what is left.
        level = math.fsum([budget, *(n * math.log2(n) / 2 for n in left)]) / sum(left)
        rate = level - math.log2(sizes[name]) / 2
        found[name] = min(max(rate, lowest), highest)
        budget -= found[name] * sizes[name]
    return found
