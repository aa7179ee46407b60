"""The ranges that settings have in common, and the error of one that is outside."""

import math
from collections.abc import Callable
from typing import NamedTuple

from fedwsq.core.errors import ConfigError


class Range(NamedTuple):
    """What a number may be, in words and as a test; NaN is in no range."""

    words: str
    holds: Callable[[float], bool]


ABOVE_0 = Range("above 0", lambda x: x > 0)
ABOVE_0_FINITE = Range("above 0 and finite", lambda x: 0 < x < math.inf)
FROM_0_FINITE = Range("finite and not negative", lambda x: 0 <= x < math.inf)
FROM_0_TO_1 = Range("from 0 to below 1", lambda x: 0 <= x < 1)


def require(allowed: Range, **settings: float) -> None:
    """Raise `ConfigError` for a setting out of range: `require(ABOVE_0, lr=self.lr)`."""
    for name, value in settings.items():
        if not allowed.holds(value):
            raise ConfigError(f"{name} is {value}, must be {allowed.words}")
