import pytest
import torch

from fedwsq.codecs import Fp, Packet, Rates
from fedwsq.codecs.fp import magnitudes
from fedwsq.codecs.packing import unpack
from fedwsq.core.errors import ConfigError, MessageError

NONE = torch.empty(0)


def test_e2m1_and_e1m0():
    assert magnitudes(2, 1) == (0, 0.5, 1, 1.5, 2, 3, 4, 6)
    assert magnitudes(1, 0) == (0, 1)
    assert max(magnitudes(4, 3)) == 480 * 2.0**6  # 1.875 x 2^14: every code is a number


@pytest.mark.parametrize(
    ("bits", "table", "positive"),
    [
        (2, "e2m1", [1]),
        (2, "bitsandbytes", [1]),
        (4, "e2m1", [1 / 12, 1 / 6, 1 / 4, 1 / 3, 1 / 2, 2 / 3, 1]),
        (4, "bitsandbytes", [1 / 192, 1 / 6, 1 / 4, 1 / 3, 1 / 2, 2 / 3, 1]),
    ],
)
def test_levels(bits, table, positive):
    expected = [-q for q in reversed(positive)] + [0] + positive
    assert Fp(table=table).levels(bits) == pytest.approx(expected, abs=1e-15)
    assert len(expected) == 2**bits - 1
    assert Fp(table=table).levels(1) == (-1.0, 1.0)


def test_four_bits_by_hand():
    x = torch.tensor([6.0, 0.2, 0.3, -0.3, 2.4, 2.6, 5.1, -4.9])
    packet = Fp().encode(x, NONE, 4, seed=0)
    assert packet.side == (6.0,)
    assert unpack(packet.code, 4, 8).tolist() == [14, 7, 8, 6, 11, 12, 14, 1]
    assert Fp().decode(packet, NONE, seed=0).tolist() == pytest.approx(
        [6, 0, 0.5, -0.5, 2, 3, 6, -4]
    )


@pytest.mark.parametrize(("bits", "code"), [(2, b"\x03"), (4, b"\x0f")])
def test_the_second_zero_is_refused(bits, code):
    with pytest.raises(
        MessageError, match=f"a fp packet has code {2**bits - 1}; its {2**bits - 1} levels end at"
    ):
        Fp().check(Packet(code, (1.0,), bits, 1, own_scale=True))


def test_settings():
    assert Fp().rates == Rates.of(1, 2, 4)
    with pytest.raises(
        ConfigError, match='fp table = "e4m3" is unknown; it is "e2m1" or "bitsandbytes"'
    ):
        Fp(table="e4m3")
    with pytest.raises(ConfigError, match='fp unit = "max" is unknown'):
        Fp(unit="max")
    with pytest.raises(ConfigError, match="fp has no 3-bit rate; it offers 1, 2, 4"):
        Fp().encode(torch.ones(1), NONE, 3, seed=0)
