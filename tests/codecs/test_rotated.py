"""A rotation around every other codec of the table: what passes, what it gains and refuses."""

import tomllib

import numpy as np
import pytest
import torch

from fedwsq.codecs import CODECS, Danuq, Eden, Float32, Rotated, Topk, Uq
from fedwsq.codecs.float16 import Float16
from fedwsq.codecs.hadamard import padded, rotate, unrotate
from fedwsq.codecs.levels import levels, normal_error
from fedwsq.core.errors import ConfigError, MessageError, UpdateError
from fedwsq.core.seeds import derive
from fedwsq.plan import dump_plan, make_plan

NONE = torch.empty(0)
INNER = {
    name: cls()
    for name, cls in CODECS.items()
    if name not in ("rotated", "eden", "float16", "float32")
}
every_inner = pytest.mark.parametrize("inner", INNER.values(), ids=INNER)


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def student(numel, seed=0):
    x = np.random.default_rng(seed).standard_t(3, numel)
    return torch.from_numpy((x / np.sqrt(np.mean(x**2))).astype(np.float32))


def some_rates(codec):
    return sorted({codec.rates.listed[0], codec.rates.listed[-1]})


def lost(decoded, x):
    """The squared error relative to the squared norm."""
    decoded = decoded.double().numpy()
    x = x.double().numpy()
    return np.square(decoded - x).sum() / np.square(x).sum()


@every_inner
@pytest.mark.parametrize("numel", [0, 1, 63, 64, 65, 300, 5000])
def test_it_is_the_inner_codec_between_two_rotations(inner, numel):
    x = draw(numel, seed=numel)
    codec = Rotated(inner)
    shared = codec.init(numel)
    assert torch.equal(shared, inner.init(padded(numel)))
    for rate in some_rates(codec):
        packet = codec.encode(x, shared, rate, seed=7)
        codec.check(packet)
        inside = inner.encode(
            torch.from_numpy(rotate(x.numpy(), seed=7)), shared, rate, derive(7, "inner")
        )
        assert packet == inside._replace(numel=numel)
        assert (
            len(packet.code) <= codec.max_bytes(numel, rate) == inner.max_bytes(padded(numel), rate)
        )
        assert len(packet.side) == codec.side_values(numel) == inner.side_values(padded(numel))
        expected = unrotate(inner.decode(inside, shared, derive(7, "inner")).numpy(), numel, seed=7)
        decoded = codec.decode(packet, shared, seed=7)
        assert np.array_equal(decoded.numpy(), expected)
        out = x.clone()
        codec.accumulate(packet, shared, 7, out, 0.3)
        assert torch.equal(out, x + decoded * 0.3)


@every_inner
def test_rates_bias_and_learning_are_the_inner_codecs(inner):
    codec = Rotated(inner)
    assert codec.rates == inner.rates
    assert codec.unbiased == inner.unbiased
    shared = codec.init(100)
    sides = [
        codec.encode(draw(100, seed=k), shared, codec.rates.listed[-1], seed=k).side
        for k in range(3)
    ]
    assert torch.equal(codec.fold(shared, sides), inner.fold(shared, sides))


def test_the_shared_scale_follows_the_rms_of_the_update():
    codec = Rotated(Danuq(momentum=1.0))
    x = student(50_000) * 0.02 + 0.01
    shared = codec.init(len(x))
    packet = codec.encode(x, shared, 4, seed=0)
    assert codec.fold(shared, [packet.side]).item() == pytest.approx(
        x.square().mean().sqrt().item(), rel=1e-2
    )


def test_channels_are_seen_by_the_outer_packet_alone():
    x = draw(6, 50)
    packet = Rotated(Uq(scale_per="block")).encode(x, NONE, 4, seed=0)
    assert (packet.rows, packet.numel, len(packet.side)) == (
        6,
        300,
        5,
    )  # 320 elements in blocks of 64
    Rotated(Uq(scale_per="block")).check(packet)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_heavy_tails_cost_no_more_than_normal_data(bits):
    kind = "optimal"
    inner = Danuq(levels=kind, scale_init=1.0)
    promised = normal_error(levels(bits, kind))
    rotated = []
    plain = []
    for seed in range(4):
        x = student(50_000, seed)
        for codec, found in ((Rotated(inner), rotated), (inner, plain)):
            shared = codec.init(len(x))
            found.append(lost(codec.decode(codec.encode(x, shared, bits, seed), shared, seed), x))
    assert np.mean(rotated) == pytest.approx(promised, rel=0.02)
    assert np.mean(plain) > 1.3 * promised


def test_an_unbiased_inner_codec_stays_unbiased():
    x = torch.tensor([5.0, 0.1, -0.3, 0.0, 1.0])
    codec = Rotated(Uq())
    repeats = 800
    total = torch.zeros(5, dtype=torch.float64)
    error = 0.0
    for seed in range(repeats):
        decoded = codec.decode(codec.encode(x, NONE, 2, seed), NONE, seed)
        total += decoded
        error += lost(decoded, x) / repeats
    assert lost(total / repeats, x) < 3 * error / repeats


# Refusals


@pytest.mark.parametrize("inner", [Rotated(), Eden()], ids=["rotated", "eden"])
def test_a_codec_that_rotates_already_is_refused(inner):
    with pytest.raises(ConfigError, match="rotates already"):
        Rotated(inner)


@pytest.mark.parametrize("inner", [Float32(), Float16()], ids=["float32", "float16"])
def test_a_codec_that_gains_nothing_is_refused(inner):
    with pytest.raises(ConfigError, match=r"gains nothing around float(32|16)"):
        Rotated(inner)


def test_scales_for_channels_are_refused():
    with pytest.raises(ConfigError, match="mixes the channels"):
        Rotated(Uq(scale_per="channel"))


def test_bad_updates_and_bad_packets_are_refused():
    with pytest.raises(UpdateError, match="rotated cannot code"):
        Rotated().encode(torch.tensor([float("nan")]), torch.ones(1), 4, seed=0)
    packet = Rotated(Uq()).encode(draw(65), NONE, 4, seed=0)
    assert len(packet.code) == 64  # 128 elements
    for damaged in (
        packet._replace(code=packet.code[:33]),  # enough for 65 elements without padding
        packet._replace(side=()),
        packet._replace(own_scale=False),
    ):
        with pytest.raises(MessageError):
            Rotated(Uq()).check(damaged)


# Configs


@pytest.mark.parametrize(
    ("settings", "inner"),
    [
        ({}, Danuq()),
        ({"inner": "uq"}, Uq()),
        ({"inner": {"name": "uq"}}, Uq()),
        (
            {"inner": {"name": "uq", "rounding": "nearest", "scale_per": "block"}},
            Uq(rounding="nearest", scale_per="block"),
        ),
        ({"inner": {"name": "topk", "values": "float32"}}, Topk("float32")),
    ],
)
def test_a_config_names_the_inner_codec_and_survives_its_dump(settings, inner):
    plan = make_plan({"uplink": {"codec": {"name": "rotated", **settings}, "bits": 4}})
    assert plan.uplink.codec == Rotated(inner)
    text = dump_plan(plan)
    assert make_plan(tomllib.loads(text)) == plan
    assert dump_plan(make_plan(tomllib.loads(text))) == text


def test_overrides_reach_inside():
    settings = {"uplink": {"codec": "rotated", "bits": 4}}
    assert make_plan(settings, ["uplink.codec.inner=uq"]).uplink.codec == Rotated(Uq())
    changed = make_plan({"uplink": {"codec": {"name": "rotated", "inner": "danuq"}, "bits": 3}}, [
        "uplink.codec.inner.levels=optimal"
    ])  # fmt: skip
    assert changed.uplink.codec == Rotated(Danuq(levels="optimal"))


@pytest.mark.parametrize(
    ("inner", "match"),
    [
        ("rotated", "uplink.codec: rotated cannot hold rotated"),
        ("float32", "uplink.codec: rotated gains nothing around float32"),
        ("uqq", r"uplink.codec.inner is 'uqq'.*did you mean uq\?"),
        ({"name": "uq", "bit": 1}, "unknown key uplink.codec.inner.bit"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused_in_one_line(inner, match):
    with pytest.raises(ConfigError, match=match):
        make_plan({"uplink": {"codec": {"name": "rotated", "inner": inner}, "bits": 4}})
