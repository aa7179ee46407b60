"""EDEN against its definition by brute force, and against the errors that its theory promises."""

import math

import numpy as np
import pytest
import torch

from fedwsq.codecs import Eden
from fedwsq.codecs.hadamard import padded, rotate, slice_count, unrotate
from fedwsq.codecs.levels import levels, normal_error
from fedwsq.codecs.packing import unpack
from fedwsq.core.errors import ConfigError, MessageError, UpdateError
from fedwsq.core.types import Key
from fedwsq.plan import make_plan
from fedwsq.wire import Kind, Message, Schema, decode, encode

NONE = torch.empty(0)
KINDS = ["unbiased", "least-squares"]
CODECS = [pytest.param(Eden(kind), id=kind) for kind in KINDS]
every_kind = pytest.mark.parametrize("codec", CODECS)


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def round_trip(codec, x, bits, seed=0):
    packet = codec.encode(x, NONE, bits, seed)
    codec.check(packet)
    return codec.decode(packet, NONE, seed)


def lost(decoded, x):
    """The squared error relative to the squared norm."""
    decoded = decoded.double().numpy()
    x = x.double().numpy()
    return np.square(decoded - x).sum() / np.square(x).sum()


# By brute force


@pytest.mark.parametrize("bits", range(1, 9))
def test_codes_scales_and_values_are_those_of_the_definition(bits):
    x = draw(300, seed=bits) * 0.01  # slices of 256 and 64, the last padded
    y = rotate(x.numpy(), seed=9).astype(np.float64)
    q = np.array(levels(bits, "lloyd-max"))
    packets = {kind: Eden(kind).encode(x, NONE, bits, seed=9) for kind in KINDS}
    found = unpack(packets["unbiased"].code, bits, 320)
    assert packets["least-squares"].code == packets["unbiased"].code
    expected = []
    for k, part in enumerate((slice(0, 256), slice(256, 320))):
        ratios = y[part] / math.sqrt(np.mean(y[part] ** 2))
        nearest = np.abs(ratios[:, None] - q).argmin(1)
        assert np.array_equal(found[part], nearest)
        levels_taken = q[nearest]
        unbiased = np.sum(y[part] ** 2) / np.sum(y[part] * levels_taken)
        least_squares = np.sum(y[part] * levels_taken) / np.sum(levels_taken**2)
        assert packets["unbiased"].side[k] == pytest.approx(unbiased, rel=1e-6)
        assert packets["least-squares"].side[k] == pytest.approx(least_squares, rel=1e-6)
        expected.append(levels_taken * unbiased)
    back = unrotate(np.concatenate(expected).astype(np.float32), 300, seed=9)
    decoded = Eden().decode(packets["unbiased"], NONE, seed=9)
    np.testing.assert_allclose(decoded.numpy(), back, atol=1e-7)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_what_makes_each_scale_right_holds_for_every_slice(bits):
    x = draw(4096 + 1024 + 70, seed=bits)
    for part in (
        slice(0, 4096),
        slice(4096, 5120),
        slice(5120, 5190),
    ):  # 70 elements: one slice, padded to 128
        a = x[part].double()
        unbiased = round_trip(Eden(), x, bits)[part].double()
        assert (unbiased @ a).item() == pytest.approx(
            (a @ a).item(), rel=1e-5
        )  # the part along x is x itself
    whole = x[:4096].double()
    least_squares = round_trip(Eden("least-squares"), x, bits)[:4096].double()
    assert ((whole - least_squares) @ least_squares / (whole @ whole)).item() == pytest.approx(
        0, abs=1e-5
    )


# What the theory promises


def student(rng, numel):
    return rng.standard_t(3, numel)


def outliers(rng, numel):
    x = rng.standard_normal(numel)
    x[rng.choice(numel, 20, replace=False)] *= (
        1e4  # about two in a slice of 4096, and nearly all of its energy
    )
    return x


DATA = {
    "normal": lambda rng, numel: rng.standard_normal(numel),
    "laplace": lambda rng, numel: rng.laplace(size=numel),
    "student": student,
    "outliers": outliers,
}


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("bits", [1, 2, 4])
def test_the_error_is_the_promised_one_whatever_the_data(bits, data):
    d = normal_error(levels(bits, "lloyd-max"))
    promised = {"unbiased": 1 / (1 - d) - 1, "least-squares": d}
    for kind in KINDS:
        found = []
        for seed in range(4):
            x = torch.from_numpy(DATA[data](np.random.default_rng(seed), 50_000).astype(np.float32))
            found.append(lost(round_trip(Eden(kind), x, bits, seed), x))
        assert np.mean(found) == pytest.approx(promised[kind], rel=0.02), (kind, found)


SMALL = {
    "three values": torch.tensor([1.0, 0.5, -0.2]),
    "one huge value": torch.cat([torch.tensor([30.0]), draw(63, seed=1)]),
    "two slices": draw(150, seed=2),
}


@pytest.mark.parametrize("x", SMALL.values(), ids=SMALL)
@pytest.mark.parametrize("bits", [1, 2])
def test_the_mean_over_seeds_is_the_input(bits, x):
    repeats = 600
    error = 0.0
    total = torch.zeros(len(x), dtype=torch.float64)
    for seed in range(repeats):
        decoded = round_trip(Eden(), x, bits, seed)
        total += decoded
        error += lost(decoded, x) / repeats
    # The mean of that many unbiased decodings loses error / repeats; 0.5 % of |x| more, as a tiny
    # slice is not quite normal. Rotated only once, the three values and the huge one are 54 % and
    # 25 % off at one bit.
    assert math.sqrt(lost(total / repeats, x)) < 1.5 * math.sqrt(error / repeats) + 0.005
    assert Eden().unbiased


def test_least_squares_shrinks_towards_zero():
    x = draw(512)
    bits = 1
    repeats = 300
    d = normal_error(levels(bits, "lloyd-max"))
    mean = (
        sum(round_trip(Eden("least-squares"), x, bits, seed).double() for seed in range(repeats))
        / repeats
    )
    assert (mean @ x.double() / x.double().square().sum()).item() == pytest.approx(1 - d, abs=0.01)
    assert not Eden("least-squares").unbiased


# Odd updates


@every_kind
@pytest.mark.parametrize("bits", [1, 4, 8])
def test_zero_slices_stay_zero(codec, bits):
    for numel in (0, 1, 64, 5000):
        packet = codec.encode(torch.zeros(numel), NONE, bits, seed=0)
        assert packet.side == (0.0,) * slice_count(numel)
        assert codec.decode(packet, NONE, seed=0).tolist() == [0.0] * numel
    x = draw(3 * 4096)
    x[4096:8192] = 0
    decoded = round_trip(codec, x, bits)
    assert not decoded[4096:8192].any()
    assert decoded[:4096].all()
    assert decoded[8192:].all()


@pytest.mark.parametrize("bits", [1, 2, 8])
def test_a_single_value_survives(bits):
    for value in (0.0021, -3.0):
        assert round_trip(Eden(), torch.tensor([value]), bits).item() == pytest.approx(
            value, rel=1e-5
        )


@every_kind
def test_numbers_at_both_ends_of_the_range(codec):
    for magnitude in (1e-45, 1e-42, 1e-38, 9.9e19):
        x = draw(5000).sign() * magnitude
        packet = codec.encode(x, NONE, 4, seed=0)
        assert all(0 <= scale <= 1e20 for scale in packet.side)
        decoded = codec.decode(packet, NONE, seed=0)
        assert decoded.isfinite().all()
        if magnitude > 1e-40:
            assert lost(decoded, x) < 0.02
    assert max(codec.encode(torch.full((64,), 9.9e19), NONE, 1, seed=1).side) <= 1e20


@pytest.mark.parametrize("bad", [math.nan, math.inf, 2e20])
def test_an_update_that_no_receiver_takes_is_refused(bad):
    with pytest.raises(UpdateError, match="eden cannot code"):
        Eden().encode(torch.tensor([0.0, bad]), NONE, 4, seed=0)


# Packets


@every_kind
@pytest.mark.parametrize("numel", [1, 64, 4097, 10_000])
def test_accumulate_is_the_decoding_times_the_weight(codec, numel):
    x = draw(numel)
    packet = codec.encode(x, NONE, 2, seed=4)
    out = x.clone()
    codec.accumulate(packet, NONE, 4, out, 0.3)
    assert torch.equal(out, x + codec.decode(packet, NONE, seed=4) * 0.3)


def test_sizes_follow_from_the_number_of_elements():
    for numel, codes, scales in (
        (0, 0, 0),
        (1, 64, 1),
        (64, 64, 1),
        (130, 192, 2),
        (4097, 4160, 2),
        (8192, 8192, 2),
    ):
        assert (padded(numel), Eden().side_values(numel)) == (codes, scales)
        for bits in range(1, 9):
            packet = Eden().encode(torch.ones(numel), NONE, bits, seed=0)
            assert len(packet.code) == codes * bits // 8 == Eden().max_bytes(numel, bits)
            assert len(packet.side) == scales


def test_only_the_elements_count_not_their_shape():
    x = draw(8, 5, 3)
    packet = Eden().encode(x, NONE, 2, seed=0)
    assert packet == Eden().encode(x.reshape(-1), NONE, 2, seed=0)._replace(rows=8)


def test_tiny_tensors_pass_through_a_message():
    schema = Schema({"one": (1,), "few": (3, 3), "scalar": ()})
    tensors = {"one": draw(1), "few": draw(3, 3), "scalar": torch.tensor(2.0)}
    packets = {
        name: Eden().encode(x, NONE, 8, seed=0)._replace(codec=8) for name, x in tensors.items()
    }
    message = Message(Kind.REPLY, Key(0, 1, 0), bytes(16), packets={"delta": packets})
    assert decode(encode(message, schema), schema).packets == {"delta": packets}


def test_packets_that_no_encoder_makes_are_refused():
    packet = Eden().encode(draw(5000), NONE, 2, seed=0)
    for damaged, match in (
        (packet._replace(side=packet.side[1:]), "side value"),
        (packet._replace(side=(*packet.side, 1.0)), "side value"),
        (packet._replace(own_scale=False), "flag is missing"),
        (packet._replace(code=packet.code[:-1]), "take 1264 bytes, not 1263"),
        (packet._replace(rate=9), "1 to 8 bits a code, not 9"),
        (packet._replace(numel=9000), "9024 codes of 2 bits"),
    ):
        with pytest.raises(MessageError, match=match):
            Eden().check(damaged)


# Settings


def test_settings_and_rates_that_do_not_exist_are_refused():
    with pytest.raises(ConfigError, match='"unbiased" or "least-squares"'):
        Eden("best")
    for bits in (0, 3.5, 9):
        with pytest.raises(ConfigError, match=r"it offers 1, 2, 3, 4, 5, 6, 7, 8$"):
            Eden().encode(draw(4), NONE, bits, seed=0)


def test_a_config_names_it():
    plan = make_plan({"uplink": {"codec": {"name": "eden", "scale": "least-squares"}, "bits": 1}})
    assert plan.uplink.codec == Eden("least-squares")
