"""What `Grid` gives to all its codecs, against brute force on levels that are easy to follow."""

import math
from dataclasses import dataclass
from typing import ClassVar, get_args

import numpy as np
import pytest
import torch

from fedwsq.codecs import Packet
from fedwsq.codecs.coding import count_all, count_halving, nearest, tables
from fedwsq.codecs.grid import Grid, Unit
from fedwsq.codecs.levels import best_scale, levels, normal_error
from fedwsq.codecs.packing import unpack
from fedwsq.codecs.rates import Rates
from fedwsq.core.errors import ConfigError, MessageError

NONE = torch.empty(0)


@dataclass(frozen=True)
class Odd(Grid):
    """Three uneven levels in two bits."""

    wire_id: ClassVar[int] = 200
    rates: ClassVar[Rates] = Rates.of(2)

    def levels(self, bits):
        return (-1.0, 0.5, 1.0)


def codes(packet):
    return unpack(packet.code, int(packet.rate), packet.numel).tolist()


@pytest.mark.parametrize("bits", range(1, 9))
def test_both_ways_to_count_edges_agree_with_a_search(bits):
    between = tables(levels(bits, "lloyd-max")).edges
    x = np.random.default_rng(bits).normal(size=40_000).astype(np.float32)
    x[: len(between)] = between  # on an edge: down
    x[-4:] = [-np.inf, np.inf, 1e30, -1e-45]
    expected = np.searchsorted(between, x, side="left")
    for count in (count_all, count_halving, nearest):
        assert np.array_equal(count(x, between), expected)
    assert len(nearest(x[:0], between)) == 0


def test_nearest_level_by_hand():
    # Edges at -0.25 and 0.75, where values go down.
    packet = Odd().encode(torch.tensor([2.0, -2.0, 0.0, 1.5, -0.5, 1.6, -0.4]), NONE, 2, seed=0)
    assert packet.side == (2.0,)
    assert codes(packet) == [2, 0, 1, 1, 0, 2, 1]
    assert Odd().decode(packet, NONE, seed=0).tolist() == [2.0, -2.0, 1.0, 1.0, -2.0, 2.0, 1.0]


def test_stochastic_rounding_takes_neighbours_with_the_right_odds():
    codec = Odd(rounding="stochastic")
    x = torch.tensor([0.2, 0.6, -1.0, 0.5, 1.0]).repeat_interleave(50_000)
    decoded = codec.decode(codec.encode(x, NONE, 2, seed=3), NONE, seed=3).view(5, -1)
    # 0.2 is 1.2 / 1.5 = 80 % of the way from -1 to 0.5; 0.6 is 20 % of the way from 0.5 to 1.
    assert set(decoded[0].tolist()) == {-1.0, 0.5}
    assert (decoded[0] == 0.5).double().mean().item() == pytest.approx(0.8, abs=0.01)
    assert set(decoded[1].tolist()) == {0.5, 1.0}
    assert (decoded[1] == 1.0).double().mean().item() == pytest.approx(0.2, abs=0.01)
    assert torch.equal(decoded[2:], x.view(5, -1)[2:])  # a level never moves


def test_what_lies_outside_goes_to_the_end():
    for rounding in ("nearest", "stochastic"):
        codec = Odd(unit="mean", rounding=rounding)
        packet = codec.encode(torch.tensor([3.0, -3.0, 0.0, 0.0]), NONE, 2, seed=0)
        assert packet.side == (1.5,)
        assert codes(packet)[:2] == [2, 0]


STD = math.sqrt((12.25 + 2.25 + 2.25 + 0.25) / 3)  # of 4, -1, -1, 0, whose mean is 1/2


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("absmax", 4.0),
        ("mean", 1.5),
        ("norm", math.sqrt(18)),
        ("std", STD),
        ("fitted", best_scale(Odd().levels(2)) * STD),
    ],
)
def test_what_a_level_of_one_stands_for(unit, expected):
    packet = Odd(unit=unit).encode(torch.tensor([4.0, -1.0, -1.0, 0.0]), NONE, 2, seed=0)
    assert packet.side == pytest.approx((expected,), rel=1e-6)


def test_the_fitted_scale_is_the_best_multiple_of_the_std():
    q = Odd().levels(2)
    best = best_scale(q)
    errors = [normal_error(q, 1 / s) for s in np.linspace(0.1, 5, 500)]
    assert normal_error(q, 1 / best) <= min(errors)


@pytest.mark.parametrize(("unit", "factor"), [("std", 1), ("fitted", best_scale(Odd().levels(2)))])
def test_a_constant_update_is_not_lost(unit, factor):
    codec = Odd(unit=unit)
    packet = codec.encode(torch.full((5,), 0.25), NONE, 2, seed=0)
    assert packet.side == pytest.approx((0.25 * factor,))
    assert codec.decode(packet, NONE, seed=0).min() > 0


@pytest.mark.parametrize("unit", get_args(Unit))
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_each_group_is_coded_as_if_alone(unit, rounding):
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)) * torch.tensor(
        [[1.0], [0.0], [100.0]]
    )
    channels = Odd(unit, rounding, "channel")
    blocks = Odd(unit, rounding, "block", 4)
    packet = channels.encode(x, NONE, 2, seed=5)
    assert (packet.rows, packet.side[1]) == (3, 0.0)
    assert blocks.encode(x, NONE, 2, seed=5) == packet
    assert blocks.encode(x.flatten(), NONE, 2, seed=5) == packet._replace(rows=1)
    decoded = channels.decode(packet, NONE, seed=5).view(3, 4)
    assert not decoded[1].any()
    alone = Odd(unit, rounding)
    first = alone.encode(x[0], NONE, 2, seed=5)
    assert packet.side[0] == pytest.approx(first.side[0], rel=1e-6)
    assert torch.allclose(decoded[0], alone.decode(first, NONE, seed=5))
    if rounding == "nearest":  # later groups have other draws
        assert torch.allclose(
            decoded[2], alone.decode(alone.encode(x[2], NONE, 2, seed=5), NONE, seed=5)
        )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"side": ()}, "a odd packet has 1 side value(s), its scales, not 0"),
        ({"own_scale": False}, "a odd packet is decoded with its own scale; its flag is missing"),
        ({"code": b"\x24\x00"}, "3 codes of 2 bits take 1 bytes, not 2"),
        ({"code": b"\x64"}, "the 2 bits after 3 codes of 2 bits must be zero"),
        ({"code": b"\x34"}, "a odd packet has code 3; its 3 levels end at 2"),
    ],
)
def test_check_refuses_damaged_packets(change, text):
    packet = Packet(b"\x24", (1.0,), 2, 3, own_scale=True)  # 0, 1, 2
    Odd().check(packet)
    with pytest.raises(MessageError) as error:
        Odd().check(packet._replace(**change))
    assert text in str(error.value)


def test_settings():
    unbiased = [unit for unit in get_args(Unit) if Odd(unit, "stochastic").unbiased]
    assert unbiased == ["absmax", "norm"]
    assert not Odd().unbiased
    with pytest.raises(ConfigError, match="odd has no 3-bit rate; it offers 2"):
        Odd().encode(torch.ones(1), NONE, 3, seed=0)
    with pytest.raises(
        ConfigError,
        match='odd unit = "max" is unknown; it is "absmax", "mean", "norm", "std" or "fitted"',
    ):
        Odd(unit="max")
    with pytest.raises(
        ConfigError, match='odd rounding = "up" is unknown; it is "nearest" or "stochastic"'
    ):
        Odd(rounding="up")
    with pytest.raises(ConfigError, match='odd scale_per = "row" is unknown'):
        Odd(scale_per="row")
