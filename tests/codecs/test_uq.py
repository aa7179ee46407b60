import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwsq.codecs import Packet, Rates, Uq
from fedwsq.codecs.packing import pack, unpack
from fedwsq.codecs.uq import quantize_uniform, uniform_levels
from fedwsq.core.errors import ConfigError, MessageError, UpdateError

NONE = torch.empty(0)
NEAREST = Uq(rounding="nearest")
# the two clients' updates and their uniform draws
DELTA = {"a": [0.10, -0.40, 0.05, 0.25], "b": [-0.20, 0.30, 0.00, 0.10]}
DRAWS = {"a": [0.30, 0.90, 0.60, 0.10], "b": [0.20, 0.40, 0.80, 0.55]}


def draw(numel, seed=0, scale=1.0):
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed)) * scale


def codes(packet):
    return torch.from_numpy(unpack(packet.code, int(packet.rate), packet.numel))


def round_trip(codec, x, bits, seed=0):
    packet = codec.encode(x, NONE, bits, seed)
    codec.check(packet)
    return codec.decode(packet, NONE, seed)


def coded(client, bits):
    """The packet of a client whose draws are the worked example's."""
    x = np.float32(DELTA[client])
    m = max(map(abs, DELTA[client]))
    chosen = quantize_uniform(x / np.float32(m), bits, np.float32(DRAWS[client]))
    return Packet(pack(chosen, bits), (m,), bits, 4, own_scale=True)


def values(client, bits):
    return Uq().decode(coded(client, bits), NONE, seed=0)


# Worked numbers


@pytest.mark.parametrize(
    ("bits", "expected_codes", "expected"),
    [
        (1, [1, 0, 0, 1], [0.4, -0.4, -0.4, 0.4]),
        (2, [2, 0, 2, 3], [0.1333333333333333, -0.4, 0.1333333333333333, 0.4]),
        (4, [10, 0, 8, 13], [0.1333333333333333, -0.4, 0.026666666666666672, 0.29333333333333333]),
    ],
)
def test_worked_codes_and_values(bits, expected_codes, expected):
    packet = coded("a", bits)
    assert codes(packet).tolist() == expected_codes
    assert Uq().decode(packet, NONE, seed=0).tolist() == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize(
    ("bits", "b", "server"),
    [
        (1, [-0.3, 0.3, -0.3, 0.3], [0.05, -0.05, -0.35, 0.35]),
        (
            4,
            [-0.18, 0.3, -0.02, 0.1],
            [-0.02333333333333, -0.05, 0.00333333333333, 0.19666666666667],
        ),
    ],
)
def test_worked_fedpaq_round(bits, b, server):
    mean = torch.zeros(4)
    for client in "ab":
        Uq().accumulate(coded(client, bits), NONE, 0, mean, 0.5)
    assert values("b", bits).tolist() == pytest.approx(b, abs=1e-7)
    assert mean.tolist() == pytest.approx(server, abs=1e-7)


@pytest.mark.parametrize(
    ("bits", "q", "p", "server"),
    [
        (
            1,
            [1.3404255319148937, 1.0],
            [0.4607843137254901, 0.5392156862745099],
            [0.022549019607843, -0.022549019607843, -0.346078431372549, 0.346078431372549],
        ),
        (
            4,
            [0.01503546099290779, 0.005714285714285708],
            [0.4976936344310297, 0.5023063655689703],
            [-0.024055994544944, -0.0483855441017208, 0.00322570294011474, 0.19622076932333],
        ),
    ],
)
def test_worked_fedhq_round(bits, q, p, server):
    errors = []
    for client in "ab":
        x = torch.tensor(DELTA[client], dtype=torch.float64)
        errors.append(((values(client, bits) - x).square().sum() / x.square().sum()).item())
    assert errors == pytest.approx(q, abs=1e-5)
    trust = [1 / (1 + error) for error in errors]
    weights = [t / sum(trust) for t in trust]
    assert weights == pytest.approx(p, abs=1e-6)
    mean = torch.zeros(4)
    for client, weight in zip("ab", weights, strict=True):
        Uq().accumulate(coded(client, bits), NONE, 0, mean, weight)
    assert mean.tolist() == pytest.approx(server, abs=1e-6)


# Rounding


def test_one_bit_is_a_coin_with_the_right_probability():
    # P(+m) = (1 + x / m) / 2 = (1 + .25) / 2
    x = torch.full((100_001,), 0.1)
    x[-1] = -0.4
    decoded = round_trip(Uq(), x, 1)
    assert set(decoded.tolist()) == {x[-1].item(), -x[-1].item()}
    assert (decoded[:-1] > 0).double().mean().item() == pytest.approx(0.625, abs=0.01)


def test_the_largest_value_and_exact_levels_never_move():
    for bits in range(1, 9):
        x = torch.tensor([0.3, -0.3, 0.3])
        for seed in range(50):
            assert torch.equal(round_trip(Uq(), x, bits, seed), x)
    x = torch.tensor([-3.0, -1.0, 1.0, 3.0])  # the levels of 2 bits, f = 0, 1, 2, 3
    assert all(torch.equal(round_trip(Uq(), x, 2, seed), x) for seed in range(50))


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("codec", [Uq(), NEAREST], ids=["stochastic", "nearest"])
@settings(deadline=None, max_examples=30)
@given(
    data=st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=60),
    exponent=st.integers(-140, 50),
    seed=st.integers(0, 2**63 - 1),
)
def test_no_value_moves_further_than_it_may(codec, bits, data, exponent, seed):
    x = torch.tensor(data) * 2.0**exponent  # down to where float32 loses its last bits
    packet = codec.encode(x, NONE, bits, seed)
    m = x.abs().max().item()
    assert packet.side == (m,)
    if m == 0:
        return
    ratios = x.double() / m
    distances = (ratios[:, None] - torch.linspace(-1, 1, 2**bits, dtype=torch.float64)).abs()
    own = distances.gather(1, codes(packet).long()[:, None])[:, 0]
    if codec == NEAREST:
        assert (own <= distances.min(1).values + 1e-6).all()
    else:
        assert (own <= 2 / (2**bits - 1) + 1e-6).all()
    assert codec.decode(packet, NONE, seed).abs().max() <= m


@pytest.mark.parametrize("bits", range(1, 9))
def test_nearest_is_the_nearest_level_by_brute_force(bits):
    x = draw(1000, seed=bits, scale=0.02)
    m = x.abs().max()
    q = torch.tensor(uniform_levels(bits))
    nearest = ((x / m)[:, None] - q).abs().argmin(1)
    packet = NEAREST.encode(x, NONE, bits, seed=0)
    assert torch.equal(codes(packet).long(), nearest)
    assert torch.equal(NEAREST.decode(packet, NONE, seed=0), q[nearest] * m)


def test_nearest_ties_go_down_and_ignore_the_seed():
    # Levels -3, -1, 1, 3; the middles are -2, 0 and 2.
    x = torch.tensor([-3.0, -2.0, 0.0, 2.0, 3.0])
    assert codes(NEAREST.encode(x, NONE, 2, seed=1)).tolist() == [0, 0, 1, 2, 3]
    x = draw(1000)
    assert NEAREST.encode(x, NONE, 4, seed=1) == NEAREST.encode(x, NONE, 4, seed=2)


def test_the_seed_decides_the_draws():
    x = draw(1000)
    packets = [Uq().encode(x, NONE, 4, seed) for seed in (1, 1, 2)]
    assert packets[0] == packets[1]
    assert packets[0].code != packets[2].code


def test_levels_are_symmetric_and_reach_the_ends():
    for bits in range(1, 9):
        q = uniform_levels(bits)
        assert len(q) == 2**bits
        assert (q[0], q[-1]) == (-1.0, 1.0)
        assert q == tuple(-level for level in reversed(q))
        assert np.diff(q) == pytest.approx(2 / (2**bits - 1))


@pytest.mark.parametrize("numel", [1, 7, 1000, 100_003])
def test_accumulate_is_exact_at_every_position(numel):
    x = draw(numel, seed=3, scale=1e-3)
    packet = Uq().encode(x, NONE, 4, seed=0)
    out = x.clone()
    Uq().accumulate(packet, NONE, 0, out, 0.3)
    assert torch.equal(out, x + Uq().decode(packet, NONE, seed=0) * 0.3)


# Odd updates


@pytest.mark.parametrize("codec", [Uq(), NEAREST], ids=["stochastic", "nearest"])
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_zero_single_and_constant_updates(codec, bits):
    for numel in (0, 1, 7):
        packet = codec.encode(torch.zeros(numel), NONE, bits, seed=0)
        assert packet.side == (0.0,)
        assert packet.own_scale
        assert codec.decode(packet, NONE, seed=0).tolist() == [0.0] * numel
    for value in (0.0021, -0.0021):
        for numel in (1, 5):  # the one value is an end of the range: nothing is lost
            x = torch.full((numel,), value)
            assert torch.equal(round_trip(codec, x, bits), x)


def test_the_smallest_numbers_there_are():
    tiny = torch.tensor([1e-45, 0.0, -1e-45, 1e-38])
    assert round_trip(Uq(), tiny[:3], 2)[[0, 2]].tolist() == tiny[[0, 2]].tolist()
    assert round_trip(NEAREST, tiny, 8).isfinite().all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2e20])
def test_an_update_that_no_receiver_takes_is_refused(bad):
    for data in ([bad], [0.0, bad, 1.0]):
        with pytest.raises(UpdateError, match=r"not finite or above 1e\+20"):
            Uq().encode(torch.tensor(data), NONE, 4, seed=0)


def test_a_strided_or_differentiable_input_is_fine():
    x = torch.arange(6.0, requires_grad=True)[::2]
    assert codes(NEAREST.encode(x, NONE, 1, seed=0)).tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"side": ()}, "a uq packet has 1 side value(s), its scales, not 0"),
        ({"side": (1.0, 2.0)}, "a uq packet has 1 side value(s), its scales, not 2"),
        ({"own_scale": False}, "decoded with its own scale"),
        ({"code": b"\x1c"}, "3 codes of 4 bits take 2 bytes, not 1"),
        ({"code": b"\x1c\x18"}, "the 4 bits after 3 codes of 4 bits must be zero"),
    ],
)
def test_check_refuses_damaged_packets(change, text):
    packet = Packet(b"\x1c\x08", (1.0,), 4, 3, own_scale=True)
    Uq().check(packet)
    with pytest.raises(MessageError) as error:
        Uq().check(packet._replace(**change))
    assert text in str(error.value)


def test_settings():
    assert Uq().unbiased
    assert not NEAREST.unbiased
    assert Uq().rates == Rates.of(*range(1, 9))
    assert Uq().init(7).numel() == 0
    for rate in (0, 2.5, 9, 32):
        with pytest.raises(
            ConfigError, match=f"uq has no {rate}-bit rate; it offers 1, 2, 3, 4, 5, 6, 7, 8"
        ):
            Uq().encode(torch.ones(1), NONE, rate, seed=0)
    with pytest.raises(
        ConfigError, match='uq rounding = "up" is unknown; it is "nearest" or "stochastic"'
    ):
        Uq(rounding="up")
