import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from level_tables import EVERY

from fedwsq.codecs import Danuq, Danuq4, Danuq8, Packet, Rates
from fedwsq.codecs.levels import edges, levels
from fedwsq.codecs.packing import unpack
from fedwsq.core.errors import ConfigError, MessageError, UpdateError

WORKED = json.loads((Path(__file__).parents[1] / "golden" / "worked.json").read_text())
SCALE = torch.tensor([0.001])
DELTA = {"a": [0.0012, -0.0021, 0.0002, 0.0030], "b": [-0.0008, 0.0004, -0.0015, 0.0006]}


def codes(packet):
    return torch.from_numpy(unpack(packet.code, int(packet.rate), packet.numel))


def encode(values, bits, scale=SCALE, codec=None):
    return (codec or Danuq()).encode(torch.tensor(values), scale, bits, seed=0)


def is_nearest(chosen, ratios, q):
    """Brute force: no level is nearer than the chosen one, up to the rounding of the edges."""
    distances = (ratios.double()[:, None] - torch.tensor(q, dtype=torch.float64)).abs()
    own = distances.gather(1, chosen.long()[:, None])[:, 0]
    return (own <= distances.min(1).values + 1e-6).all()


@pytest.mark.parametrize("numel", [0, 1, 2, 3, 5, 8, 9, 1000])
@pytest.mark.parametrize(("bits", "kind"), EVERY)
def test_normal_data_goes_to_the_nearest_level(bits, kind, numel):
    codec = Danuq(levels=kind)
    scale = torch.tensor([0.02])
    x = torch.randn(numel, generator=torch.Generator().manual_seed(numel)) * 0.02
    packet = codec.encode(x, scale, bits, seed=0)
    q = torch.tensor(levels(bits, kind))
    nearest = ((x / scale)[:, None] - q).abs().argmin(1)  # The first of equals: ties go down.
    assert torch.equal(codes(packet).long(), nearest)
    assert torch.equal(codec.decode(packet, scale, seed=0), q[nearest] * scale)


@pytest.mark.parametrize(("bits", "kind"), EVERY)
@settings(max_examples=30)
@given(
    values=st.lists(st.floats(-(2.0**66), 2.0**66, width=32), max_size=60),
    scale=st.floats(2.0**-39, 2.0**20, width=32),
)
def test_any_finite_data_goes_to_the_nearest_level(bits, kind, values, scale):
    x = torch.tensor(values)
    shared = torch.tensor([scale])
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
    assert Danuq().decode(packet, SCALE, seed=0).tolist() == pytest.approx(
        expected["deq_sg"], rel=1e-6
    )
    own = encode(DELTA[client], bits, codec=Danuq(dequantize="own"))
    assert own.own_scale
    assert own.code == packet.code
    assert Danuq(dequantize="own").decode(own, SCALE, seed=0).tolist() == pytest.approx(
        expected["deq_si"], rel=1e-6
    )


def server(packets, codec):
    """w + mean of the decoded updates, as the published server does it."""
    mean = torch.zeros(4)
    for packet in packets:
        codec.accumulate(packet, SCALE, 0, mean, 1 / len(packets))
    return (torch.tensor([0.5, -0.3, 0.2, 0.0]) + mean).tolist()


@pytest.mark.parametrize(
    ("dequantize", "key"), [("shared", "server_code"), ("own", "server_alg1_si_mean")]
)
@pytest.mark.parametrize("bits", [1, 2, 4])
def test_golden_round_server(bits, dequantize, key):
    codec = Danuq(dequantize=dequantize)
    expected = WORKED[f"fedwsq.B{bits}"]
    packets = [encode(delta, bits, codec=codec) for delta in DELTA.values()]
    assert server(packets, codec) == pytest.approx(expected[key], abs=1e-7)
    assert codec.fold(SCALE, [packet.side for packet in packets]).item() == pytest.approx(
        expected["s_g_new"], rel=1e-6
    )


def test_golden_round_of_mixed_widths():
    packets = [encode(DELTA["a"], 4), encode(DELTA["b"], 1)]
    assert server(packets, Danuq()) == pytest.approx(WORKED["fedwsq.mixed_a4_b1"], abs=1e-7)


@pytest.mark.parametrize("numel", [1, 7, 1000, 100_003])
def test_accumulate_is_exact_at_every_position(numel):
    # Two roundings: a fused multiply-add, as in torch.add(alpha=...), differs in a weight of five.
    x = torch.randn(numel, generator=torch.Generator().manual_seed(3)) * 1e-3
    packet = Danuq().encode(x, SCALE, 4, seed=0)
    out = x.clone()
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
    # The std is sqrt(2) times this; a receiver takes no scale above 1e20.
    (side,) = encode([9e19, -9e19], 1).side
    assert side == pytest.approx(1e20)
    assert side <= 1e20


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_update_that_is_not_finite_is_refused(bad):
    for values in ([bad], [0.0, bad, 1.0]):
        with pytest.raises(UpdateError, match="not finite"):
            encode(values, 4)


def test_fold_by_hand():
    # 0.9 * 0.001 + 0.1 * (0.002 + 0.004) / 2; the client without spread is left out.
    assert Danuq().fold(SCALE, [(0.002,), (0.0,), (0.004,)]).item() == pytest.approx(
        0.0012, rel=1e-6
    )
    assert Danuq(momentum=1).fold(SCALE, [(0.002,), (0.004,)]).item() == pytest.approx(
        0.003, rel=1e-6
    )


def test_fold_without_spread_changes_nothing():
    for sides in ([], [(0.0,)], [(0.0,), (0.0,)]):
        assert torch.equal(Danuq().fold(SCALE, sides), SCALE)


def test_the_shared_scale_never_falls_below_its_floor():
    folded = Danuq(momentum=1).fold(SCALE, [(1e-30,)])
    assert torch.equal(folded, torch.tensor([1e-12]))


def test_warm_up_of_the_shared_scale():
    codec = Danuq(scale_init=1e-3)
    scale = codec.init(10)
    seen = {}
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
        ({"side": ()}, "a danuq packet has 1 side value(s), its scales, not 0"),
        ({"side": (1.0, 2.0)}, "a danuq packet has 1 side value(s), its scales, not 2"),
        ({"code": b"\x1c"}, "3 codes of 4 bits take 2 bytes, not 1"),
        ({"code": b"\x1c\x18"}, "the 4 bits after 3 codes of 4 bits must be zero"),
    ],
)
def test_check_refuses_damaged_packets(change, text):
    packet = Packet(b"\x1c\x08", (1.0,), 4, 3)
    Danuq().check(packet)
    with pytest.raises(MessageError) as error:
        Danuq().check(packet._replace(**change))
    assert text in str(error.value)


def test_rates_follow_the_levels():
    assert Danuq().rates == Rates.of(1, 2, 4)
    assert (
        Danuq(levels="optimal").rates == Danuq(levels="lloyd-max").rates == Rates.of(*range(1, 9))
    )
    for rate in (3, 2.5, 0, 32):
        with pytest.raises(ConfigError, match=f"danuq has no {rate}-bit rate; it offers 1, 2, 4"):
            encode([1.0], rate)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"levels": "lloyd"},
            'danuq has no level kind "lloyd"; it offers paper, optimal, lloyd-max, even; '
            "did you mean lloyd-max?",
        ),
        (
            {"momentum": 0.0},
            "danuq momentum = 0.0 is out of range; it must be above 0 and at most 1",
        ),
        ({"momentum": 1.5}, "danuq momentum = 1.5"),
        ({"momentum": math.nan}, "danuq momentum = nan"),
        (
            {"scale_init": 0.0},
            "danuq scale_init = 0.0 is out of range; it must be from 1e-12 to 1e+20",
        ),
        ({"scale_init": -1.0}, "danuq scale_init = -1.0"),
        ({"scale_init": math.inf}, "danuq scale_init = inf"),
        ({"scale_init": math.nan}, "danuq scale_init = nan"),
        (
            {"scale_init": "guess"},
            'danuq scale_init = guess is out of range; it must be from 1e-12 to 1e+20, or "cali',
        ),
        ({"dequantize": "mine"}, 'danuq dequantize = "mine" is unknown; it is "shared" or "own"'),
        ({"band": 1.0}, "danuq band = 1.0 is out of range; it must be above 1, or 0 for none"),
        ({"band": -2.0}, "danuq band = -2.0"),
        ({"band": math.inf}, "danuq band = inf"),
        ({"band": math.nan}, "danuq band = nan"),
        (
            {"scale_per": "row"},
            'danuq scale_per = "row" is unknown; it is "tensor", "channel" or "block"',
        ),
        ({"block": 1}, "danuq block = 1 is out of range; a block has 2 to 1048576 elements"),
        ({"block": 2**20 + 1}, "danuq block = 1048577"),
    ],
)
def test_settings_no_run_can_have(settings, text):
    with pytest.raises(ConfigError) as error:
        Danuq(**settings)
    assert text in str(error.value)


def test_whose_scale_decodes_is_flagged():
    packet = encode([0.001, -0.002, 0.003], 4)
    assert not packet.own_scale
    Danuq().check(packet._replace(own_scale=True))  # a packet may always stand for itself
    with pytest.raises(MessageError, match="decoded with its own scale; its flag is missing"):
        Danuq(dequantize="own").check(packet)


# Packets that stand for themselves


def test_without_a_shared_state_a_packet_stands_for_itself():
    # std of 1, 3 is sqrt(2), so that the ratios are 0.707 and 2.121; 2-bit edges lie at -0.612,
    # 0.3823 and 1.2444.
    packet = encode([1.0, 3.0], 2, torch.empty(0))
    assert packet.own_scale
    assert packet.side == pytest.approx((math.sqrt(2),), rel=1e-7)
    assert codes(packet).tolist() == [2, 3]
    Danuq().check(packet)
    expected = [0.7646 * math.sqrt(2), 1.7242 * math.sqrt(2)]
    for shared in (torch.empty(0), torch.zeros(1), SCALE):  # whatever the other end knows
        assert Danuq().decode(packet, shared, seed=0).tolist() == pytest.approx(expected, rel=1e-6)


def test_a_packet_that_leans_on_a_missing_scale_is_refused():
    packet = encode([1.0, 3.0], 2)
    with pytest.raises(MessageError, match="leans on a shared scale that this end does not have"):
        Danuq().decode(packet, torch.empty(0), seed=0)
    with pytest.raises(MessageError, match="leans on a shared scale"):
        Danuq().accumulate(packet, torch.empty(0), 0, torch.zeros(2), 1.0)


def test_calibration_starts_from_what_the_clients_saw():
    codec = Danuq(scale_init="calibrate")
    shared = codec.init(4)
    assert shared.tolist() == [0.0]
    packets = [encode(delta, 4, shared, codec) for delta in DELTA.values()]
    for packet, client in zip(packets, "ab", strict=True):
        scale = WORKED["fedwsq.B4"][client]["s_i"]
        assert packet.own_scale
        assert packet.side == pytest.approx((scale,), rel=1e-6)
        ratios = torch.tensor(DELTA[client]) / scale
        q = torch.tensor(levels(4))
        nearest = (ratios[:, None] - q).abs().argmin(1)
        decoded = codec.decode(packet, shared, seed=0)
        assert decoded.tolist() == pytest.approx((q[nearest] * scale).tolist(), rel=1e-6)
    sides = [packet.side for packet in packets]
    first = codec.fold(shared, sides)
    mean = (sides[0][0] + sides[1][0]) / 2
    assert first.item() == pytest.approx(mean, rel=1e-6)  # taken whole
    assert not encode(DELTA["a"], 4, first, codec).own_scale
    assert codec.fold(first, [(3 * mean,)]).item() == pytest.approx(
        0.9 * mean + 0.1 * 3 * mean, rel=1e-6
    )


def test_calibration_waits_for_a_client_with_spread():
    codec = Danuq(scale_init="calibrate")
    assert codec.fold(torch.zeros(1), [(0.0,), (0.0,)]).tolist() == [0.0]
    assert codec.fold(torch.zeros(1), [(0.0,), (0.5,)]).tolist() == [0.5]
    assert codec.fold(torch.zeros(1), [(1e-30,)]).tolist() == pytest.approx([1e-12])


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_constant_single_and_zero_updates_before_there_is_a_scale(bits):
    codec = Danuq(scale_init="calibrate")
    none = torch.zeros(1)
    for values in ([0.0021] * 3, [-0.0021] * 3, [0.0021], [-0.0021]):
        packet = encode(values, bits, none, codec)
        assert packet.own_scale
        assert packet.side == pytest.approx(
            (0.0021,), rel=1e-6
        )  # |x|: all are equal, yet nothing is lost
        sign = math.copysign(1.0, values[0])
        level = min(levels(bits), key=lambda q: abs(q - sign))
        assert codec.decode(packet, none, seed=0).tolist() == pytest.approx(
            [level * 0.0021] * len(values), rel=1e-6
        )
    for numel in (0, 1, 5):
        packet = encode([0.0] * numel, bits, none, codec)
        assert packet.side == (0.0,)
        assert codec.decode(packet, none, seed=0).tolist() == [0.0] * numel


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1.1e20])
def test_calibration_refuses_what_is_not_finite(bad):
    with pytest.raises(UpdateError, match=r"not finite or above 1e\+20"):
        encode([0.0, bad], 4, torch.zeros(1), Danuq(scale_init="calibrate"))


@pytest.mark.parametrize(
    ("shared", "own"),
    # The std of 1, 3 over sqrt(2) times these, whose exact ratios are their inverses; the band is
    # from 1/4 to 4.
    [(1.0, False), (2.0, False), (0.26, False), (0.24, True), (3.9, False), (4.1, True)],
)
def test_a_band_around_the_shared_scale(shared, own):
    scale = torch.tensor([math.sqrt(2) * shared])
    packet = encode([1.0, 3.0], 2, scale, Danuq(band=4.0))
    assert packet.own_scale == own
    assert not encode([1.0, 3.0], 2, scale).own_scale
    used = math.sqrt(2) if own else scale.item()
    nearest = [min(levels(2), key=lambda q: abs(q - x / used)) * used for x in (1.0, 3.0)]
    assert Danuq(band=4.0).decode(packet, scale, seed=0).tolist() == pytest.approx(
        nearest, rel=1e-6
    )


def test_the_edges_of_the_band_are_inside():
    x = [-1.0, 1.0, -1.0, 1.0, 0.0]  # sum of squares 4 over 5 - 1: a std of exactly 1
    codec = Danuq(band=4.0)
    for shared, own in ((0.25, False), (4.0, False)):
        assert encode(x, 2, torch.tensor([shared]), codec).own_scale == own
        beyond = torch.nextafter(
            torch.tensor([shared]), torch.tensor(0.0 if shared < 1 else math.inf)
        )
        assert encode(x, 2, beyond, codec).own_scale


def test_a_band_leaves_updates_without_spread_alone():
    codec = Danuq(band=4.0)
    assert not encode([0.5] * 3, 2, SCALE, codec).own_scale
    assert codec.decode(encode([0.0] * 3, 1, SCALE, codec), SCALE, seed=0).tolist() == [0.0] * 3


# Scales by channel and by block

CHANNELS = Danuq(scale_per="channel")
ROWS = [[1.0, 3.0], [-20.0, 20.0], [0.0, 0.0]]  # std sqrt(2), sqrt(800), 0


def test_each_channel_has_its_scale():
    x = torch.tensor(ROWS)
    shared = torch.tensor([1.0, 10.0, 5.0])
    packet = CHANNELS.encode(x, shared, 1, seed=0)
    assert (packet.rows, packet.numel, packet.own_scale) == (3, 6, False)
    assert packet.side == pytest.approx((math.sqrt(2), math.sqrt(800), 0.0), rel=1e-6)
    assert codes(packet)[:4].tolist() == [1, 1, 0, 1]
    decoded = CHANNELS.decode(packet, shared, seed=0)
    # One bit has no zero level, but a channel of zeros is one without spread.
    assert decoded.tolist() == pytest.approx([0.7979, 0.7979, -7.979, 7.979, 0.0, 0.0], rel=1e-6)
    out = torch.ones(6)
    CHANNELS.accumulate(packet, shared, 0, out, 0.3)
    assert torch.equal(out, 1 + 0.3 * decoded)


def test_channels_with_their_own_scale():
    own = Danuq(scale_per="channel", dequantize="own")
    packet = own.encode(torch.tensor(ROWS), torch.tensor([1.0, 10.0, 5.0]), 1, seed=0)
    expected = [0.7979 * math.sqrt(2)] * 2 + [
        -0.7979 * math.sqrt(800),
        0.7979 * math.sqrt(800),
        0.0,
        0.0,
    ]
    assert own.decode(packet, torch.empty(0), seed=0).tolist() == pytest.approx(expected, rel=1e-6)


def test_a_constant_channel_is_not_a_channel_of_zeros():
    x = torch.tensor([[2.0, 2.0], [1.0, 3.0]])
    shared = torch.tensor([2.0, 1.0])
    packet = CHANNELS.encode(x, shared, 2, seed=0)
    assert packet.side == pytest.approx((2.0, math.sqrt(2)), rel=1e-6)
    # 2 / 2 is between the edges 0.3823 and 1.2444; 1 and 3 are 1 and 3.
    decoded = CHANNELS.decode(packet, shared, seed=0)
    assert decoded.tolist() == pytest.approx([1.5292, 1.5292, 0.7646, 1.7242], rel=1e-6)


def test_channels_are_the_first_dimension():
    x = torch.arange(24.0).view(2, 3, 2, 2)
    packet = CHANNELS.encode(x, torch.ones(2), 4, seed=0)
    assert packet.rows == 2
    assert packet.side == pytest.approx(tuple(x.flatten(1).std(1).tolist()), rel=1e-6)
    assert CHANNELS.init(24, rows=2).tolist() == [0.0, 0.0]  # not calibrated yet
    assert CHANNELS.side_values(24, rows=2) == 2
    for vector in (torch.arange(5.0), torch.tensor(3.0), torch.zeros(0, 4)):
        assert CHANNELS.encode(vector, SCALE, 4, seed=0).rows == 1
        assert CHANNELS.side_values(vector.numel()) == 1


def test_the_last_block_is_shorter():
    codec = Danuq(scale_per="block", block=2)
    x = torch.tensor([1.0, 3.0, -20.0, 20.0, -7.0])
    shared = torch.tensor([1.0, 10.0, 5.0])
    assert codec.init(5).shape == shared.shape
    packet = codec.encode(x, shared, 2, seed=0)
    assert packet.rows == 1
    assert packet.side == pytest.approx(
        (math.sqrt(2), math.sqrt(800), 7.0), rel=1e-6
    )  # of one element, |x|
    # ratios 1, 3, -2, 2, -1.4
    assert codes(packet).tolist() == [2, 3, 0, 3, 0]
    expected = [0.7646, 1.7242, -12.24, 17.242, -6.12]
    assert codec.decode(packet, shared, seed=0).tolist() == pytest.approx(expected, rel=1e-6)
    codec.check(packet)
    with pytest.raises(
        MessageError, match=r"a danuq packet has 3 side value\(s\), its scales, not 2"
    ):
        codec.check(packet._replace(side=packet.side[:2]))


def test_blocks_ignore_the_shape():
    codec = Danuq(scale_per="block", block=4)
    x = torch.arange(12.0).view(3, 2, 2)
    shared = codec.init(12, rows=3)
    flat = codec.encode(x.flatten(), shared, 4, seed=0)
    assert codec.encode(x, shared, 4, seed=0) == flat._replace(rows=3)


def test_each_group_moves_on_its_own():
    codec = Danuq(scale_per="channel", scale_init="calibrate")
    shared = codec.init(6, rows=3)
    assert shared.tolist() == [0.0, 0.0, 0.0]
    shared = codec.fold(shared, [(1.0, 0.0, 0.0), (3.0, 4.0, 0.0)])
    assert shared.tolist() == [2.0, 4.0, 0.0]
    shared = codec.fold(shared, [(1.0, 0.0, 0.0), (1.0, 14.0, 0.0)])
    assert shared.tolist() == pytest.approx([0.9 * 2 + 0.1, 0.9 * 4 + 1.4, 0.0], rel=1e-6)


def test_only_a_group_with_values_misses_its_scale():
    codec = Danuq(scale_per="channel", scale_init="calibrate")
    shared = torch.tensor([1.0, 0.0])
    dead = codec.encode(torch.tensor([[1.0, 3.0], [0.0, 0.0]]), shared, 1, seed=0)
    assert not dead.own_scale
    assert codec.decode(dead, shared, seed=0).tolist() == pytest.approx(
        [0.7979, 0.7979, 0.0, 0.0], rel=1e-6
    )
    woken = codec.encode(torch.tensor([[1.0, 3.0], [2.0, 2.0]]), shared, 1, seed=0)
    assert woken.own_scale
    assert woken.side == pytest.approx((math.sqrt(2), 2.0), rel=1e-6)
    expected = [0.7979 * math.sqrt(2)] * 2 + [1.5958] * 2
    assert codec.decode(woken, shared, seed=0).tolist() == pytest.approx(expected, rel=1e-6)


def test_one_group_out_of_its_band_is_enough():
    codec = Danuq(scale_per="channel", band=4.0)
    x = torch.tensor([[1.0, 3.0], [-20.0, 20.0], [0.0, 0.0]])
    assert not codec.encode(x, torch.tensor([1.0, 10.0, 1e-9]), 2, seed=0).own_scale
    assert codec.encode(x, torch.tensor([1.0, 1.0, 1.0]), 2, seed=0).own_scale


# Danuq8 and Danuq4


def test_danuq8_has_the_exact_256_levels_over_the_largest():
    q = Danuq8().levels(8)
    assert q == pytest.approx(
        [level / WORKED["danuq"]["8"]["levels"][-1] for level in WORKED["danuq"]["8"]["levels"]]
    )
    assert (len(q), q[127], q[255]) == (256, 0.0, 1.0)
    packet = Danuq8().encode(torch.tensor([4.0, 0.0, -1.0]), torch.empty(0), 8, seed=0)
    assert packet.side == (4.0,)
    nearest = min(range(256), key=lambda k: abs(q[k] + 0.25))
    assert codes(packet).tolist() == [255, 127, nearest]


def test_danuq4_has_the_exact_16_levels_over_the_largest():
    q = Danuq4().levels(4)
    exact = levels(4, "optimal")
    assert q == pytest.approx([level / exact[-1] for level in exact])
    assert (len(q), q[7], q[15]) == (16, 0.0, 1.0)
    packet = Danuq4().encode(torch.tensor([4.0, 0.0, -1.0]), torch.empty(0), 4, seed=0)
    assert packet.side == (4.0,)
    nearest = min(range(16), key=lambda k: abs(q[k] + 0.25))
    assert codes(packet).tolist() == [15, 7, nearest]
    assert len(packet.code) == 2
