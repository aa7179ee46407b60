import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedwsq.codecs import Rates
from fedwsq.codecs.rates import as_sent, spread_rates
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


@given(st.floats(0, 3e38))
def test_what_travels_is_a_float32(rate):
    assert as_sent(rate) == float(np.float32(rate))


@pytest.mark.parametrize("rate", [1.6, 0.1, 3.3])
def test_rates_are_compared_as_they_travel(rate):
    assert as_sent(rate) != rate
    for rates in (Rates.of(rate, 8), Rates.between(rate, 8), Rates.between(0.05, rate)):
        assert rate in rates
        assert as_sent(rate) in rates
        assert f"{rate}" in str(rates)
    assert rate * 1.000001 not in Rates.between(0.05, rate)
    assert rate * 0.999999 not in Rates.of(rate)
    assert Rates.of(rate).only == rate


@pytest.mark.parametrize("rate", [1e39, -1e39, 10**400, math.inf, math.nan, 0, -1])
def test_what_is_no_rate_is_not_on_offer(rate):
    assert rate not in FEW
    assert rate not in RANGE


def test_only():
    assert Rates.of(32).only == 32
    assert FEW.only is None
    assert RANGE.only is None
    assert Rates.between(2, 2).only is None


def test_the_nearest():
    assert [FEW.nearest(wanted) for wanted in (0.1, 2, 2.9, 9)] == [1, 2, 2, 4]
    assert [RANGE.nearest(wanted) for wanted in (0.01, 3.3, 9)] == [0.05, 3.3, 8]


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


# Rates spread over tensors


def spent(sizes, rates):
    return sum(sizes[name] * rates[name] for name in sizes)


def test_spread_by_hand():
    """64 R + 4 S = 68 and S = R + 2, as log4 of 64 / 4 is 2: R = 60 / 68."""
    found = spread_rates({"small": 4, "large": 64}, 1.0, RANGE)
    assert found == {"large": pytest.approx(60 / 68), "small": pytest.approx(60 / 68 + 2)}


def test_what_would_get_less_than_the_least_gets_that():
    """Without a least, the large one would be at -0.12; the small one has all that is left."""
    found = spread_rates({"large": 64, "small": 4}, 0.1, RANGE)
    assert found == {"large": 0.05, "small": pytest.approx((6.8 - 3.2) / 4)}


def test_nothing_is_above_the_most_and_empty_tensors_have_no_rate():
    found = spread_rates({"large": 2**16, "none": 0, "one": 1}, 7.9, RANGE)
    assert found["one"] == 8
    assert found["large"] < 8
    assert "none" not in found
    assert spread_rates({}, 1.0, RANGE) == {}


def test_no_other_spending_loses_less():
    """Brute force over rates in steps of 0.05 that spend no more."""
    sizes = {"a": 100, "b": 30, "c": 7}
    best = spread_rates(sizes, 0.6, RANGE)
    budget = 0.6 * 137
    least = sum(4.0**-rate for rate in best.values())
    tried = [0.05 * k for k in range(1, 90)]
    for rates in itertools.product(tried, repeat=3):
        if spent(sizes, dict(zip(sizes, rates, strict=True))) <= budget:
            assert sum(4.0**-rate for rate in rates) >= least - 1e-9


@given(
    st.dictionaries(st.text(max_size=3), st.integers(0, 10**7), max_size=12),
    st.floats(0.05, 8.0),
)
def test_a_spread_keeps_its_mean_and_its_order(sizes, mean):
    found = spread_rates(sizes, mean, RANGE)
    assert found.keys() == {name for name in sizes if sizes[name]}
    assert all(rate in RANGE for rate in found.values())
    elements = sum(sizes.values())
    total = sum(sizes[name] * rate for name, rate in found.items())
    assert total <= mean * elements * (1 + 1e-9) + 1e-9
    if elements and max(found.values()) < 8:
        assert total == pytest.approx(mean * elements, rel=1e-6)
    by_size = sorted(found, key=lambda name: sizes[name])
    for smaller, larger in itertools.pairwise(by_size):
        assert found[smaller] >= found[larger] - 1e-9
