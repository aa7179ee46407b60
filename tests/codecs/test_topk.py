import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedwsq.codecs import Packet, Rates, Topk
from fedwsq.codecs.elias_fano import index_bytes, pack_indices
from fedwsq.codecs.topk import largest_entries
from fedwsq.core.errors import ConfigError, MessageError, UpdateError

NONE = torch.empty(0)
FULL = Topk(values="float32")


def test_by_hand():
    # 16 elements at 4 bits pay for 8 bytes: three entries at 2 + 2 / 3 bytes, not four (8 + 2).
    x = torch.zeros(16)
    x[[1, 6, 15, 3]] = torch.tensor([-1.0, 4.0, 2.0, 0.5])
    packet = Topk().encode(x, NONE, 4, seed=0)
    code = struct.pack("<3e", -0.25, 1.0, 0.5) + bytes([0b111001, 0b100101])  # the indices 1, 6, 15
    assert packet == Packet(code, (4.0,), 4, 16, own_scale=True)
    x[3] = 0
    assert torch.equal(Topk().decode(packet, NONE, seed=0), x)


def test_float32_values_travel_as_they_are():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    packet = FULL.encode(x, NONE, 8, seed=0)
    FULL.check(packet)
    assert (packet.side, packet.own_scale) == ((), False)
    count = FULL.count(1000, 8)
    kept = x.abs() >= x.abs().sort(descending=True).values[count - 1]
    assert kept.sum() == count
    assert torch.equal(FULL.decode(packet, NONE, seed=0), torch.where(kept, x, 0.0))


@pytest.mark.parametrize("codec", [Topk(), FULL], ids=["float16", "float32"])
@pytest.mark.parametrize("rate", [0.05, 0.3, 1, 7.7, 19, 32])
def test_as_many_entries_as_the_budget_pays_for(codec, rate):
    size = lambda k, n: k * (2 if codec == Topk() else 4) + index_bytes(k, n)
    for numel in (0, 1, 2, 3, 7, 100, 101, 1000, 4096, 36_864):
        count = codec.count(numel, rate)
        budget = float(np.float32(rate)) * numel / 8
        affordable = [k for k in range(numel + 1) if size(k, numel) <= budget]
        assert count == max(max(affordable), min(numel, 1))  # no tensor is silent
        assert codec.max_bytes(numel, rate) == size(count, numel)


def test_the_rate_counts_as_the_float32_that_travels():
    # Two of 80 entries take the 7 bytes that 0.7 bits pay for, but the nearest float32 is below it.
    assert 2 * 2 + index_bytes(2, 80) == 0.7 * 80 / 8
    assert Topk().count(80, 0.7) == Topk().count(80, float(np.float32(0.7))) == 1


@given(
    values=st.lists(st.sampled_from([0.0, -1.0, 1.0, 2.0, -2.0, 3.0]), max_size=60),
    share=st.floats(0, 1),
)
def test_ties_go_to_the_first(values, share):
    count = round(share * len(values))
    ranked = sorted(range(len(values)), key=lambda i: (-abs(values[i]), i))
    assert largest_entries(np.array(values, np.float32), count).tolist() == sorted(ranked[:count])


def test_values_are_near_the_input():
    x = torch.randn(5000, generator=torch.Generator().manual_seed(0)) * 1e-6
    decoded = Topk().decode(Topk().encode(x, NONE, 32, seed=0), NONE, seed=0)
    assert ((decoded - x).abs() <= x.abs() * 2.0**-10 + 5e-6 * 2.0**-24).all()
    assert decoded[x.abs().argmax()] == x[x.abs().argmax()]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2e20])
def test_an_update_that_no_receiver_takes_is_refused(bad):
    with pytest.raises(
        UpdateError, match=r"topk cannot code values that are not finite or above 1e\+20"
    ):
        Topk().encode(torch.tensor([0.0, bad]), NONE, 4, seed=0)


def packed(values, chosen=(1, 6, 15)):
    return struct.pack("<3e", *values) + pack_indices(np.array(chosen), 16)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"side": ()}, "a topk packet of float16 values has 1 side value(s), flagged so"),
        ({"side": (1.0, 1.0)}, "has 1 side value(s)"),
        ({"own_scale": False}, "flagged so"),
        ({"code": packed((0.5, 1, 0))[:-1]}, "16 elements at 4 bits take 8 bytes by topk, not 7"),
        (
            {"code": packed((0.5, 1, 0)) + b"\x00"},
            "16 elements at 4 bits take 8 bytes by topk, not 9",
        ),
        ({"rate": 5}, "16 elements at 5 bits take 10 bytes by topk, not 8"),
        (
            {"code": packed((math.nan, 1, 0))},
            "a topk packet carries nan; values must be finite and at most 2 in size",
        ),
        ({"code": packed((0, math.inf, 0))}, "a topk packet carries inf"),
        ({"code": packed((0, -math.inf, 0)), "side": (0.0,)}, "a topk packet carries nan"),
        (
            {"code": packed((0, 1.001, 0))},
            "a topk packet carries 2.00195; values must be finite and at most 2 in size",
        ),
        ({"code": packed((0.5, 1, 0))[:-1] + b"\x05"}, "the code has 2 indices, not 3"),
        ({"code": packed((0.5, 1, 0))[:-1] + b"\xa5"}, "the bits after 3 indices must be zero"),
        (
            {"code": packed((0.5, 1, 0))[:-2] + b"\x05\x07"},
            "indices must ascend strictly and be below 16",
        ),
    ],
)
def test_check_refuses_damaged_packets(change, text):
    packet = Packet(packed((0.5, 1, -1)), (2.0,), 4, 16, own_scale=True)
    Topk().check(packet)
    with pytest.raises(MessageError) as error:
        Topk().check(packet._replace(**change))
    assert text in str(error.value)


def test_float32_values_are_bounded_too():
    packet = FULL.encode(torch.tensor([1.0]), NONE, 32, seed=0)
    for bad in (math.nan, math.inf, 2e20):
        with pytest.raises(MessageError, match=r"values must be finite and at most 1e\+20 in size"):
            FULL.check(packet._replace(code=struct.pack("<f", bad) + packet.code[4:]))


def test_settings():
    assert Topk().rates == Rates.between(0.05, 32.0)
    assert (Topk().side_values(9), FULL.side_values(9)) == (1, 0)
    for rate in (0.04, 33):
        with pytest.raises(ConfigError, match=f"topk has no {rate}-bit rate; it offers 0.05 to 32"):
            Topk().encode(torch.ones(1), NONE, rate, seed=0)
    with pytest.raises(
        ConfigError, match='topk values = "half" is unknown; it is "float16" or "float32"'
    ):
        Topk(values="half")
