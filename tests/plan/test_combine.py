"""Combinations of updates against numbers worked out by hand, and against brute force."""

import itertools
import math

import numpy as np
import pytest

from fedwsq.core.errors import ConfigError
from fedwsq.plan import COMBINES, load_plan
from fedwsq.plan.combine import CentredClipping, Krum, Median, TrimmedMean

FIVE = np.array(
    [[1.0, 0.0], [2.0, 0.5], [3.0, -0.5], [4.0, 0.0], [-100.0, 50.0]], np.float32
)  # the last one lies


def combined(combine, block, widths=(None,)):
    """As a server does it, block by block."""
    edges = np.cumsum([0, *[width or block.shape[1] for width in widths]])
    blocks = [block[:, a:b] for a, b in itertools.pairwise(edges)]
    known = np.add.reduce([combine.survey(each) for each in blocks])
    return np.concatenate([combine.merge(each, known) for each in blocks])


def test_a_trimmed_mean_by_hand():
    # Without -100 and 4: (1 + 2 + 3) / 3. Without -0.5 and 50: (0 + 0.5 + 0) / 3.
    assert combined(TrimmedMean(cut=0.2), FIVE).tolist() == pytest.approx([2.0, 0.5 / 3])
    # Two at each end leave the median.
    assert combined(TrimmedMean(cut=0.4), FIVE).tolist() == [2.0, 0.0]
    # Of four, a fifth is rounded up to one.
    assert combined(TrimmedMean(cut=0.2), FIVE[1:]).tolist() == pytest.approx([2.5, 0.25])
    # Of two nothing can go.
    assert combined(TrimmedMean(cut=0.4), FIVE[:2]).tolist() == [1.5, 0.25]


@pytest.mark.parametrize("cut", [0.1, 0.2, 0.3, 0.49])
@pytest.mark.parametrize("count", [3, 10, 30])
def test_a_trimmed_mean_by_brute_force(cut, count):
    block = np.random.default_rng(count).standard_normal((count, 20)).astype(np.float32)
    each = min(math.ceil(round(cut * count, 6)), (count - 1) // 2)
    for column, value in zip(block.T, combined(TrimmedMean(cut=cut), block), strict=True):
        kept = sorted(column.tolist())[each : count - each]
        assert value == pytest.approx(sum(kept) / len(kept), abs=1e-6)


def test_a_median_by_hand():
    assert combined(Median(), FIVE).tolist() == [2.0, 0.0]
    assert combined(Median(), FIVE[:4]).tolist() == [2.5, 0.0]


def test_centred_clipping_by_hand():
    # The centre is 2. Distances are 1, 0, 1, 98: their median is 1, so 100 counts as 3.
    block = np.array([[1.0], [2.0], [3.0], [2.0], [100.0]], np.float32)
    # (-1 + 0 + 1 + 0 + 1) / 5 past the centre.
    assert combined(CentredClipping(), block).tolist() == pytest.approx([2.2])
    # Half of that.
    assert combined(CentredClipping(radius=0.5), block).tolist() == pytest.approx([2.1])
    # Nobody is farther than 98.
    assert combined(CentredClipping(radius=98.0), block).tolist() == pytest.approx([21.6])
    same = np.ones((3, 2), np.float32)
    assert combined(CentredClipping(), same).tolist() == [1.0, 1.0]


def test_krum_by_hand():
    # Squared distances to the two nearest of five: 0 has 1 + 4, 1 has 1 + 1, 2 has 1 + 1, ...
    block = np.array([[0.0], [1.0], [2.0], [3.0], [100.0]], np.float32)
    assert combined(Krum(), block).tolist() == [1.5]


@pytest.mark.parametrize("bad", [1, 2])
def test_krum_by_brute_force(bad):
    rng = np.random.default_rng(bad)
    block = rng.standard_normal((9, 30)).astype(np.float32)
    block[4] *= -8
    scores = []
    for i in range(9):
        apart = [float(np.square(block[i] - block[j]).sum()) for j in range(9) if j != i]
        scores.append(sum(sorted(apart)[: 9 - bad - 2]))
    kept = sorted(range(9), key=scores.__getitem__)[: 9 - bad]
    assert 4 not in kept
    expected = block[sorted(kept)].mean(0)
    np.testing.assert_allclose(combined(Krum(bad=bad), block), expected, rtol=1e-6)


@pytest.mark.parametrize("name", COMBINES)
def test_blocks_make_no_difference(name):
    combine = COMBINES[name]()
    block = np.random.default_rng(0).standard_normal((7, 30)).astype(np.float32)
    whole = combined(combine, block)
    assert whole.dtype == np.float32
    np.testing.assert_allclose(combined(combine, block, (1, 12, 17)), whole, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", [name for name in COMBINES if name != "mean"])
@pytest.mark.parametrize("lie", [1e3, -1e3, 1e9])
def test_one_liar_of_five_does_not_get_far(name, lie):
    rng = np.random.default_rng(1)
    block = rng.standard_normal((5, 50)).astype(np.float32)
    block[2] = lie
    honest = np.delete(block, 2, axis=0)
    found = combined(COMBINES[name](), block)
    assert np.abs(found - honest.mean(0)).max() < 3  # an honest update has a std of 1
    assert np.abs(block.mean(0) - honest.mean(0)).max() > 100


@pytest.mark.parametrize("left", [1, 2, 3])
@pytest.mark.parametrize("name", COMBINES)
def test_whoever_is_left_is_combined(name, left):
    """Asked are enough; how many answer is another matter."""
    assert np.isfinite(combined(COMBINES[name](), FIVE[:left])).all()


ROBUST = {"aggregation": "uniform"}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"combine": "median"},
            "combine = median counts all clients alike, but aggregation is examples; "
            "use aggregation=uniform, or combine=mean",
        ),
        (
            {"combine": "krum", "method": "fedhq+"},
            "combine = krum counts all clients alike, but aggregation is error",
        ),
        (
            {"combine": "median", "clients_per_round": 2, **ROBUST},
            "combine needs 3 updates a round, of which one may be bad; 2 clients are 2: "
            "ask more with clients_per_round, or use combine=mean",
        ),
        (
            {"combine": {"name": "median", "bucket": 3}, **ROBUST},
            "5 clients in buckets of 3 are 2",
        ),
        ({"combine": {"name": "krum", "bad": 2}, **ROBUST}, "krum with bad = 2 needs 7 updates"),
        (
            {"combine": "trimmed_mean", "uplink.codec": "topk", **ROBUST},
            "combine = trimmed_mean looks at each coordinate by itself, and topk at 4 bits "
            "leaves 80 % of them at zero: use more bits, another codec, or "
            "combine=centred_clipping",
        ),
        ({"combine.cut": 0.2}, "unknown key combine.cut; mean has no settings"),
        ({"combine": {"name": "trimmed_mean", "cut": 0.5}}, "combine: cut is 0.5, must be above"),
        ({"combine": {"name": "median", "bucket": 0}}, "combine: bucket is 0, must be at least"),
        ({"combine": {"name": "krum", "bad": 0}}, "combine: bad is 0, must be at least 1"),
        (
            {"combine": {"name": "centred_clipping", "radius": 0}},
            "combine: radius is 0.0, must be above 0",
        ),
        ({"combine": "krun"}, "did you mean krum"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_said_at_the_start(settings, says):
    with pytest.raises(ConfigError) as caught:
        load_plan("quickstart", settings)
    assert says in str(caught.value)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_codes_that_are_not_mostly_zero_go_with_everything(bits):
    plan = load_plan("quickstart", {"combine": "median", "uplink.bits": bits, **ROBUST})
    assert plan.combine == Median()
