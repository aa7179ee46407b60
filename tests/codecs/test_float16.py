import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedwsq.codecs import Float16, Packet
from fedwsq.codecs.base import MAX_MAGNITUDE
from fedwsq.codecs.float16 import LARGEST, power_of_two
from fedwsq.core.errors import ConfigError, MessageError, UpdateError

NONE = torch.empty(0)


def test_by_hand():
    # The largest, 3 = 0.75 x 2^2, goes to 0.75 x 2^15: a scale of 2^-13.
    packet = Float16().encode(torch.tensor([3.0, -1.0, 0.0]), NONE, 16, seed=0)
    assert packet == Packet(struct.pack("<3e", 24576, -8192, 0), (2.0**-13,), 16, 3, own_scale=True)
    assert Float16().decode(packet, NONE, seed=0).tolist() == [3.0, -1.0, 0.0]


@pytest.mark.parametrize(
    ("top", "scale"),
    [
        (0.0, 0.0),
        (1.0, 2.0**-14),
        (1.99, 2.0**-14),
        (2.0, 2.0**-13),
        (1e-45, 2.0**-126),
        (9e19, 2.0**52),
    ],
)
def test_scale(top, scale):
    assert power_of_two(top) == scale


@given(
    values=st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=50),
    exponent=st.integers(-90, 60),
)
def test_eleven_bits_within_28_binades_of_the_largest(values, exponent):
    x = torch.tensor(values) * 2.0**exponent
    packet = Float16().encode(x, NONE, 16, seed=0)
    Float16().check(packet)
    lost = (Float16().decode(packet, NONE, seed=0).double() - x.double()).abs()
    # Half of the last of eleven bits, and below that range half of float16's smallest number.
    assert (
        lost <= torch.maximum(x.double().abs() * 2.0**-11, x.double().abs().max() * 2.0**-38)
    ).all()


def test_the_largest_update_makes_a_packet_that_is_taken():
    # 1e20 is 1387.8 x 2^56: eleven bits have 1387 and 1388, of which the nearest is too large.
    assert 1387 * 2**56 == LARGEST < MAX_MAGNITUDE < 1388 * 2**56
    for top in (float(np.nextafter(np.float32(1e20), np.float32(0))), LARGEST, 9e19):
        packet = Float16().encode(torch.tensor([top, -top, 1.0]), NONE, 16, seed=0)
        Float16().check(packet)
        decoded = Float16().decode(packet, NONE, seed=0)
        assert decoded[0] == -decoded[1] == pytest.approx(top, rel=2.0**-10)


def test_small_updates_keep_their_bits():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 1e-7
    decoded = Float16().decode(Float16().encode(x, NONE, 16, seed=0), NONE, seed=0)
    assert ((decoded - x).abs() <= x.abs() * 2.0**-11).all()
    assert not torch.allclose(
        x.half().float(), x, rtol=0.01, atol=0
    )  # as they would not by themselves


@pytest.mark.parametrize("top", [1e-45, 1e-40, 9.9e19])
def test_the_ends_of_float32(top):
    x = torch.tensor([top, -top / 2, 0.0])
    packet = Float16().encode(x, NONE, 16, seed=0)
    Float16().check(packet)
    assert Float16().decode(packet, NONE, seed=0).tolist() == pytest.approx(
        x.tolist(), rel=2e-3, abs=2e-45
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2e20])
def test_an_update_that_no_receiver_takes_is_refused(bad):
    with pytest.raises(
        UpdateError, match=r"float16 cannot code values that are not finite or above 1e\+20"
    ):
        Float16().encode(torch.tensor([0.0, bad]), NONE, 16, seed=0)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"side": ()}, "a float16 packet has 1 side value, its scale, not 0"),
        ({"own_scale": False}, "its flag is missing"),
        ({"code": bytes(5)}, "2 float16 values take 4 bytes, not 5"),
        ({"code": struct.pack("<2e", 1, math.nan)}, "a float16 packet carries nan"),
        ({"code": struct.pack("<2e", 1, math.inf)}, "a float16 packet carries inf"),
        (
            {"code": struct.pack("<2e", 1, -math.inf), "side": (0.0,)},
            "a float16 packet carries inf",
        ),
        (
            {"code": struct.pack("<2e", 1, -3), "side": (5e19,)},
            "carries 3.0 times 5e+19; values must be finite and at",
        ),
    ],
)
def test_check_refuses_damaged_packets(change, text):
    packet = Packet(struct.pack("<2e", 1, -2), (5e19,), 16, 2, own_scale=True)
    Float16().check(packet)
    with pytest.raises(MessageError) as error:
        Float16().check(packet._replace(**change))
    assert text in str(error.value)


def test_only_16_bits():
    with pytest.raises(ConfigError, match="float16 has no 8-bit rate; it offers 16"):
        Float16().encode(torch.ones(1), NONE, 8, seed=0)
