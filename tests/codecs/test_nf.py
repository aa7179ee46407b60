import pytest
import torch

from fedwsq.codecs import Nf, Rates
from fedwsq.codecs.nf import normal_float
from fedwsq.codecs.packing import unpack
from fedwsq.core.errors import ConfigError

NONE = torch.empty(0)
# NF4 as published with QLoRA, to seven decimals
QLORA = [
    *(-1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0),
    *(0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0),
]
WORKED = {
    1: [-1.0, 1.0],
    2: [-1.0, 0.0, 0.4358181645831157, 1.0],
    3: [
        *(-1.0, -0.5350227084855379, -0.24693143181157526, 0.0),
        *(0.18333748033548752, 0.3819939543209139, 0.6229857417143423, 1.0),
    ],
    4: [
        *(-1.0, -0.696192805632343, -0.5250729594465005, -0.3949174259199071),
        *(-0.28444130892108205, -0.1847734028004556, -0.09104997598578049, 0.0),
        *(0.07958031495840909, 0.1609301443802907, 0.2461122513474594, 0.3379151367131279),
        *(0.44070973186421625, 0.5626168879699849, 0.7229566441594734, 1.0),
    ],
}


@pytest.mark.parametrize("bits", WORKED)
def test_levels_follow_the_recipe(bits):
    assert normal_float(bits) == pytest.approx(WORKED[bits], abs=1e-14)


def test_four_bits_are_the_published_table():
    assert normal_float(4) == pytest.approx(QLORA, abs=3e-7)


def test_two_bits_by_hand():
    # Levels -2, 0, 0.8716, 2 of this update; edges -1, 0.4358 and 1.4358.
    x = torch.tensor([2.0, -1.0, -0.9, 0.43, 0.44, 1.43, 1.44, -2.0])
    packet = Nf().encode(x, NONE, 2, seed=0)
    assert packet.side == (2.0,)
    assert unpack(packet.code, 2, 8).tolist() == [3, 0, 1, 1, 2, 2, 3, 0]
    assert Nf().decode(packet, NONE, seed=0)[4].item() == pytest.approx(2 * 0.4358181645831157)


def test_rates():
    assert Nf().rates == Rates.of(1, 2, 3, 4)
    assert not Nf().unbiased
    assert Nf(rounding="stochastic").unbiased
    with pytest.raises(ConfigError, match="nf has no 5-bit rate; it offers 1, 2, 3, 4"):
        Nf().encode(torch.ones(1), NONE, 5, seed=0)
