import pytest
import torch

from fedwsq.bench import GROUPS, codec, fold
from fedwsq.codecs import Danuq
from fedwsq.codecs.grid import tables
from fedwsq.codecs.levels import levels
from fedwsq.core.tree import zeros_like
from fedwsq.wire import Schema

SHARED = torch.tensor([1.1e-3])


def test_plain_torch_does_the_same_work():
    x, expected, found = torch.randn(5000, generator=torch.Generator().manual_seed(0)) * 1e-3, *torch.zeros(2, 5000)
    q, edges = (torch.from_numpy(table) for table in tables(levels(4)))
    packet = Danuq().encode(x, SHARED, 4, 0)
    code, std = codec.plain_encode(x, SHARED, edges)
    assert (code, std) == (packet.code, pytest.approx(packet.side[0], rel=1e-5))
    Danuq().accumulate(packet, SHARED, 0, expected, 0.1)
    codec.plain_accumulate(code, SHARED, q, found, 0.1)
    assert torch.equal(found, expected)


def test_codec_figures(monkeypatch):
    monkeypatch.setattr(codec, "NUMEL", 5000)
    monkeypatch.setattr(codec, "TIMES", 2)
    found = {each.name: each for each in GROUPS["codec"]()}
    bars = {name: each.must for name, each in found.items() if each.must is not None}
    assert bars == {
        **{f"encode {bits}-bit / memcpy": must for bits, must in {4: 0.22, 2: 0.4, 1: 0.4}.items()},
        **{f"decode and add {bits}-bit / memcpy": 0.7 for bits in (4, 2, 1)},
        "encode 4-bit / plain torch": 10,
        "decode and add 4-bit / plain torch": 15,
    }
    assert all(0 < each.low <= each.value <= each.high for each in found.values())


def test_folding_adds_up_the_replies():
    params = {"stem": torch.zeros(4, 3, 3, 3), "conv": torch.zeros(16, 4, 3, 3), "bias": torch.zeros(16)}
    schema = Schema({name: tuple(x.shape) for name, x in params.items()})
    shared = fold.LINK.init(schema, ("delta",))
    sums = {"delta": zeros_like(params)}
    for client in range(3):
        fold.fold(fold.make_reply(params, schema, shared, client), schema, shared, sums)
    # Three of weight 100, each +-0.7979 of the starting scale.
    unit = sums["delta"]["conv"] / (100 * 0.7979e-3)
    assert torch.allclose(unit, unit.round(), atol=1e-4)
    assert unit.round().unique().tolist() == [-3, -1, 1, 3]
    assert fold.resident_bytes() > 10**7


def test_fold_figures(monkeypatch):
    monkeypatch.setattr(fold, "UPDATES", 10)
    speed, memory = GROUPS["fold"]()
    assert (speed.must, memory.must, memory.better) == (60, 50, "lower")
    assert 0 < speed.low <= speed.value <= speed.high
    assert memory.value < 50
