import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwsq.codecs import Danuq, Packet
from fedwsq.codecs.levels import LEVEL_KINDS, edges, levels, normal_error, widths
from fedwsq.codecs.packing import unpack
from fedwsq.core.errors import ConfigError, MessageError, UpdateError

WORKED = json.loads((Path(__file__).parents[1] / "golden" / "worked.json").read_text())
EVERY = [(bits, kind) for kind in LEVEL_KINDS for bits in sorted(widths(kind))]
SCALE = torch.tensor([0.001])
DELTA = {"a": [0.0012, -0.0021, 0.0002, 0.0030], "b": [-0.0008, 0.0004, -0.0015, 0.0006]}


def codes(packet):
    return unpack(packet.code, int(packet.rate), packet.numel)


def encode(values, bits, scale=SCALE, codec=None):
    return (codec or Danuq()).encode(torch.tensor(values), scale, bits, seed=0)


def is_nearest(chosen, ratios, q):
    """Brute force: no level is nearer than the chosen one, up to the float32 rounding of the edges."""
    distances = (ratios.double()[:, None] - torch.tensor(q, dtype=torch.float64)).abs()
    own = distances.gather(1, chosen.long()[:, None])[:, 0]
    return (own <= distances.min(1).values + 1e-6).all()


@pytest.mark.parametrize("numel", [0, 1, 2, 3, 5, 8, 9, 1000])
@pytest.mark.parametrize(("bits", "kind"), EVERY)
def test_normal_data_goes_to_the_nearest_level(bits, kind, numel):
    codec, scale = Danuq(levels=kind), torch.tensor([0.02])
    x = torch.randn(numel, generator=torch.Generator().manual_seed(numel)) * 0.02
    packet = codec.encode(x, scale, bits, seed=0)
    q = torch.tensor(levels(bits, kind))
    nearest = ((x / scale)[:, None] - q).abs().argmin(1)  # The first of equals: ties go down.
    assert torch.equal(codes(packet).long(), nearest)
    assert torch.equal(codec.decode(packet, scale, seed=0), q[nearest] * scale)


@pytest.mark.parametrize(("bits", "kind"), EVERY)
@settings(deadline=None)
@given(
    values=st.lists(st.floats(-(2.0**100), 2.0**100, width=32), max_size=60),
    scale=st.floats(2.0**-39, 2.0**20, width=32),
)
def test_any_finite_data_goes_to_the_nearest_level(bits, kind, values, scale):
    x, shared = torch.tensor(values), torch.tensor([scale])
    packet = Danuq(levels=kind).encode(x, shared, bits, seed=0)
    if x.any():
        # Past 1e4 every distance but that to the outermost level drowns in rounding.
        assert is_nearest(codes(packet), (x / shared).clamp(-1e4, 1e4), levels(bits, kind))


@pytest.mark.parametrize(("bits", "kind"), EVERY)
def test_a_value_on_an_edge_goes_down_and_the_next_float_up(bits, kind):
    on_edge = torch.tensor(edges(levels(bits, kind)))
    above = torch.nextafter(on_edge, torch.tensor(math.inf))
    one = torch.ones(1)
    codec = Danuq(levels=kind)
    below_codes = torch.arange(len(on_edge), dtype=torch.uint8)
    # An extra 1.0 keeps the one-bit case, whose only edge is 0, from being an update of zeros.
    x = torch.cat([on_edge, torch.ones(1)])
    assert torch.equal(codes(codec.encode(x, one, bits, seed=0))[:-1], below_codes)
    assert torch.equal(codes(codec.encode(above, one, bits, seed=0)), below_codes + 1)


def test_published_edge_ties():
    tie = WORKED["fedwsq.edge_tie"]
    assert codes(encode(tie["x"], 2, torch.ones(1))).tolist() == tie["codes"] == [0, 1, 2]


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("client", ["a", "b"])
def test_golden_round_client(bits, client):
    expected = WORKED[f"fedwsq.B{bits}"][client]
    packet = encode(DELTA[client], bits)
    assert codes(packet).tolist() == expected["codes"]
    assert packet.side == pytest.approx((expected["s_i"],), rel=1e-6)
    assert Danuq().decode(packet, SCALE, seed=0).tolist() == pytest.approx(expected["deq_sg"], rel=1e-6)
    own = encode(DELTA[client], bits, codec=Danuq(dequantize="own"))
    assert own.own_scale
    assert own.code == packet.code
    assert Danuq(dequantize="own").decode(own, SCALE, seed=0).tolist() == pytest.approx(expected["deq_si"], rel=1e-6)


def server(packets, codec):
    """w + mean of the decoded updates, as the published server does it."""
    mean = torch.zeros(4)
    for packet in packets:
        codec.accumulate(packet, SCALE, 0, mean, 1 / len(packets))
    return (torch.tensor([0.5, -0.3, 0.2, 0.0]) + mean).tolist()


@pytest.mark.parametrize(("dequantize", "key"), [("shared", "server_code"), ("own", "server_alg1_si_mean")])
@pytest.mark.parametrize("bits", [1, 2, 4])
def test_golden_round_server(bits, dequantize, key):
    codec, expected = Danuq(dequantize=dequantize), WORKED[f"fedwsq.B{bits}"]
    packets = [encode(delta, bits, codec=codec) for delta in DELTA.values()]
    assert server(packets, codec) == pytest.approx(expected[key], abs=1e-7)
    assert codec.fold(SCALE, [packet.side for packet in packets]).item() == pytest.approx(expected["s_g_new"], rel=1e-6)


def test_golden_round_of_mixed_widths():
    packets = [encode(DELTA["a"], 4), encode(DELTA["b"], 1)]
    assert server(packets, Danuq()) == pytest.approx(WORKED["fedwsq.mixed_a4_b1"], abs=1e-7)


@pytest.mark.parametrize("numel", [1, 7, 1000, 100_003])
def test_accumulate_is_exact_at_every_position(numel):
    # Two roundings: a fused multiply-add, as in torch.add(alpha=...), differs in one weight of five.
    x = torch.randn(numel, generator=torch.Generator().manual_seed(3)) * 1e-3
    packet, out = Danuq().encode(x, SCALE, 4, seed=0), x.clone()
    Danuq().accumulate(packet, SCALE, 0, out, 0.3)
    assert torch.equal(out, x + Danuq().decode(packet, SCALE, seed=0) * 0.3)


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("numel", [0, 1, 7])
def test_a_zero_update_decodes_to_zeros(bits, numel):
    packet = Danuq().encode(torch.zeros(numel), SCALE, bits, seed=0)
    assert packet.side == (0.0,)
    assert packet.own_scale
    assert Danuq().decode(packet, SCALE, seed=0).tolist() == [0.0] * numel


def test_a_constant_update_has_no_spread():
    packet = encode([0.0021] * 3, 2)
    assert packet.side == (0.0,)
    assert Danuq().decode(packet, SCALE, seed=0).tolist() == pytest.approx([0.0017242] * 3)
    own = Danuq(dequantize="own")
    assert own.decode(encode([0.0021] * 3, 2, codec=own), SCALE, seed=0).tolist() == [0.0] * 3


def test_one_element_has_its_magnitude_as_spread():
    packet = encode([-0.0021], 2)
    assert packet.side == pytest.approx((0.0021,), rel=1e-6)
    assert Danuq().decode(packet, SCALE, seed=0).tolist() == pytest.approx([-0.001224])


def test_two_elements_by_hand():
    # Mean 2, deviations -1 and 1, unbiased variance 2 / 1.
    assert encode([1.0, 3.0], 1).side == pytest.approx((math.sqrt(2),), rel=1e-7)


def test_the_side_value_is_a_float32():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    (side,) = Danuq().encode(x, torch.ones(1), 4, seed=0).side
    assert side == torch.tensor(side).item()
    assert encode([3e38, -3e38], 1).side == pytest.approx((torch.finfo(torch.float32).max,))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_update_that_is_not_finite_is_refused(bad):
    for values in ([bad], [0.0, bad, 1.0]):
        with pytest.raises(UpdateError, match="not finite"):
            encode(values, 4)


def test_error_on_normal_data_is_the_expected_one():
    x = torch.randn(200_000, generator=torch.Generator().manual_seed(2))
    for bits, kind in EVERY:
        codec = Danuq(levels=kind)
        decoded = codec.decode(codec.encode(x, torch.ones(1), bits, seed=0), torch.ones(1), seed=0)
        assert (x - decoded).square().mean().item() == pytest.approx(normal_error(levels(bits, kind)), rel=0.03)


def test_fold_by_hand():
    # 0.9 * 0.001 + 0.1 * (0.002 + 0.004) / 2; the client without spread is left out.
    assert Danuq().fold(SCALE, [(0.002,), (0.0,), (0.004,)]).item() == pytest.approx(0.0012, rel=1e-6)
    assert Danuq(momentum=1).fold(SCALE, [(0.002,), (0.004,)]).item() == pytest.approx(0.003, rel=1e-6)


def test_fold_without_spread_changes_nothing():
    for sides in ([], [(0.0,)], [(0.0,), (0.0,)]):
        assert torch.equal(Danuq().fold(SCALE, sides), SCALE)


def test_the_shared_scale_never_falls_below_its_floor():
    folded = Danuq(momentum=1).fold(SCALE, [(1e-30,)])
    assert torch.equal(folded, torch.tensor([1e-12]))


def test_warm_up_of_the_shared_scale():
    codec = Danuq()
    scale, seen = codec.init(10), {}
    for round in range(1, 51):
        scale = codec.fold(scale, [(0.005,), (0.005,)])
        seen[round] = scale.item()
    for round, expected in WORKED["fedwsq.sg_warmup"]:
        assert seen[round] == pytest.approx(expected, rel=1e-6)


def test_init_is_one_float32():
    assert torch.equal(Danuq(scale_init=0.25).init(7), torch.tensor([0.25]))
    assert Danuq().init(0).dtype == torch.float32


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"side": ()}, "a danuq packet has 1 side value, its scale, not 0"),
        ({"side": (1.0, 2.0)}, "a danuq packet has 1 side value, its scale, not 2"),
        ({"code": b"\x1c"}, "3 codes of 4 bits take 2 bytes, not 1"),
        ({"code": b"\x1c\x18"}, "the 4 bits after 3 codes of 4 bits must be zero"),
    ],
)
def test_check_refuses_damaged_packets(change, text):
    packet = Packet(b"\x1c\x08", (1.0,), 4, 3)
    Danuq().check(packet)
    with pytest.raises(MessageError, match=text):
        Danuq().check(packet._replace(**change))


def test_rates_follow_the_levels():
    assert Danuq().rates == {1, 2, 4}
    assert Danuq(levels="optimal").rates == Danuq(levels="lloyd-max").rates == set(range(1, 9))
    for rate in (3, 2.5, 0, 32):
        with pytest.raises(ConfigError, match=f"danuq has no {rate}-bit rate; it offers 1, 2, 4"):
            encode([1.0], rate)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"levels": "lloyd"}, 'danuq has no level kind "lloyd"; did you mean "lloyd-max"?'),
        ({"momentum": 0.0}, "danuq momentum = 0.0 is out of range; it must be above 0 and at most 1"),
        ({"momentum": 1.5}, "danuq momentum = 1.5"),
        ({"momentum": math.nan}, "danuq momentum = nan"),
        ({"scale_init": 0.0}, "danuq scale_init = 0.0 is out of range; it must be from 1e-12 to 1e+20"),
        ({"scale_init": -1.0}, "danuq scale_init = -1.0"),
        ({"scale_init": math.inf}, "danuq scale_init = inf"),
        ({"scale_init": math.nan}, "danuq scale_init = nan"),
        ({"dequantize": "mine"}, 'danuq dequantize = "mine" is unknown; it is "shared" or "own"'),
    ],
)
def test_settings_no_run_can_have(settings, text):
    with pytest.raises(ConfigError) as error:
        Danuq(**settings)
    assert text in str(error.value)


def test_a_packet_that_chooses_its_own_scale_unasked_is_refused():
    x = torch.tensor([1e-3, -2e-3, 3e-3])
    shared = Danuq().init(3)
    packet = Danuq().encode(x, shared, 4, 0)
    Danuq().check(packet)
    with pytest.raises(MessageError, match="must not say otherwise"):
        Danuq().check(packet._replace(own_scale=True, side=(1e20,)))
    with pytest.raises(MessageError, match="must not say otherwise"):
        Danuq(dequantize="own").check(packet)
    Danuq().check(Danuq().encode(torch.zeros(3), shared, 4, 0))  # zeros decode with their own scale, 0
