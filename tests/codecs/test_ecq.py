import math
from bisect import bisect_right
from itertools import accumulate

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from level_tables import at_every_size, in_numpy  # noqa: F401

from fedwsq.codecs import CODECS, Fixed, Packet, Rates
from fedwsq.codecs.base import MAX_MAGNITUDE
from fedwsq.codecs.ecq import Ecq, finest_code
from fedwsq.codecs.ecq_model import (
    LAST_BUCKET,
    OCTAVES,
    STARTS,
    SYMBOLS,
    Model,
    index,
    read_varint,
    slots_of,
    write_counts,
)
from fedwsq.codecs.levels import cell
from fedwsq.core.errors import ConfigError, MessageError, UpdateError
from fedwsq.core.types import Key
from fedwsq.wire import Line, Link, Schema

NONE = torch.empty(0)
RATES = (0.1, 0.5, 1, 4, 8)
SHAPES = {
    "normal": lambda draw, n: draw.standard_normal(n),
    "laplace": lambda draw, n: draw.laplace(size=n),
    "student": lambda draw, n: draw.standard_t(3, n),
    "cauchy": lambda draw, n: draw.standard_cauchy(n),
}


def data(shape, numel, seed=0, scale=1.0):
    values = SHAPES[shape](np.random.default_rng(seed), numel) * scale
    return torch.from_numpy(values.astype(np.float32))


def encode(x, rate):
    """A packet that came through its own check, in the room it may take."""
    packet = Ecq().encode(x, NONE, rate, seed=0)
    assert len(packet.code) <= Ecq().max_bytes(x.numel(), rate)
    assert (packet.rate, packet.numel) == (rate, x.numel())
    Ecq().check(packet)
    return packet


def decode(packet):
    found = Ecq().decode(packet, NONE, seed=0)
    assert found.dtype == torch.float32
    assert found.shape == (packet.numel,)
    assert found.isfinite().all()
    return found


def relative_error(x, rate):
    lost = (decode(encode(x, rate)) - x).double().square().sum()
    return (lost / x.double().square().sum()).item()


# What theory allows


def uniform_thresholds(step):
    """Bits and squared error on N(0, 1) of thresholds at every (k + 1/2) step.

    The mean of each cell is its value.
    """
    cells = [cell((k - 0.5) * step, (k + 0.5) * step) for k in range(1, 1 + math.ceil(38 / step))]
    cells = [c for c in cells if c.mass > 0]
    zero = cell(-step / 2, step / 2).mass
    bits = -zero * math.log2(zero) - 2 * math.fsum(c.mass * math.log2(c.mass) for c in cells)
    return bits, 1 - 2 * math.fsum(c.moment**2 / c.mass for c in cells)


def best_error(rate):
    low = 1e-3
    high = 20.0
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if uniform_thresholds(middle)[0] > rate else (low, middle)
    return uniform_thresholds(high)[1]


EXPECTED = {0.5: 0.617, 1: 0.348, 2: 0.0889, 4: 0.00556}


@pytest.mark.parametrize(("rate", "expected"), EXPECTED.items())
def test_error_on_normal_data_is_that_of_entropy_constrained_theory(rate, expected):
    assert best_error(rate) == pytest.approx(expected, rel=2e-3)
    for numel in (36_864, 300_000):
        errors = [relative_error(data("normal", numel, seed), rate) for seed in range(3)]
        assert sum(errors) / 3 == pytest.approx(best_error(rate), rel=0.03)


@pytest.mark.parametrize("numel", [36_864, 65_536, 65_537, 500_000])
@pytest.mark.parametrize("shape", ["normal", "laplace", "student"])
def test_the_rate_is_used_and_never_passed(shape, numel):
    x = data(shape, numel, seed=numel)
    for rate in (0.5, 1, 2, 4):
        used = len(encode(x, rate).code) * 8 / numel
        assert rate - 0.02 <= used <= rate + 8 / numel


def test_more_bits_lose_less():
    x = data("student", 5000)
    errors = [relative_error(x, rate) for rate in np.geomspace(0.1, 8, 20)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-4


def test_max_bytes_by_hand():
    assert Ecq().max_bytes(1000, 0.5) == 63  # 62.5
    assert Ecq().max_bytes(1000, 8.0) == 1000
    assert [Ecq().max_bytes(numel, 1) for numel in (0, 1, 128, 129)] == [16, 16, 16, 17]


# The bytes, by a second implementation of what the module says about them


def reference_decode(packet):
    """Plain Python integers all the way to the values in steps."""
    code = packet.code
    numel = packet.numel
    last = code[0]
    negative = code[1]
    at = 2

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = code[at]
            at = at + 1
            value = value | (byte & 127) << shift
            shift = shift + 7
            if byte < 128:
                return value

    counts = []
    while len(counts) < last:
        counts.append(varint())
        if counts[-1] == 0:
            counts += [0] * varint()
    offsets = [b - 256 if b > 127 else b for b in code[at : at + min(last, 7)]]
    at += len(offsets)
    stream = code[at:]

    # The slots, out of 2^14; symbols with less than one share those of one more.
    weights = [128 * (numel - sum(counts))]
    for c in counts:
        weights += [c * (128 - negative), c * negative]
    widths = [w * 2**14 // (128 * numel) for w in weights]
    rare = [i for i, w in enumerate(weights) if w and not widths[i]]
    together = sum(weights[i] for i in rare)
    widths.append(max(together * 2**14 // (128 * numel), 1) if rare else 0)
    widths[widths.index(max(widths))] += 2**14 - sum(widths)
    apart = [0] * len(weights)
    for i in rare:
        apart[i] = weights[i] * (2**14 - len(rare)) // together + 1
    apart[apart.index(max(apart))] += 2**14 - sum(apart)

    lanes = 1
    while lanes < 1024 and lanes * 2 * 4096 <= sum(counts):
        lanes *= 2
    missing = max(4 * lanes - len(stream), len(stream) % 2)
    stream += bytes(missing)
    pairs = [stream[i : i + 2] for i in range(0, len(stream), 2)]
    words = [int.from_bytes(pair, "little") for pair in pairs]
    halves = words[len(words) - 2 * lanes :]
    words = words[: len(words) - 2 * lanes]
    states = [low + (high << 16) for low, high in zip(halves[::2], halves[1::2], strict=True)]

    def take(count, shares):
        ends = list(accumulate(shares))
        taken = []
        for i in range(count):
            state = states[i % lanes]
            slot = state % 2**14
            symbol = bisect_right(ends, slot)
            start = ends[symbol] - shares[symbol]
            state = (state // 2**14) * shares[symbol] + slot - start
            if state < 2**16 and words:
                state = state * 2**16 + words.pop()
            states[i % lanes] = state
            taken.append(symbol)
        return taken

    found = []
    for first in range(0, numel, 2**15):
        symbols = take(min(2**15, numel - first), widths)
        escaped = [i for i, symbol in enumerate(symbols) if symbol == len(weights)]
        for i, symbol in zip(escaped, take(len(escaped), apart), strict=True):
            symbols[i] = symbol
        buckets = [(symbol + 1) // 2 for symbol in symbols]
        values = [b + offsets[b - 1] / 256 if 0 < b < 8 else 0.0 for b in buckets]
        for octave in range(1, 21):
            inside = [i for i, b in enumerate(buckets) if b // 8 == octave]
            low = min(octave, 10)
            places = take(len(inside), [2 ** (14 - low)] * 2**low)
            if octave > low:
                high = take(len(inside), [2 ** (14 - octave + low)] * 2 ** (octave - low))
                places = [a + b * 2**low for a, b in zip(places, high, strict=True)]
            for i, place in zip(inside, places, strict=True):
                values[i] = float(((8 + buckets[i] % 8) << octave) - 8 + place)
        negatives = [symbol and symbol % 2 == 0 for symbol in symbols]
        found += [-v if minus else v for v, minus in zip(values, negatives, strict=True)]
    # All that was put on the stack has been taken.
    assert states == [0 if lanes == 1 else 2**16] * lanes
    assert not words
    return found


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_second_decoder_reads_the_same(shape, rate):
    for numel in (3, 40, 700, 90_001):
        packet = encode(data(shape, numel, seed=numel, scale=1e-3), rate)
        if packet.code:
            values = np.array(reference_decode(packet), np.float32) * np.float32(packet.side[0])
            assert decode(packet).tolist() == values.tolist()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rate", [0.5, 2, 8])
def test_every_value_is_its_cell_s_mean_or_middle(shape, rate):
    x = data(shape, 4000)
    packet = encode(x, rate)
    step = packet.side[0]
    k = np.rint(x.numpy() / np.float32(step))
    steps = decode(packet).double().numpy() / step
    outer = np.abs(k) >= 8
    assert steps[outer] == pytest.approx(k[outer], rel=1e-6)
    for magnitude in range(8):
        inside = np.abs(k) == magnitude
        mean = 0
        if magnitude and inside.any():
            mean = np.abs(x.double().numpy()[inside]).mean() / step
        assert np.abs(steps[inside]) == pytest.approx(mean, abs=1 / 500)
        assert (np.sign(steps[inside]) == np.sign(k[inside])).all()


def test_buckets_by_brute_force():
    k = np.unique(
        np.concatenate(
            [np.arange(3000), 2 ** np.arange(24) - 8, 2 ** np.arange(24) + 1, [2**24 - 9]]
        )
    )
    k = k[k >= 0]
    expected = [
        next(b for b in range(LAST_BUCKET + 1) if STARTS[b] <= i < STARTS[b + 1]) for i in k
    ]
    x = np.concatenate([k, -k]).astype(np.float32)
    for find in (lambda work: work(), in_numpy):
        symbols, tally = find(lambda: index(x, np.float32(1)))
        assert symbols[: len(k)].tolist() == [max(2 * b - 1, 0) for b in expected]
        assert symbols[len(k) :].tolist() == [2 * b for b in expected]
        assert tally.counts.tolist() == np.bincount(symbols, minlength=SYMBOLS).tolist()
        assert not tally.excess.any()
    assert STARTS[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14]
    assert (np.diff(STARTS) == 2 ** OCTAVES[:-1]).all()


@pytest.mark.usefixtures("at_every_size")
def test_what_is_left_of_each_index_by_hand():
    # In steps of 1/2: 1.5 is 2 and -0.5, 2.5 is 2 and 0.5, -3.25 is -3 and 0.25; in 2^-15ths.
    x = np.float32([0.75, 1.25, -1.625, 0.125])
    for find in (lambda work: work(), in_numpy):
        symbols, tally = find(lambda: index(x, np.float32(0.5)))
        assert symbols.tolist() == [3, 3, 6, 0]
        assert tally.counts[:7].tolist() == [1, 0, 0, 2, 0, 0, 1]
        assert tally.excess[:7].tolist() == [8192, 0, 0, 0, 0, 0, 8192]


def test_slots_by_hand():
    # 4 of 8, a quarter and three quarters: 1/8, 3/8; 2 of 8: 1/16, 3/16; 2 of 8: 1/4.
    slots = slots_of(Model(np.array([2, 4, 2]), 96))
    assert slots.common.tolist() == [4096, 2048, 6144, 1024, 3072, 0]
    assert slots.common_shares().starts.tolist() == [0, 4096, 6144, 12288, 13312, 16384]
    assert slots.rare_shares() is None
    # What does not occur has none.
    slots = slots_of(Model(np.array([0, 0, 0, 5]), 0))
    assert slots.common.tolist() == [0, 0, 0, 0, 0, 16384, 0, 0]


def test_rare_symbols_share_a_slot():
    # A slot is worth 64 of 2^20 elements. 48 and 3, half of them negative, are less, together too:
    # they have one, and the first symbol has the rest.
    slots = slots_of(Model(np.array([2**20 - 51, 48, 3]), 64))
    assert slots.common.tolist() == [16383, 0, 0, 0, 0, 1]
    common = slots.common_shares()
    assert common.widths.tolist() == [16383, 1, 1, 1, 1, 1]
    assert common.starts.tolist() == [0, 16383, 16383, 16383, 16383, 16383]
    assert common.owners[-2:].tolist() == [0, 5]
    # Among themselves 48 / 102 and 3 / 102 of 16384 - 4, rounded down, plus 1: 7709 and 482. The
    # first with most has what is left, 2.
    assert slots.rare.tolist() == [0, 7711, 7709, 482, 482]


@pytest.mark.parametrize(
    ("nonzero", "lanes"),
    [(1, 1), (8191, 1), (8192, 2), (16_384, 4), (2**22 - 1, 512), (2**22, 1024), (2**30, 1024)],
)
def test_lanes_by_hand(nonzero, lanes):
    assert Model(np.array([2**31, nonzero]), 64).lanes == lanes


@pytest.mark.parametrize(
    ("counts", "written"),
    [
        ([1, 127, 128], "017f8001"),
        ([0, 3], "000003"),
        ([5, 0, 0, 0, 300, 0, 2], "050002ac02000002"),
        ([2**32], "8080808010"),
    ],
)
def test_counts_by_hand(counts, written):
    assert write_counts(counts).hex() == written


@given(st.integers(0, 2**35 - 1), st.binary(max_size=3))
def test_varints_come_back(value, after):
    code = b"\x07" + (write_counts([value]) if value else b"\0") + after
    assert read_varint(code, 1) == (value, len(code) - len(after))


# Odd updates


def test_short_lengths_at_every_rate():
    for numel in (*range(65), 100, 1000):
        for rate in RATES:
            decode(encode(data("normal", numel, seed=numel, scale=1e-3), rate))


@pytest.mark.slow
def test_every_length_at_every_rate():
    for numel in range(1001):
        for rate in RATES:
            decode(encode(data("student", numel, seed=numel, scale=1e-3), rate))


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("numel", [0, 1, 7, 1000, 70_000])
def test_zeros_are_free(numel, rate):
    packet = encode(torch.zeros(numel), rate)
    assert (packet.code, packet.side) == (b"", (0.0,))
    assert decode(packet).tolist() == [0.0] * numel


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("value", [1.0, -0.0021, 1e-30, -1e19, 9.9e19])
def test_constants_are_kept_at_every_rate(value, rate):
    for numel in (1, 9, 1000, 70_000):
        # The mean of a cell is exact to 1/512 of a step; from |k| = 8 on, the middle is within half
        # a step.
        found = decode(encode(torch.full((numel,), value), rate)).double()
        assert (found / value - 1).abs().max() <= 1 / 16


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("scale", [1e-36, 1e-30, 1e19, 2.5e19])
def test_the_scale_does_not_matter(scale, rate):
    x = data("normal", 2000).clamp(-2.5, 2.5)
    expected = relative_error(x, rate)
    assert relative_error(x * scale, rate) == pytest.approx(expected, rel=0.05)


def test_no_step_is_larger_than_what_travels():
    x = data("normal", 2000)
    x *= 9.9e19 / x.abs().max()
    for rate in RATES:
        assert encode(x, rate).side[0] <= MAX_MAGNITUDE
    assert relative_error(x, 2) < 0.1


def test_where_only_zeros_fit_there_is_no_code():
    # Bucket, share, count and offset take 4 bytes at least.
    x = data("normal", 1000).numpy()
    largest = float(np.abs(x).max())
    for budget in range(16):
        found = finest_code(x, largest, budget)
        assert len(found.code) <= budget
        assert bool(found.code) == (found.step > 0)
    assert finest_code(x, largest, 3) == (0.0, b"")


def test_zero_has_no_sign():
    found = decode(encode(data("normal", 1000), 1))
    assert not found[found == 0].signbit().any()


def test_the_smallest_number_there_is():
    x = torch.tensor([1e-45, 0.0, -1e-45])
    assert decode(encode(x, 4)).tolist() == x.tolist()


@pytest.mark.parametrize("numel", [1000, 36_864, 100_000])
@pytest.mark.parametrize("rate", [0.5, 1, 4, 8])
def test_one_outlier_costs_its_own_bits_and_no_more(numel, rate):
    x = data("normal", numel)
    outlier = x[77] = -1e6 if rate < 8 else -1e5  # at 8 bits the finest index reaches 1.4e5
    packet = encode(x, rate)
    found = decode(packet)
    assert found[77].item() == pytest.approx(outlier, abs=packet.side[0])
    plain = decode(encode(data("normal", numel), rate))
    rest = torch.arange(numel) != 77
    lost, expected = ((y - x)[rest].square().mean().item() for y in (found, plain))
    assert lost < expected * (1.6 if numel == 1000 else 1.02)


def test_the_sample_may_miss_everything():
    # 1000 values that are not zero in 200,000, none of them where a stride of 1 to 60 from 0 would
    # look first
    x = torch.zeros(200_000)
    where = torch.arange(1000) * 193 + 1
    x[where] = data("normal", 1000)
    for stride in range(5, 60):
        x[::stride] = 0
    assert x.any()
    assert relative_error(x, 0.1) < 0.01


def test_sparse_updates_are_nearly_exact():
    x = torch.zeros(100_000)
    x[::97] = data("normal", len(x[::97]))
    assert relative_error(x, 1.0) < 1e-12


def test_a_sign_of_one_kind_costs_nothing():
    x = data("normal", 20_000)
    assert relative_error(x.abs(), 1.0) < 0.7 * relative_error(x, 1.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2e20])
def test_an_update_that_no_receiver_takes_is_refused(bad):
    with pytest.raises(UpdateError, match="ecq cannot code values that are not finite or above"):
        Ecq().encode(torch.tensor([0.0, bad, 1.0]), NONE, 4, seed=0)


def test_encoding_changes_nothing_and_knows_no_seed():
    x = data("student", 70_000)
    before = x.clone()
    packet = Ecq().encode(x, NONE, 1.7, seed=0)
    assert torch.equal(x, before)
    assert Ecq().encode(x.clone(), NONE, 1.7, seed=5) == packet
    turned = x.view(200, 350).t().requires_grad_()
    flat = turned.detach().reshape(-1)
    assert Ecq().encode(turned, NONE, 1.7, seed=0) == Ecq().encode(
        flat, NONE, 1.7, seed=0
    )._replace(rows=350)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("numel", [1, 7, 1000, 100_003])
def test_accumulate_is_exact_at_every_position(numel, rate):
    x = data("student", numel, scale=1e-3)
    packet = encode(x, rate)
    out = x.clone()
    Ecq().accumulate(packet, NONE, 0, out, 0.3)
    assert torch.equal(out, x + decode(packet) * 0.3)


@pytest.mark.usefixtures("at_every_size")
@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_bytes_and_values_without_kernels(shape):
    for numel in (1, 2, 63, 1000, 32_769, 70_000):
        x = data(shape, numel, seed=numel, scale=1e-3)
        for rate in (0.1, 1, 4.3, 8):
            packet = encode(x, rate)
            assert packet == in_numpy(lambda: encode(x, rate))  # noqa: B023
            assert torch.equal(decode(packet), in_numpy(lambda: decode(packet)))  # noqa: B023
            sums = torch.ones(numel)
            plain = torch.ones(numel)
            Ecq().accumulate(packet, NONE, 0, sums, -0.3)
            in_numpy(lambda: Ecq().accumulate(packet, NONE, 0, plain, -0.3))  # noqa: B023
            assert torch.equal(sums, plain)


def test_many_lanes_give_the_same_bytes_without_kernels():
    x = data("normal", 1_000_000)
    packet = encode(x, 1)
    assert packet == in_numpy(lambda: encode(x, 1))
    assert torch.equal(decode(packet), in_numpy(lambda: decode(packet)))


def test_a_sum_of_another_length_is_refused():
    packet = encode(data("normal", 100), 4)
    with pytest.raises(ValueError, match="100 elements do not fit 99"):
        Ecq().accumulate(packet, NONE, 0, torch.zeros(99), 1.0)


def test_settings():
    assert Ecq().wire_id == 13
    assert 10 not in {codec.wire_id for codec in CODECS.values()}  # the code before this one
    assert Ecq().rates == Rates.between(0.1, 8.0)
    assert not Ecq().unbiased
    assert Ecq().init(7).numel() == 0
    assert Ecq().side_values(7) == 1
    for rate in (0.09, 8.5, 0, math.nan):
        with pytest.raises(ConfigError, match=f"ecq has no {rate:g}-bit rate; it offers 0.1 to 8"):
            Ecq().encode(torch.ones(1), NONE, rate, seed=0)


def test_the_code_before_this_one_is_refused():
    line = Line(Link(Ecq(), Fixed(1), select="all"), Schema({"weight": (300,)}))
    sent = line.send({"delta": {"weight": data("normal", 300)}}, {}, Key(0, 1, 0), (1,))
    line.check(sent.packets, ("delta",), (1,))
    retired = sent.packets["delta"]["weight"]._replace(codec=10)
    with pytest.raises(MessageError, match="codec id 10, this link uses 13"):
        line.check({"delta": {"weight": retired}}, ("delta",), (1,))


# Hostile packets

SOUND = Packet(bytes([2, 64, 3, 1, 0x80, 0x7F, 0x11, 0x22]), (0.5,), 1.0, 10, own_scale=True)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"side": ()}, "an ecq packet has 1 side value, its step, not 0"),
        ({"side": (1.0, 2.0)}, "an ecq packet has 1 side value, its step, not 2"),
        ({"own_scale": False}, "decoded with its own step"),
        ({"code": b""}, "without a code has a step of 0, not 0.5"),
        ({"side": (0.0,)}, "a step of 0 and indices to 2"),
        ({"side": (-1.0,)}, "a step of -1 and indices to 2"),
        ({"side": (math.nan,)}, "a step of nan and indices to 2"),
        ({"side": (1.5e20,)}, r"a step of 1.5e\+20 and indices to 2"),
        ({"code": b"\x02"}, r"not with \[2\]"),
        ({"code": b"\x00\x40\x01"}, r"last bucket, 1 to 167, .*not with \[0, 64\]"),
        ({"code": b"\xa8\x40\x01"}, r"not with \[168, 64\]"),
        ({"code": b"\x02\x81\x01"}, r"a share of at most 128, not with \[2, 129\]"),
        ({"code": b"\x02\x40\x03"}, "a count that does not end"),
        ({"code": b"\x02\x40\x03\x81"}, "a count that does not end"),
        ({"code": b"\x02\x40\x03\x81\x00\x00\x00"}, "longer than it must be"),
        ({"code": b"\x02\x40\x03\xff\xff\xff\xff\xff\x01\x00\x00"}, "a count that does not end"),
        ({"code": b"\x02\x40\x03\x00\x00\x00\x00"}, "last bucket is empty"),
        ({"code": b"\x02\x40\x00\x01\x00\x00"}, "last bucket is empty"),
        ({"code": b"\x02\x40\x00\xff\xff\xff\xff\x7f\x01"}, "last bucket is empty"),
        ({"code": b"\x02\x40\x03\x08\x00\x00"}, "counts 11 indices that are not 0 in 10 elements"),
        ({"numel": 0}, "counts 4 indices that are not 0 in 0 elements"),
        ({"code": SOUND.code[:5]}, "ends inside its model"),
        ({"code": SOUND.code + b"\x00"}, "in a zero byte"),
    ],
)
def test_check_refuses_damaged_packets(change, text):
    Ecq().check(SOUND)
    Ecq().check(SOUND._replace(code=SOUND.code[:6]))  # an empty stream is one of zeros
    with pytest.raises(MessageError, match=text):
        Ecq().check(SOUND._replace(**change))


def survives(packet):
    """A packet that passes its check decodes to sane values."""
    try:
        Ecq().check(packet)
    except MessageError:
        return False
    found = decode(packet)
    assert found.abs().max() <= 2.01 * MAX_MAGNITUDE
    assert torch.equal(found, in_numpy(lambda: decode(packet)))
    out = torch.zeros(packet.numel)
    Ecq().accumulate(packet, NONE, 0, out, 0.5)
    assert torch.equal(out, found * 0.5)
    return True


steps = st.floats(width=32) | st.just(1.0)


@settings(max_examples=300)
@given(code=st.binary(max_size=80), step=steps, numel=st.integers(1, 300))
def test_random_bytes_are_refused_or_decoded(code, step, numel):
    survives(Packet(code, (step,), 1.0, numel, own_scale=True))


@settings(max_examples=300)
@given(
    last=st.integers(1, LAST_BUCKET),
    negative=st.integers(0, 128),
    counts=st.lists(st.integers(0, 3), max_size=LAST_BUCKET - 1),
    tail=st.binary(max_size=200),
)
def test_any_stream_behind_a_sound_model_decodes(last, negative, counts, tail):
    counts = [*(counts + [0] * last)[: last - 1], 1]
    tail = bytes(min(last, 7)) + tail + b"\x01"
    code = bytes([last, negative]) + write_counts(counts) + tail
    assert survives(Packet(code, (1.0,), 1.0, sum(counts) + 5, own_scale=True))


REAL = [encode(data(shape, 300, scale=1e-3), rate) for shape in SHAPES for rate in (0.5, 2, 8)]


@settings(max_examples=300)
@given(
    packet=st.sampled_from(REAL),
    edits=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 300),
    numel=st.integers(1, 400) | st.just(300),
)
def test_mutations_of_real_packets_are_refused_or_decoded(packet, edits, cut, numel):
    code = bytearray(packet.code)
    for at, value in edits:
        code[at % len(code)] = value
    survives(
        packet._replace(code=bytes(code[: len(code) - cut if cut < 20 else None]), numel=numel)
    )


LARGE = [encode(data(shape, 90_000, scale=1e-3), rate) for shape in SHAPES for rate in (0.5, 5)]


def test_a_code_without_its_states_is_refused():
    packet = LARGE[1]
    assert Model(np.array([0, 80_000]), 0).lanes == 16
    for kept in (200, 100):  # a model of some 50 bytes, then less than 64
        cut = packet._replace(code=packet.code[:kept] + b"\x01")
        refused = not survives(cut)
        assert refused == (kept == 100)
    with pytest.raises(MessageError, match=r"an ecq code has \d+ bytes for 16 states"):
        Ecq().check(packet._replace(code=packet.code[:99] + b"\x01"))


@pytest.mark.usefixtures("at_every_size")
@pytest.mark.parametrize("seed", range(3))
def test_large_packets_that_were_damaged_are_refused_or_decoded(seed):
    rng = np.random.default_rng(seed)
    for packet in LARGE:
        code = bytearray(packet.code)
        for at in rng.integers(0, len(code) if seed else 60, 3):
            code[at] = rng.integers(256)
        kept = int(rng.integers(len(code) // 2, len(code) + 1))
        survives(packet._replace(code=bytes(code[:kept])))
