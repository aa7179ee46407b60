"""The ends of each range, and an error that names the setting."""

import math

import pytest

from fedwsq.core.errors import ConfigError
from fedwsq.core.ranges import ABOVE_0, ABOVE_0_FINITE, FROM_0_FINITE, FROM_0_TO_1, require


@pytest.mark.parametrize(
    ("allowed", "inside", "outside"),
    [
        (ABOVE_0, [1e-300, math.inf], [0.0, -1.0]),
        (ABOVE_0_FINITE, [1e-300, 1e300], [0.0, math.inf]),
        (FROM_0_FINITE, [0.0, 1e300], [-1e-300, math.inf]),
        (FROM_0_TO_1, [0.0, 0.999], [-1e-300, 1.0]),
    ],
)
def test_the_ends_of_a_range(allowed, inside, outside):
    for value in inside:
        require(allowed, rate=value)
    for value in [*outside, math.nan]:
        with pytest.raises(ConfigError, match=f"rate is {value}, must be {allowed.words}"):
            require(allowed, other=inside[0], rate=value)
