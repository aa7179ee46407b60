"""Laws of every codec in the table, at every rate it offers: a new entry is tested the day it joins."""

import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwsq.codecs import CODECS


def offered(codec):
    """Every rate of a set; the ends and the middle of an interval."""
    if isinstance(codec.rates, frozenset):
        return sorted(codec.rates)
    low, high = codec.rates
    return [low, (low + high) / 2, high]


CASES = [pytest.param(cls(), rate, id=f"{name}-{rate:g}") for name, cls in CODECS.items() for rate in offered(cls())]
every_case = pytest.mark.parametrize(("codec", "rate"), CASES)
every_codec = pytest.mark.parametrize("codec", [cls() for cls in CODECS.values()], ids=list(CODECS))
vectors = st.lists(st.floats(-1e3, 1e3, width=32), max_size=100).map(torch.tensor)
seeds = st.integers(0, 2**63 - 1)


@every_case
def test_every_length_survives_the_round_trip(codec, rate):
    for numel in range(1001):
        x = torch.randn(numel, generator=torch.Generator().manual_seed(numel)) * 1e-3
        shared = codec.init(numel)
        packet = codec.encode(x, shared, rate, seed=numel)
        assert isinstance(packet.code, bytes)
        assert (packet.rate, packet.numel) == (rate, numel)
        size = codec.max_bytes(numel, rate)
        assert len(packet.code) == size if isinstance(codec.rates, frozenset) else len(packet.code) <= size
        codec.check(packet)
        decoded = codec.decode(packet, shared, seed=numel)
        assert decoded.shape == x.shape
        assert decoded.dtype == torch.float32
        assert decoded.isfinite().all()


@every_case
@settings(deadline=None)
@given(x=vectors, seed=seeds)
def test_encoding_changes_nothing_and_repeats_itself(codec, rate, x, seed):
    shared = codec.init(x.numel())
    before = x.clone(), shared.clone()
    packet = codec.encode(x, shared, rate, seed)
    assert torch.equal(x, before[0])
    assert torch.equal(shared, before[1])
    torch.rand(1)  # The global generator must play no part.
    assert codec.encode(x.clone(), shared.clone(), rate, seed) == packet
    assert torch.equal(codec.decode(packet, shared, seed), codec.decode(packet, shared.clone(), seed))


@every_case
@settings(deadline=None)
@given(x=vectors, seed=seeds, weight=st.floats(0, 100, width=32))
def test_accumulate_adds_the_weighted_decoding(codec, rate, x, seed, weight):
    shared = codec.init(x.numel())
    packet = codec.encode(x, shared, rate, seed)
    decoded = codec.decode(packet, shared, seed)
    start = torch.linspace(-1, 1, x.numel())
    out = start.clone()
    codec.accumulate(packet, shared, seed, out, weight)
    torch.testing.assert_close(out, start + weight * decoded)
    exact = torch.zeros(x.numel())
    codec.accumulate(packet, shared, seed, exact, 1.0)
    assert torch.equal(exact, decoded)


@every_case
def test_side_values_fit_the_wire(codec, rate):
    x = torch.randn(100, generator=torch.Generator().manual_seed(0))
    for side in codec.encode(x, codec.init(100), rate, seed=0).side:
        assert side >= 0
        assert side == torch.tensor(side, dtype=torch.float32).item()


@every_case
def test_zeros_stay_zeros(codec, rate):
    for numel in (0, 1, 9):
        shared = codec.init(numel)
        packet = codec.encode(torch.zeros(numel), shared, rate, seed=0)
        assert not codec.decode(packet, shared, seed=0).any()


@every_codec
def test_a_round_without_replies_changes_nothing(codec):
    shared = codec.init(10)
    assert shared.dtype == torch.float32
    assert shared.ndim == 1
    assert torch.equal(codec.fold(shared, []), shared)


@every_codec
def test_folding_keeps_the_shape_and_its_input(codec):
    shared = codec.init(10)
    before = shared.clone()
    rate = offered(codec)[0]
    sides = [codec.encode(torch.arange(10.0) * k, shared, rate, seed=k).side for k in range(1, 4)]
    folded = codec.fold(shared, sides)
    assert torch.equal(shared, before)
    assert folded.shape == shared.shape
    assert folded.dtype == torch.float32


@every_codec
def test_a_codec_is_plain_frozen_data(codec):
    assert hash(codec) == hash(type(codec)())
    assert pickle.loads(pickle.dumps(codec)) == codec


def test_wire_ids_are_distinct_and_below_the_free_range():
    ids = [cls.wire_id for cls in CODECS.values()]
    assert len(set(ids)) == len(ids)
    assert all(0 <= wire_id < 128 for wire_id in ids)
