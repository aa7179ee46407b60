import math

import pytest

from fedwsq.codecs import Rates
from fedwsq.core.errors import ConfigError

FEW = Rates.of(4, 1, 2)
RANGE = Rates.between(0.05, 8)


def test_a_few_are_those_and_no_others():
    assert [rate for rate in (0.5, 1, 2, 2.0, 3, 4, 8, math.nan) if rate in FEW] == [1, 2, 2.0, 4]
    assert FEW.listed == (1, 2, 4)
    assert FEW.fixed_length


def test_an_interval_has_its_ends_and_all_between():
    tried = (0.049, 0.05, 1, math.pi, 8, 8.001, math.nan, math.inf)
    assert [rate for rate in tried if rate in RANGE] == [0.05, 1, math.pi, 8]
    assert not RANGE.fixed_length


def test_only():
    assert Rates.of(32).only == 32
    assert FEW.only is None
    assert RANGE.only is None
    assert Rates.between(2, 2).only is None


@pytest.mark.parametrize(
    ("rates", "text"), [(FEW, "1, 2, 4"), (RANGE, "0.05 to 8"), (Rates.of(32), "32")]
)
def test_a_refusal_names_what_is_on_offer(rates, text):
    assert str(rates) == text
    with pytest.raises(ConfigError, match=f"^mine has no 9-bit rate; it offers {text}$"):
        rates.require(9, "mine")
    with pytest.raises(ConfigError, match=f"^mine has no 9-bit levels; it offers {text}$"):
        rates.require(9, "mine", "levels")
    rates.require(rates.listed[0], "mine")


def test_equal_rates_are_equal():
    assert Rates.of(1, 2, 4) == FEW
    assert hash(FEW) == hash(Rates.of(1, 2, 4))
    assert Rates.of(1, 2) != Rates.between(1, 2)
