"""Squared errors on N(0, 1), measured from real packets, against tables computed apart from this.

Fifty draws of 36,864 values, the size of a 64 x 64 x 3 x 3 convolution, are the fifty channels of
one tensor.
"""

import functools
import json
from pathlib import Path

import pytest
import torch

from fedwsq.codecs import Danuq, Danuq8, Fp, Nf, Sign, Uq
from fedwsq.codecs.levels import best_scale

WORKED = json.loads((Path(__file__).parents[1] / "golden" / "worked.json").read_text())
# Expected max|x| of that many values. From draw to draw it varies by 7 %, so here every draw has
# the mean one.
EXPECTED_MAX = 4.317292641271752
# rounding -> bits -> error with the scale at max|x|
UQ = {
    "stochastic": {1: 17.639046, 2: 1.4581083, 3: 0.25358964, 4: 0.055225925, 8: 0.00019109288},
    "nearest": {1: 12.749613, 2: 0.76781313, 3: 0.12679676, 4: 0.027614355, 8: 9.6908791e-05},
}
# codec, bits -> the best multiple of the std, and the error there, at the std and at max|x|
BITSANDBYTES = Fp(table="bitsandbytes")
FIXED = {
    (Nf(), 1): (0.79788456, 0.36338023, 0.40423088, 12.749613),
    (Nf(), 2): (1.3808666, 0.14633945, 0.18703305, 0.60075186),
    (Nf(), 3): (2.1650400, 0.03702095, 0.15654356, 0.08159071),
    (Nf(), 4): (2.8630633, 0.0098993176, 0.15242558, 0.014161411),
    (Fp(), 1): (0.79788456, 0.36338023, 0.40423088, 12.749613),
    (Fp(), 2): (1.2240064, 0.19017404, 0.20881377, 0.90513636),
    (Fp(), 4): (2.9224752, 0.012684904, 0.15311192, 0.015653382),
    (BITSANDBYTES, 4): (2.5636226, 0.016586125, 0.15331405, 0.03085171),
}


@functools.cache
def draws():
    return torch.randn(50, 36_864, generator=torch.Generator().manual_seed(1))


@functools.cache
def draws_with_the_expected_maximum():
    x = draws().clamp(-EXPECTED_MAX, EXPECTED_MAX)
    x[:, 0] = EXPECTED_MAX
    return x


def error(codec, x, bits, shared=None):
    shared = torch.empty(0) if shared is None else shared
    decoded = codec.decode(codec.encode(x, shared, bits, seed=2), shared, seed=2)
    return (decoded.view(x.shape) - x).double().square().mean().item()


def named(entry):
    codec, bits = entry
    return f"{type(codec).__name__.lower()}-{bits}-{getattr(codec, 'table', '')}"


@pytest.mark.parametrize(("codec", "bits"), FIXED, ids=map(named, FIXED))
def test_nf_and_fp(codec, bits):
    best, at_best, at_std, at_absmax = FIXED[codec, bits]
    cls = type(codec)
    table = {"table": codec.table} if isinstance(codec, Fp) else {}
    assert best_scale(codec.levels(bits)) == pytest.approx(best, rel=1e-6)
    assert error(cls(unit="fitted", scale_per="channel", **table), draws(), bits) == pytest.approx(
        at_best, rel=0.01
    )
    assert error(cls(unit="std", scale_per="channel", **table), draws(), bits) == pytest.approx(
        at_std, rel=0.01
    )
    at_most = error(cls(scale_per="channel", **table), draws_with_the_expected_maximum(), bits)
    assert at_most == pytest.approx(at_absmax, rel=0.03)


@pytest.mark.parametrize(
    ("rounding", "bits"), [(rounding, bits) for rounding in UQ for bits in UQ[rounding]]
)
def test_uq(rounding, bits):
    found = error(
        Uq(rounding=rounding, scale_per="channel"), draws_with_the_expected_maximum(), bits
    )
    # The table counts normal values beyond the maximum, which no draw has: 1.5 % of it at 8 bits.
    assert found == pytest.approx(UQ[rounding][bits], rel=0.03)


def test_absmax_of_draws_as_they_come():
    # The mean of fifty squared maxima, each 14 % up or down, is 2 % up or down: three of these.
    assert error(Uq(scale_per="channel"), draws(), 4) == pytest.approx(
        UQ["stochastic"][4], rel=0.06
    )
    assert error(Nf(scale_per="channel"), draws(), 4) == pytest.approx(FIXED[Nf(), 4][3], rel=0.06)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 6, 8])
def test_danuq(bits):
    worked = WORKED["danuq"][str(bits)]
    one = torch.ones(1)
    assert error(Danuq(levels="optimal"), draws(), bits, one) == pytest.approx(
        worked["mse"], rel=0.01
    )
    assert error(Danuq(levels="lloyd-max"), draws(), bits, one) == pytest.approx(
        worked["lloyd_max_mse"], rel=0.01
    )
    if bits in (1, 2, 4):
        expected = WORKED["danuq.mse_code"][str(bits)][0]
        assert error(Danuq(), draws(), bits, one) == pytest.approx(expected, rel=0.01)
        for codec in (
            Danuq(scale_per="channel"),
            Danuq(scale_init="calibrate", scale_per="channel", dequantize="own"),
        ):
            assert error(codec, draws(), bits) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_danuq_with_a_scale_that_is_off(bits):
    for ratio, expected in WORKED["danuq.scale_mismatch_relative_mse"][str(bits)].items():
        found = error(Danuq(), draws(), bits, torch.tensor([1 / float(ratio)]))
        assert found == pytest.approx(expected, rel=0.01), ratio


def test_a_band_limits_what_a_scale_that_is_off_costs():
    x = draws()
    off = torch.tensor([4.0])
    assert error(Danuq(), x, 1, off) > 6
    assert error(Danuq(band=2.0), x, 1, off) == pytest.approx(0.36338, rel=0.01)


def test_one_bit_and_eight():
    assert error(Sign(scale_per="channel"), draws(), 1) == pytest.approx(0.36338023, rel=0.01)
    assert error(Danuq8(unit="fitted", scale_per="channel"), draws(), 8) == pytest.approx(
        4.118695e-05, rel=0.01
    )
