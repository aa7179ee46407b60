"""Laws of every codec in the table, at every rate it offers, and of their settings.

A new entry is tested at once.
"""

import inspect
import math
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedwsq.codecs import (
    CODECS,
    Codec,
    Danuq,
    Danuq4,
    Danuq8,
    Eden,
    Float32,
    Fp,
    Nf,
    Qsgd,
    Rotated,
    Sign,
    Topk,
    Uq,
)
from fedwsq.codecs.base import MAX_MAGNITUDE, rows_of
from fedwsq.codecs.grid import Grid
from fedwsq.codecs.levels import levels
from fedwsq.core.errors import MessageError
from fedwsq.parts.integers import Integers

TABLE = {name: cls() for name, cls in CODECS.items()}
SETTINGS = {
    "danuq-optimal": Danuq(levels="optimal"),
    "danuq-lloyd-max": Danuq(levels="lloyd-max"),
    "danuq-even": Danuq(levels="even"),
    "danuq-own": Danuq(dequantize="own"),
    "danuq-calibrate": Danuq(scale_init="calibrate"),
    "danuq-band": Danuq(band=1.5),
    "danuq-channel": Danuq(scale_per="channel"),
    "danuq-block": Danuq(scale_per="block", block=16, scale_init="calibrate"),
    "danuq4-fitted": Danuq4(unit="fitted"),
    "danuq8-fitted": Danuq8(unit="fitted"),
    "danuq8-block": Danuq8(scale_per="block"),
    "eden-least-squares": Eden(scale="least-squares"),
    "fp-bitsandbytes": Fp(table="bitsandbytes"),
    "fp-fitted-block": Fp(unit="fitted", scale_per="block", block=16),
    "fp-stochastic": Fp(rounding="stochastic"),
    "nf-std": Nf(unit="std"),
    "nf-fitted-channel": Nf(unit="fitted", scale_per="channel"),
    "nf-stochastic": Nf(rounding="stochastic"),
    "nf-stochastic-block": Nf(rounding="stochastic", scale_per="block", block=16),
    "qsgd-absmax-channel": Qsgd(unit="absmax", scale_per="channel"),
    "qsgd-block": Qsgd(scale_per="block"),
    "qsgd-nearest": Qsgd(unit="absmax", rounding="nearest"),
    "rotated-uq": Rotated(inner=Uq()),
    "rotated-topk": Rotated(inner=Topk()),
    "sign-channel": Sign(scale_per="channel"),
    "topk-float32": Topk(values="float32"),
    "uq-channel": Uq(scale_per="channel"),
    "uq-block": Uq(scale_per="block", block=16),
    "uq-fitted": Uq(unit="fitted"),
    "uq-nearest": Uq(rounding="nearest"),
}
CODEC = TABLE | SETTINGS


def offered(codec):
    """Every rate of a set; the ends and the middle of an interval."""
    listed = codec.rates.listed
    if codec.rates.fixed_length:
        return listed
    low, high = listed
    return [low, (low + high) / 2, high]


def some(codec):
    """The lowest rate, the highest and one between."""
    rates = offered(codec)
    return sorted({rates[0], rates[len(rates) // 2], rates[-1]})


def cases(codecs, rates, wanted=lambda codec: True):
    found = [
        (name, codec, rate)
        for name, codec in codecs.items()
        if wanted(codec)
        for rate in rates(codec)
    ]
    return pytest.mark.parametrize(
        ("codec", "rate"),
        [pytest.param(codec, rate, id=f"{name}-{rate:g}") for name, codec, rate in found],
    )


every_rate = cases(TABLE, offered)
every_case = cases(CODEC, some)
every_codec = pytest.mark.parametrize("codec", CODEC.values(), ids=list(CODEC))
SOME_LENGTHS = [*range(200), *range(200, 1000, 13), 1000]
SHAPES = [
    *((), (1,), (37,)),
    *((3, 7), (4, 3, 2, 2), (3, 130)),
    *((1, 9), (6, 1), (0, 4), (4, 0)),
]
seeds = st.integers(0, 2**63 - 1)
updates = arrays.arrays(
    np.float32, arrays.array_shapes(max_dims=3, max_side=9), elements=st.floats(-1e3, 1e3, width=32)
).map(torch.from_numpy)


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 1e-3


def init(codec, x):
    return codec.init(x.numel(), rows_of(x.shape))


def sent(codec, x, rate, seed=0):
    """A packet, checked as its receiver does, and what it stands for."""
    shared = init(codec, x)
    packet = codec.encode(x, shared, rate, seed)
    codec.check(packet)
    return packet, codec.decode(packet, shared, seed)


# What comes out


@every_rate
def test_every_length_survives_the_round_trip(codec, rate):
    x = draw(1000)
    fixed = codec.rates.fixed_length
    slow = type(codec).__name__ in ("Ecq", "Eden", "Rotated")
    for numel in SOME_LENGTHS if slow else range(1001):
        packet, decoded = sent(codec, x[:numel], rate, seed=numel)
        size = codec.max_bytes(numel, rate)
        assert len(packet.code) == size if fixed else len(packet.code) <= size
        assert len(packet.side) == codec.side_values(numel)
        assert (packet.rate, packet.numel, packet.rows) == (rate, numel, 1)
        assert decoded.shape == (numel,)
        assert decoded.dtype == torch.float32
        assert decoded.isfinite().all()


@every_case
def test_every_shape_survives_the_round_trip(codec, rate):
    for shape in SHAPES:
        x = draw(*shape)
        rows = rows_of(shape)
        packet, decoded = sent(codec, x, rate)
        assert isinstance(packet.code, bytes)
        assert isinstance(packet.side, tuple)
        assert len(packet.code) <= codec.max_bytes(x.numel(), rate)
        assert len(packet.side) == codec.side_values(x.numel(), rows)
        assert (packet.rate, packet.numel, packet.rows) == (rate, x.numel(), rows)
        assert decoded.shape == (x.numel(),)
        assert decoded.isfinite().all()
        if getattr(codec, "scale_per", "tensor") != "channel":  # the shape makes no difference
            flat, decoded_flat = sent(codec, x.flatten(), rate)
            assert flat._replace(rows=rows) == packet
            assert torch.equal(decoded_flat, decoded)


@every_case
def test_side_values_fit_the_wire(codec, rate):
    for scale in (1.0, 1e-40, 2e19):
        x = draw(12, 10).sign() * scale
        packet, decoded = sent(codec, x, rate)
        assert all(0 <= side <= MAX_MAGNITUDE for side in packet.side)
        assert all(side == np.float32(side) for side in packet.side)
        assert decoded.isfinite().all()


@every_case
def test_an_extent_is_that_of_the_decoded_values(codec, rate):
    for shape in ((0,), (1,), (37,), (4, 3, 2, 2), (3, 130)):
        x = draw(*shape)
        shared = init(codec, x)
        packet = codec.encode(x, shared, rate, seed=3)
        decoded = codec.decode(packet, shared, seed=3).double()
        found = codec.extent(packet, shared, seed=3)
        assert found.largest == decoded.abs().max() if decoded.numel() else not found.largest
        assert found.energy == pytest.approx(float(decoded.square().sum()), rel=1e-12)


@every_case
def test_zeros_stay_zeros(codec, rate):
    for shape in ((0,), (1,), (9,), (3, 5)):
        assert not sent(codec, torch.zeros(shape), rate)[1].any()


@every_case
def test_a_packet_without_shared_state_stands_for_itself(codec, rate):
    none = torch.empty(0)
    packet = codec.encode(draw(5, 20), none, rate, seed=0)
    codec.check(packet)
    alone = codec.decode(packet, none, seed=0)
    assert torch.equal(codec.decode(packet, codec.init(100, 5), seed=0), alone)


NEAREST = {
    name: codec
    for name, codec in CODEC.items()
    if (isinstance(codec, Grid) and codec.rounding == "nearest")
    or (isinstance(codec, Danuq) and codec.dequantize == "shared")
}


@cases(NEAREST, offered)
def test_no_other_level_is_nearer(codec, rate):
    q = levels(rate, codec.levels) if isinstance(codec, Danuq) else codec.levels(rate)
    for shape in ((40, 12), (7, 30)):  # blocks of 16 end evenly, and do not
        x = draw(*shape)
        packet, decoded = sent(codec, x, rate)
        scales = torch.tensor(packet.side) if packet.own_scale else init(codec, x)
        size = {"tensor": x.numel(), "channel": x[0].numel(), "block": codec.block}[codec.scale_per]
        scales = scales.repeat_interleave(size)[: x.numel()].double()
        error = (decoded.double() - x.flatten()).abs()
        best = (
            (scales[:, None] * torch.tensor(q, dtype=torch.float64) - x.flatten()[:, None])
            .abs()
            .min(1)
            .values
        )
        assert (error <= best + 1e-6 * scales).all()


@cases(CODEC, some, lambda codec: codec.unbiased)
def test_the_mean_over_seeds_is_the_input(codec, rate):
    repeats = 600
    x = draw(3, 11)
    x[0, :3] = torch.tensor([0.0, 4e-3, -4e-3])
    found = torch.stack([sent(codec, x, rate, seed)[1] for seed in range(repeats)]).double()
    off = (found.mean(0) - x.flatten()).abs()
    doubt = found.std(0) / math.sqrt(repeats)
    assert (off <= 5 * doubt + 1e-9).all()
    # All elements together, each weighed by itself: a common factor would show here first.
    gain = found @ x.flatten().double() / x.double().square().sum()
    assert abs(gain.mean().item() - 1) <= 5 * gain.std().item() / math.sqrt(repeats) + 1e-6


@every_case
def test_a_power_of_two_goes_through(codec, rate):
    x = draw(6, 50)
    none = torch.empty(0)
    for shared in (init(codec, x), none):
        packet = codec.encode(x, shared, rate, seed=0)
        decoded = codec.decode(packet, shared, seed=0)
        for factor in (2.0**-10, 2.0**7):
            scaled = codec.encode(factor * x, factor * shared, rate, seed=0)
            assert torch.equal(codec.decode(scaled, factor * shared, seed=0), factor * decoded)
            if packet.side:
                assert scaled == packet._replace(side=tuple(factor * side for side in packet.side))


# How it gets there


@every_case
@settings(max_examples=15)
@given(x=updates, seed=seeds)
def test_encoding_changes_nothing_and_repeats_itself(codec, rate, x, seed):
    shared = init(codec, x)
    before = x.clone(), shared.clone(), torch.random.get_rng_state()
    packet = codec.encode(x, shared, rate, seed)
    decoded = codec.decode(packet, shared, seed)
    assert torch.equal(x, before[0])
    assert torch.equal(shared, before[1])
    assert torch.equal(torch.random.get_rng_state(), before[2])
    torch.rand(1)  # The global generator must play no part.
    assert codec.encode(x.clone(), shared.clone(), rate, seed) == packet
    assert torch.equal(codec.decode(packet, shared, seed), decoded)


@every_case
@settings(max_examples=15)
@given(x=updates, seed=seeds, weight=st.floats(0, 100, width=32))
def test_accumulate_adds_the_weighted_decoding(codec, rate, x, seed, weight):
    shared = init(codec, x)
    packet = codec.encode(x, shared, rate, seed)
    decoded = codec.decode(packet, shared, seed)
    start = torch.linspace(-1, 1, x.numel())
    out = start.clone()
    codec.accumulate(packet, shared, seed, out, weight)
    assert torch.equal(out, start + weight * decoded)


@every_case
def test_what_was_lost_is_left_by_taking_away_what_arrives(codec, rate):
    # How a link measures it: without a copy of the decoded vector, and to the last bit.
    for shape in ((0,), (1,), (3, 1009)):
        x = draw(*shape)
        x[..., ::5] = -0.0
        packet, decoded = sent(codec, x, rate)
        left = x.flatten().clone()
        codec.accumulate(packet, init(codec, x), 0, left, -1.0)
        assert left.numpy().tobytes() == (x.flatten() - decoded).numpy().tobytes()


@every_case
def test_accumulate_is_exact_in_the_middle_of_a_vector(codec, rate):
    # Long enough for vector instructions, which a fused multiply-add would show in.
    x = draw(3, 1009)
    packet, decoded = sent(codec, x, rate)
    out = torch.ones(3 * x.numel())
    codec.accumulate(packet, init(codec, x), 0, out[x.numel() : 2 * x.numel()], 0.3)
    assert torch.equal(
        out, torch.cat([torch.ones(x.numel()), 1 + 0.3 * decoded, torch.ones(x.numel())])
    )


@every_codec
def test_a_strided_or_differentiable_input_is_fine(codec):
    x = draw(7, 5)
    rate = offered(codec)[-1]
    shared = init(codec, x)
    packet = codec.encode(x, shared, rate, seed=0)
    assert codec.encode(x.t().contiguous().t().requires_grad_(), shared, rate, seed=0) == packet


# What must not get in


def survives(codec, packet, shared):
    """Either refused, or harmless: nothing else may happen."""
    try:
        codec.check(packet)
    except MessageError:
        return False
    assert codec.decode(packet, shared, seed=0).isfinite().all()
    return True


@every_case
def test_random_bytes_are_refused_or_harmless(codec, rate):
    random = np.random.default_rng(0)
    for shape in ((1,), (33,), (5, 13)):
        x = draw(*shape)
        packet, _ = sent(codec, x, rate)
        for _ in range(25):
            code = random.bytes(len(packet.code))
            survives(codec, packet._replace(code=code), init(codec, x))
            survives(
                codec, packet._replace(code=code, side=(1e20,) * len(packet.side)), init(codec, x)
            )


@every_case
def test_a_flipped_bit_is_refused_or_harmless(codec, rate):
    x = draw(3, 11)
    packet, _ = sent(codec, x, rate)
    for bit in range(0, 8 * len(packet.code), max(len(packet.code) // 16, 1)):
        code = bytearray(packet.code)
        code[bit // 8] ^= 1 << bit % 8
        survives(codec, packet._replace(code=bytes(code)), init(codec, x))
    survives(codec, packet._replace(own_scale=not packet.own_scale), init(codec, x))


@every_case
def test_a_shorter_or_longer_code_is_refused(codec, rate):
    one_length = codec.rates.fixed_length or isinstance(getattr(codec, "inner", codec), Topk)
    for numel in (0, 1, 33):
        x = draw(numel)
        packet, _ = sent(codec, x, rate)
        for code in (
            packet.code[:-1],
            packet.code[1:],
            packet.code + b"\0",
            b"\0" + packet.code,
            b"",
        ):
            if code != packet.code:
                assert not (
                    survives(codec, packet._replace(code=code), init(codec, x)) and one_length
                )


@every_case
def test_other_side_values_are_refused(codec, rate):
    packet, _ = sent(codec, draw(5, 7), rate)
    for side in (packet.side[:-1], (*packet.side, 1.0)):
        if side != packet.side:
            with pytest.raises(MessageError, match="side value"):
                codec.check(packet._replace(side=side))


# What is shared


@every_codec
def test_a_round_without_replies_changes_nothing(codec):
    shared = codec.init(12, 3)
    assert shared.dtype == torch.float32
    assert shared.ndim == 1
    assert torch.equal(codec.fold(shared, []), shared)


@every_codec
def test_folding_keeps_the_shape_and_its_input(codec):
    shared = codec.init(12, 3)
    before = shared.clone()
    x = torch.arange(12.0).view(3, 4)
    rate = offered(codec)[0]
    sides = [codec.encode(x * k, shared, rate, seed=k).side for k in range(1, 4)]
    folded = codec.fold(shared, sides)
    assert torch.equal(shared, before)
    assert folded.shape == shared.shape
    assert folded.dtype == torch.float32
    assert folded.isfinite().all()
    packet = codec.encode(x, folded, rate, seed=0)  # and the next round goes on from there
    codec.check(packet)
    assert codec.decode(packet, folded, seed=0).isfinite().all()


@every_codec
def test_a_codec_is_plain_frozen_data(codec):
    copy = pickle.loads(pickle.dumps(codec))
    assert copy == codec
    assert hash(copy) == hash(codec)


RETIRED = 10  # an earlier code of ecq
TAKEN = [
    *((cls.wire_id, name) for name, cls in CODECS.items()),
    (Integers.wire_id, "integers"),
    (15, "votes"),
]


def test_wire_ids_are_distinct_and_below_the_free_range():
    ids = [wire_id for wire_id, _ in TAKEN]
    assert len({*ids, RETIRED}) == len(ids) + 1
    assert all(0 <= wire_id < 128 for wire_id in ids)
    assert Float32.wire_id == 0


def test_votes_have_the_wire_id_that_is_kept_for_them():
    pytest.importorskip("cryptography", reason="needs the extra: pip install 'fedwsq[secure]'")
    from fedwsq.federation.phases import VOTE_WIRE_ID

    assert (VOTE_WIRE_ID, "votes") in TAKEN


def test_both_tables_of_wire_ids_have_every_one():
    """The comment beside `Codec.wire_id` and the page of the format."""
    comment = inspect.getsource(Codec).split("Taken are")[1].split("with 14 in")[0]
    listed = [(int(wire_id), name) for wire_id, name in re.findall(r"(\d+) (\w+)", comment)]
    assert listed == sorted(TAKEN)

    page = (Path(__file__).parents[2] / "docs" / "wire-format.md").read_text()
    described = re.findall(r"^\| (\d+) \| (\w+) \|", page.split("## Codecs")[1], re.MULTILINE)
    assert [(int(wire_id), name) for wire_id, name in described] == sorted(TAKEN)
