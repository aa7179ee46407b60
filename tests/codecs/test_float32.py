import math
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwsq.codecs import Float32, Packet
from fedwsq.core.errors import ConfigError, MessageError, UpdateError

NONE = torch.empty(0)


@settings(deadline=None)
@given(values=st.lists(st.floats(-(2.0**66), 2.0**66, width=32), max_size=50))
def test_bytes_are_little_endian_and_lossless(values):
    packet = Float32().encode(torch.tensor(values), NONE, 32, seed=0)
    assert packet == Packet(struct.pack(f"<{len(values)}f", *values), (), 32, len(values))
    decoded = Float32().decode(packet, NONE, seed=0)
    assert decoded.dtype == torch.float32
    assert decoded.tolist() == values


def test_a_strided_or_differentiable_input_is_fine():
    x = torch.arange(6.0, requires_grad=True)[::2]
    assert Float32().encode(x, NONE, 32, seed=0).code == struct.pack("<3f", 0, 2, 4)


def test_decoded_values_may_be_changed():
    packet = Float32().encode(torch.ones(2), NONE, 32, seed=0)
    Float32().decode(packet, NONE, seed=0).zero_()
    assert Float32().decode(packet, NONE, seed=0).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("numel", [1, 7, 1000, 100_003])
def test_accumulate_is_exact_at_every_position(numel):
    x = torch.randn(numel, generator=torch.Generator().manual_seed(3))
    packet = Float32().encode(x, NONE, 32, seed=0)
    out = x.flip(0)
    Float32().accumulate(packet, NONE, 0, out, 0.3)
    assert torch.equal(out, x.flip(0) + x * 0.3)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused_at_both_ends(bad):
    with pytest.raises(UpdateError, match="not finite"):
        Float32().encode(torch.tensor([0.0, bad]), NONE, 32, seed=0)
    with pytest.raises(MessageError, match=r"values must be finite and at most 1e\+20"):
        Float32().check(Packet(struct.pack("<2f", 0.0, bad), (), 32, 2))


@pytest.mark.parametrize(
    ("packet", "text"),
    [
        (Packet(bytes(7), (), 32, 2), "2 float32 values take 8 bytes, not 7"),
        (Packet(bytes(12), (), 32, 2), "2 float32 values take 8 bytes, not 12"),
        (Packet(bytes(8), (1.0,), 32, 2), "a float32 packet has no side values, not 1"),
    ],
)
def test_check_refuses_damaged_packets(packet, text):
    with pytest.raises(MessageError, match=text):
        Float32().check(packet)


def test_only_32_bits():
    with pytest.raises(ConfigError, match="float32 has no 4-bit rate; it offers 32"):
        Float32().encode(torch.ones(1), NONE, 4, seed=0)
