import pytest
import torch

from fedwsq.codecs import Rates, Sign
from fedwsq.core.errors import ConfigError

NONE = torch.empty(0)


def test_by_hand():
    # mean|x| = (1 + 2 + 0 + 5) / 4; zero counts as negative.
    packet = Sign().encode(torch.tensor([1.0, -2.0, 0.0, 5.0]), NONE, 1, seed=0)
    assert (packet.code, packet.side) == (b"\x09", (2.0,))
    assert Sign().decode(packet, NONE, seed=0).tolist() == [2.0, -2.0, -2.0, 2.0]


def test_each_channel_has_its_mean_magnitude():
    codec = Sign(scale_per="channel")
    packet = codec.encode(torch.tensor([[1.0, -3.0], [0.0, 0.0], [-4.0, -8.0]]), NONE, 1, seed=0)
    assert packet.side == (2.0, 0.0, 6.0)
    assert codec.decode(packet, NONE, seed=0).tolist() == [2.0, -2.0, 0.0, 0.0, -6.0, -6.0]


def test_no_other_scale_is_nearer():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    packet = Sign().encode(x, NONE, 1, seed=0)
    error = [
        (x - Sign().decode(packet._replace(side=(packet.side[0] * factor,)), NONE, seed=0))
        .square()
        .sum()
        .item()
        for factor in (0.98, 1.0, 1.02)
    ]
    assert error[1] < min(error[0], error[2])


def test_rates():
    assert Sign().rates == Rates.of(1)
    with pytest.raises(ConfigError, match="sign has no 2-bit rate; it offers 1"):
        Sign().encode(torch.ones(1), NONE, 2, seed=0)
