import math

import numpy as np
import pytest
import torch

from fedwsq.codecs import Packet, Qsgd
from fedwsq.codecs.packing import pack, unpack
from fedwsq.codecs.qsgd import quantize_magnitude
from fedwsq.core.errors import ConfigError, MessageError

NONE = torch.empty(0)
X = [0.10, -0.40, 0.05, 0.25]
DRAWS = [0.30, 0.90, 0.60, 0.10]
NORM = math.sqrt(0.235)  # 0.01 + 0.16 + 0.0025 + 0.0625


def codes(packet):
    return unpack(packet.code, int(packet.rate), packet.numel).tolist()


@pytest.mark.parametrize(
    ("bits", "expected_codes", "expected"),
    [
        (2, [1, 1, 1, 2], [0.0, 0.0, 0.0, 0.48476798574163293]),  # s = 1
        # s = 7: 7 |x| / n = 1.44, 5.78, 0.72, 3.61; the draws lift 0.44, 0.72 and 0.61
        (
            4,
            [9, 2, 8, 11],
            [0.13850513878332368, -0.3462628469583092, 0.06925256939166184, 0.27701027756664737],
        ),
    ],
)
def test_worked_codes_and_values(bits, expected_codes, expected):
    chosen = quantize_magnitude(np.float32(X) / np.float32(NORM), bits, np.float32(DRAWS))
    assert chosen.tolist() == expected_codes
    packet = Packet(pack(chosen, bits), (NORM,), bits, 4, own_scale=True)
    Qsgd().check(packet)
    assert Qsgd().decode(packet, NONE, seed=0).tolist() == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("bits", range(2, 9))
def test_levels_are_signed_multiples_of_the_norm(bits):
    s = 2 ** (bits - 1) - 1
    assert Qsgd().levels(bits) == pytest.approx(np.arange(-s, s + 1) / s)
    x = torch.tensor([3.0, -4.0])
    packet = Qsgd().encode(x, NONE, bits, seed=1)
    assert packet.side == (5.0,)
    for code, ratio in zip(codes(packet), (0.6, -0.8), strict=True):
        assert abs((code - s) - ratio * s) < 1  # the magnitude below or above
        assert (code - s) * ratio >= 0


def test_zeros_and_a_single_value_are_exact():
    x = torch.tensor([0.0, -3.0, 0.0])
    for bits in range(2, 9):
        assert all(
            torch.equal(Qsgd().decode(Qsgd().encode(x, NONE, bits, k), NONE, k), x)
            for k in range(20)
        )


def test_a_norm_that_was_rounded_down_leads_to_no_further_level():
    beyond = np.nextafter(np.float32([1, -1]), np.float32([2, -2]))
    for bits in range(2, 9):
        assert quantize_magnitude(beyond, bits, np.zeros(2, np.float32)).tolist() == [
            2**bits - 2,
            0,
        ]


def test_nearest_rounds_each_magnitude():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    codec = Qsgd(unit="absmax", rounding="nearest")
    packet = codec.encode(x, NONE, 4, seed=0)
    ratios = x / x.abs().max()
    nearest = (ratios[:, None] - torch.tensor(codec.levels(4))).abs().argmin(1)
    assert codes(packet) == nearest.tolist()
    tie = codec.encode(
        torch.tensor([2.0, 1.0, -1.0]), NONE, 2, seed=0
    )  # halfway between 0 and +-2: 0
    assert codes(tie) == [2, 1, 1]


def test_absmax_at_two_bits_is_ternary():
    codec = Qsgd(unit="absmax")
    x = torch.tensor([0.5, -1.0]).repeat(50_000)
    decoded = codec.decode(codec.encode(x, NONE, 2, seed=0), NONE, seed=0)
    assert (decoded[1::2] == -1.0).all()
    assert set(decoded[::2].tolist()) == {0.0, 1.0}
    assert decoded[::2].double().mean().item() == pytest.approx(0.5, abs=0.01)


def test_the_unused_code_and_other_rates_are_refused():
    with pytest.raises(MessageError, match="a qsgd packet has code 3; its 3 levels end at 2"):
        Qsgd().check(Packet(b"\x03", (1.0,), 2, 1, own_scale=True))
    with pytest.raises(ConfigError, match="qsgd has no 1-bit rate; it offers 2, 3, 4, 5, 6, 7, 8"):
        Qsgd().encode(torch.ones(1), NONE, 1, seed=0)
    assert Qsgd().unbiased
