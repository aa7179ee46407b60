import pytest
import torch

from fedwsq.bench import codec, fold, processes
from fedwsq.codecs import Danuq, Ecq
from fedwsq.codecs.coding import tables
from fedwsq.codecs.levels import levels
from fedwsq.core.tree import zeros_like
from fedwsq.models import cnn
from fedwsq.wire import Line, Schema

SHARED = torch.tensor([1.1e-3])


def test_plain_torch_does_the_same_work():
    x = torch.randn(5000, generator=torch.Generator().manual_seed(0)) * 1e-3
    expected, found = torch.zeros(2, 5000)
    q, edges = (torch.from_numpy(table) for table in tables(levels(4)))
    packet = Danuq().encode(x, SHARED, 4, 0)
    code, std = codec.plain_encode(x, SHARED, edges)
    assert (code, std) == (packet.code, pytest.approx(packet.side[0], rel=1e-5))
    Danuq().accumulate(packet, SHARED, 0, expected, 0.1)
    codec.plain_accumulate(code, SHARED, q, found, 0.1)
    assert torch.equal(found, expected)


def test_codec_figures_are_ratios_of_seconds(monkeypatch, clock):
    """Every piece of work is really done, in as many seconds as it says here."""
    encode = {4: 8.0, 2: 4.0, 1: 5.0}
    quantize = {4: 4.0, 2: 2.0, 1: 1.0}
    accumulate = {4: 2.0, 2: 1.0, 1: 0.5}
    monkeypatch.setattr(codec, "NUMEL", 5000)
    monkeypatch.setattr(codec, "TIMES", 2)
    for where, name, seconds in (
        (codec.np, "copyto", lambda *given: 2.0),
        (codec, "plain_encode", lambda *given: 100.0),
        (codec, "plain_accumulate", lambda *given: 32.0),
        (codec, "quantize", lambda values, scales, between, bits: quantize[bits]),
        (Danuq, "encode", lambda self, x, shared, bits, seed: encode[bits]),
        (Danuq, "accumulate", lambda self, packet, *given: accumulate[packet.rate]),
        (Ecq, "encode", lambda self, x, shared, bits, seed: 10.0 * bits),
        (Ecq, "accumulate", lambda self, packet, *given: 4.0 * packet.rate),
    ):
        monkeypatch.setattr(where, name, clock.takes(getattr(where, name), seconds))
    found = codec.measure()
    assert {each.name: each.value for each in found} == {
        "memcpy": 20_000 / 1e9 / 2,  # GB a second
        "encode 4-bit / memcpy": 2 / 8,
        "encode 4-bit without the std / memcpy": 2 / 4,
        "encode 2-bit / memcpy": 2 / 4,
        "encode 2-bit without the std / memcpy": 2 / 2,
        "encode 1-bit / memcpy": 2 / 5,
        "encode 1-bit without the std / memcpy": 2 / 1,
        "encode 4-bit / plain torch": 100 / 8,
        "decode and add 4-bit / memcpy": 2 / 2,
        "decode and add 2-bit / memcpy": 2 / 1,
        "decode and add 1-bit / memcpy": 2 / 0.5,
        "decode and add 4-bit / plain torch": 32 / 2,
        "ecq encode 0.5-bit / memcpy": 2 / 5,
        "ecq encode 1-bit / memcpy": 2 / 10,
        "ecq encode 4-bit / memcpy": 2 / 40,
        "ecq decode and add 0.5-bit / memcpy": 2 / 2,
        "ecq decode and add 1-bit / memcpy": 2 / 4,
        "ecq decode and add 4-bit / memcpy": 2 / 16,
    }
    assert all(each.low == each.value == each.high for each in found)
    assert [each.note for each in found if each.name == "encode 4-bit / memcpy"] == ["2.5e-06 GB/s"]


def test_folding_adds_up_the_replies():
    params = {
        "stem": torch.zeros(4, 3, 3, 3),
        "conv": torch.zeros(16, 4, 3, 3),
        "bias": torch.zeros(16),
    }
    line = Line(fold.LINK, Schema({name: tuple(x.shape) for name, x in params.items()}))
    shared = line.init(("delta",))
    sums = {"delta": zeros_like(params)}
    for client in range(3):
        fold.fold(fold.make_reply(params, line, shared, client), line, shared, sums)
    # Three of weight 100, each +-0.7979 of the starting scale.
    unit = sums["delta"]["conv"] / (100 * 0.7979e-3)
    assert torch.allclose(unit, unit.round(), atol=1e-4)
    assert unit.round().unique().tolist() == [-3, -1, 1, 3]


def test_fold_figures_are_updates_a_second_and_megabytes_in_the_end(monkeypatch, clock):
    memory = iter([500e6, 501e6, 503e6, 502e6, 507e6, 504e6])
    monkeypatch.setattr(fold, "UPDATES", 10)
    monkeypatch.setitem(fold.MODELS, "resnet18", cnn)
    monkeypatch.setattr(fold, "fold", clock.takes(fold.fold, lambda *given: 0.25))
    monkeypatch.setattr(fold, "resident_bytes", lambda: next(memory))
    speed, grown = fold.measure()
    assert (speed.low, speed.value, speed.high, speed.unit) == (4, 4, 4, "1/s")
    assert (grown.low, grown.value, grown.high, grown.unit) == (1, 4, 7, "MB")
    assert grown.note == "500 MB before"


@pytest.mark.skipif(not processes.can_watch(), reason="needs /proc")
def test_memory_that_is_written_to_is_resident():
    before = fold.resident_bytes()
    block = torch.ones(25_000_000)
    assert fold.resident_bytes() - before > 5e7, len(block)
