import math

import numpy as np
import pytest
import torch

from fedwsq.codecs import CODECS, Danuq, Float32, Topk, Uq
from fedwsq.codecs import measure as measure_module
from fedwsq.codecs.levels import levels
from fedwsq.codecs.levels import normal_error as exact_error
from fedwsq.codecs.measure import measure, normal_error, normal_zeros, samples, usual_rates


@pytest.mark.parametrize("kind", ["paper", "optimal", "lloyd-max"])
@pytest.mark.parametrize("bits", [1, 2, 4])
def test_the_measured_error_is_the_integral(kind, bits):
    found = normal_error(Danuq(levels=kind), bits)
    assert found == pytest.approx(exact_error(levels(bits, kind)), rel=0.03)
    assert found == normal_error(Danuq(levels=kind), float(bits))


@pytest.mark.parametrize("name", list(CODECS))
def test_every_codec_can_be_measured_and_more_bits_lose_less(name):
    codec = CODECS[name]()
    rates = usual_rates(codec)
    errors = [normal_error(codec, rate) for rate in rates]
    assert rates == sorted(rates)
    assert all(math.isfinite(error) and error >= 0 for error in errors)
    assert errors == sorted(errors, reverse=True)


def test_scales_that_are_not_for_the_whole_tensor_are_right_too():
    blocks = normal_error(Danuq(scale_per="block"), 4)
    assert blocks == pytest.approx(normal_error(Danuq(), 4), rel=1e-6)


@pytest.mark.parametrize("remembered", [normal_error, normal_zeros])
def test_what_is_remembered_of_rates_has_an_end(monkeypatch, remembered):
    """A policy may grant every client a rate of its own."""
    monkeypatch.setattr(measure_module, "_normal", lambda: torch.ones(8))
    try:
        for number in range(3000):
            remembered(Topk(), 1 + number / 3000)
        assert remembered.cache_info().currsize <= 1024
    finally:
        remembered.cache_clear()


def test_samples_are_the_same_every_time_and_of_unit_variance():
    first = samples(5000)
    again = samples(5000)
    assert list(first) == ["normal", "laplace", "student"]
    for kind, x in first.items():
        assert torch.equal(x, again[kind])
        assert x.square().mean().item() == pytest.approx(1, rel=1e-5)
    # E|x| of unit variance: sqrt(2 / pi), 1 / sqrt(2), and 2 / pi of Student's t with three degrees
    # of freedom.
    expected = {"normal": math.sqrt(2 / math.pi), "laplace": math.sqrt(0.5), "student": 2 / math.pi}
    for kind, x in samples(2**18).items():
        assert x.abs().mean().item() == pytest.approx(expected[kind], rel=0.03)


def test_bits_count_the_code_and_four_bytes_a_side_value():
    x = torch.from_numpy(np.linspace(-1, 1, 1000, dtype=np.float32))
    assert measure(Float32(), 32, x).bits_per_parameter == 32
    assert measure(Danuq(), 4, x).bits_per_parameter == pytest.approx((500 + 4) * 8 / 1000)
    # 1000 elements are 16 blocks of 64
    assert measure(Uq(scale_per="block"), 2, x).bits_per_parameter == pytest.approx(
        (250 + 64) * 8 / 1000
    )


def test_the_error_is_relative_and_times_are_taken():
    x = torch.tensor([1.0, -1.0, 3.0, -3.0])
    found = measure(Uq(rounding="nearest"), 1, x)  # all go to +-3: (4 + 4) / 20
    assert found.error == pytest.approx(0.4)
    assert found.encode_seconds > 0
    assert found.decode_seconds > 0
    assert math.isnan(measure(Uq(), 1, x, repeats=0).encode_seconds)


def test_usual_rates_are_those_on_offer():
    assert usual_rates(Danuq()) == [1, 2, 4]
    assert usual_rates(Uq()) == [1, 2, 4, 8]
    assert usual_rates(Float32()) == [32]
