import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from level_tables import EVERY

from fedwsq.codecs.levels import (
    edges,
    levels,
    normal_bias,
    normal_entropy,
    normal_error,
)
from fedwsq.core.errors import ConfigError

WORKED = json.loads((Path(__file__).parents[1] / "golden" / "worked.json").read_text())
SOLVED = [int(bits) for bits in WORKED["danuq"]]
NODES, WEIGHTS = np.polynomial.legendre.leggauss(80)


def integrate(f, a, b):
    """Gauss-Legendre, to machine precision for what is smooth between `a` and `b`."""
    x = (a + b) / 2 + (b - a) / 2 * NODES
    return float((WEIGHTS * f(x)).sum() * (b - a) / 2)


def density(x):
    return np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def expectation(f, q):
    """E[f(x, Q(x))] for x ~ N(0, 1), cell by cell."""
    bounds = (-14.0, *edges(q), 14.0)
    return sum(
        integrate(lambda x, level=level: f(x, level) * density(x), a, b)
        for level, (a, b) in zip(q, pairwise(bounds), strict=True)
    )


def one_sided_cost(q):
    """The paper's closed form (supplement): the squared error on x > 0 with levels 0 and `q`."""
    q = (0.0, *q)
    u = [math.nan] + [(a + b) / 2 for a, b in pairwise(q)]
    root = math.sqrt(2 / math.pi)
    cost = (
        (q[-1] ** 2 + 1) / 2
        - root * q[1] * math.exp(-(u[1] ** 2) / 2)
        - q[1] ** 2 * math.erf(u[1] / 2**0.5) / 2
    )
    for r in range(1, len(q) - 1):
        cost += root * (q[r] - q[r + 1]) * math.exp(-(u[r + 1] ** 2) / 2)
        cost += (q[r] ** 2 - q[r + 1] ** 2) * math.erf(u[r + 1] / 2**0.5) / 2
    return cost


def sides(q):
    """The positive side, and the negative one mirrored, both ascending."""
    return [level for level in q if level > 0], [-level for level in reversed(q) if level < 0]


@pytest.mark.parametrize("bits", SOLVED)
def test_optimal_levels_match_the_worked_ones(bits):
    expected = WORKED["danuq"][str(bits)]
    found = levels(bits, "optimal")
    assert found == pytest.approx(expected["levels"], abs=1e-9, rel=0)
    assert normal_error(found) == pytest.approx(expected["mse"], rel=1e-9)
    assert normal_bias(found) == pytest.approx(expected["bias"], abs=1e-12)
    assert normal_error(levels(bits, "lloyd-max")) == pytest.approx(
        expected["lloyd_max_mse"], rel=1e-9
    )


@pytest.mark.parametrize(("bits", "kind"), EVERY)
def test_level_sets_are_well_formed(bits, kind):
    q = levels(bits, kind)
    assert len(q) == 2**bits
    assert all(a < b for a, b in pairwise(q))
    if kind in ("lloyd-max", "even") or bits == 1:
        assert [-level for level in reversed(q)] == list(q)
    else:
        assert q[2 ** (bits - 1) - 1] == 0.0


@pytest.mark.parametrize(
    ("bits", "kind"), [case for case in EVERY if case[1] in ("optimal", "lloyd-max")]
)
def test_every_free_level_is_the_centroid_of_its_cell(bits, kind):
    q = levels(bits, kind)
    for level, (a, b) in zip(q, pairwise((-14.0, *edges(q), 14.0)), strict=True):
        if level:
            mass = integrate(density, a, b)
            assert integrate(lambda x: x * density(x), a, b) / mass == pytest.approx(
                level, abs=1e-10, rel=0
            )


def test_one_bit_is_half_normal_mean():
    mean = math.sqrt(2 / math.pi)
    for kind in ("optimal", "lloyd-max"):
        assert levels(1, kind) == pytest.approx((-mean, mean), abs=1e-15)
    assert normal_error((-mean, mean)) == pytest.approx(1 - 2 / math.pi, abs=1e-15)
    assert normal_entropy((-mean, mean)) == 1.0


def test_lloyd_max_is_max_1960_table_one():
    assert levels(2, "lloyd-max")[2:] == pytest.approx((0.4528, 1.510), abs=5e-4)
    assert levels(3, "lloyd-max")[4:] == pytest.approx((0.2451, 0.7560, 1.344, 2.152), abs=5e-4)


def test_published_constants_against_the_optimum():
    largest = {
        bits: max(abs(np.subtract(levels(bits), levels(bits, "optimal")))) for bits in (1, 2, 4)
    }
    assert largest == pytest.approx(
        {int(bits): gap for bits, gap in WORKED["danuq.maxdiff_code"].items()}, abs=1e-9
    )
    # 1 and 2 bits agree to the four published decimals (1.7241 was rounded up to 1.7242); 4 bits do
    # not.
    assert largest[1] < 5e-5
    assert largest[2] < 1e-4
    assert largest[4] == pytest.approx(0.159, abs=1e-3)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_published_constants_cost_what_they_should(bits):
    error, bias = WORKED["danuq.mse_code"][str(bits)]
    assert normal_error(levels(bits)) == pytest.approx(error, rel=1e-12)
    assert normal_bias(levels(bits)) == pytest.approx(bias, abs=1e-14)


def test_one_sided_cost_is_the_integral_it_claims_to_be():
    assert one_sided_cost((0.7, 1.5, 2.2)) == pytest.approx(
        WORKED["danuq.eq_check"]["quad"], abs=1e-14
    )
    q = (-2.2, -1.5, -0.7, 0.0, 0.7, 1.5, 2.2)
    assert 2 * one_sided_cost((0.7, 1.5, 2.2)) == pytest.approx(
        expectation(lambda x, level: (x - level) ** 2, q), abs=1e-14
    )


@pytest.mark.parametrize("bits", range(2, 9))
def test_optimal_is_a_minimum_of_the_papers_cost(bits):
    for side in sides(levels(bits, "optimal")):
        best = one_sided_cost(side)
        gap = min(b - a for a, b in pairwise((0.0, *side)))
        for r in range(len(side)):
            for nudge in (-gap / 5, gap / 5):
                moved = [*side[:r], side[r] + nudge, *side[r + 1 :]]
                assert one_sided_cost(moved) > best + 1e-12  # Rounding is near 1e-15.


def test_the_published_4_bit_sides_cost_more_than_the_optimum():
    published = sides(levels(4))
    optimal = sides(levels(4, "optimal"))
    found = dict(
        zip(
            ("pub_pos", "pub_neg", "opt_pos", "opt_neg"),
            map(one_sided_cost, published + optimal),
            strict=True,
        )
    )
    assert found == pytest.approx(WORKED["danuq.side_cost"], rel=1e-11)
    assert sum(map(one_sided_cost, optimal)) == pytest.approx(
        normal_error(levels(4, "optimal")), rel=1e-12
    )


@pytest.mark.parametrize(("bits", "kind"), EVERY)
def test_error_bias_and_entropy_match_quadrature(bits, kind):
    q = levels(bits, kind)
    assert normal_error(q) == pytest.approx(
        expectation(lambda x, level: (x - level) ** 2, q), rel=1e-9
    )
    assert normal_bias(q) == pytest.approx(expectation(lambda x, level: level, q), abs=1e-13)
    masses = [integrate(density, a, b) for a, b in pairwise((-14.0, *edges(q), 14.0))]
    assert normal_entropy(q) == pytest.approx(-sum(p * math.log2(p) for p in masses), rel=1e-10)
    assert normal_entropy(q) <= bits


def test_scale_mismatch_table():
    for bits, row in WORKED["danuq.scale_mismatch_relative_mse"].items():
        found = {ratio: normal_error(levels(int(bits)), float(ratio)) for ratio in row}
        assert found == pytest.approx(row, rel=1e-11)


def test_entropy_of_three_cells_by_hand():
    # Edges at -t and t with P(|x| > t) = 1/2: masses 1/4, 1/2, 1/4, so 2/4 + 1/2 + 2/4 = 1.5 bits.
    t = 0.6744897501960817
    assert normal_entropy((-2 * t, 0.0, 2 * t)) == pytest.approx(1.5, abs=1e-12)


def test_edges_are_midpoints():
    assert edges((-1.0, 0.0, 3.0)) == (-0.5, 1.5)


@pytest.mark.parametrize(
    ("bits", "kind", "text"),
    [
        (
            3,
            "paper",
            'danuq has no 3-bit "paper" levels; '
            'it offers 1, 2, 4 (kinds "optimal", "lloyd-max" and "even" offer 1 to 8)',
        ),
        (9, "optimal", 'danuq has no 9-bit "optimal" levels; it offers 1 to 8'),
        (0, "lloyd-max", 'danuq has no 0-bit "lloyd-max" levels; it offers 1 to 8'),
        (
            2,
            "optimum",
            'danuq has no level kind "optimum"; it offers paper, optimal, lloyd-max, even; '
            "did you mean optimal?",
        ),
        (2, "x", 'danuq has no level kind "x"; it offers paper, optimal, lloyd-max, even'),
    ],
)
def test_what_is_not_offered(bits, kind, text):
    with pytest.raises(ConfigError) as error:
        levels(bits, kind)
    assert str(error.value) == text


@pytest.mark.parametrize(
    ("bits", "step", "error"),
    [(1, 1.5958, 0.3634), (2, 0.9957, 0.1188), (3, 0.5860, 0.03744), (4, 0.3352, 0.01154)],
)
def test_even_levels_have_the_best_step(bits, step, error):
    """Max (1960), table 2."""
    even = levels(bits, "even")
    gaps = [b - a for a, b in pairwise(even)]
    assert gaps == pytest.approx([step] * len(gaps), abs=1e-4)
    assert normal_error(even) == pytest.approx(error, abs=1e-4)


@pytest.mark.parametrize("function", [normal_error, normal_bias, normal_entropy])
@pytest.mark.parametrize("given", [[], None, ["a"], [math.nan], [0.0, math.inf]])
def test_what_has_no_levels_cannot_be_measured(function, given):
    with pytest.raises(ConfigError, match=r"levels are .*, must be a list of finite numbers"):
        function(given)


@pytest.mark.parametrize("ratio", [0, -1.0, math.nan, math.inf])
def test_a_scale_that_is_none(ratio):
    with pytest.raises(ConfigError, match=f"scale_ratio is {ratio}, must be above 0 and finite"):
        normal_error([-1.0, 1.0], ratio)
