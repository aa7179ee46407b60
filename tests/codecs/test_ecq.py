import math
from itertools import accumulate, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwsq.codecs import Packet, Rates
from fedwsq.codecs.base import MAX_MAGNITUDE
from fedwsq.codecs.ecq import (
    LAST_BUCKET,
    OCTAVES,
    STARTS,
    Ecq,
    Model,
    frequencies,
    quantize,
    read_varint,
    write_counts,
)
from fedwsq.codecs.levels import cell
from fedwsq.core.errors import ConfigError, MessageError, UpdateError

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
    stream = code[at:] + bytes(-len(code[at:]) % 4)
    words = [int.from_bytes(stream[i : i + 4], "little") for i in range(0, len(stream), 4)]

    free = 2**24 - (2 * last + 1)
    shares = [
        c * side * free // (128 * numel) + 1 for c in counts for side in (128 - negative, negative)
    ]
    shares = [2**24 - sum(shares), *shares]
    ends = list(accumulate(shares))
    state = 0

    def take(find):
        """The symbol whose range holds the state's lowest 24 bits.

        The state shrinks by what the symbol was worth.
        """
        nonlocal state
        while state < 2**32 and words:
            state = state << 32 | words.pop()
        slot = state % 2**24
        symbol, start, size = find(slot)
        state = size * (state >> 24) + slot - start
        return symbol

    def coded(slot):
        symbol = next(i for i, end in enumerate(ends) if slot < end)
        return symbol, ends[symbol] - shares[symbol], shares[symbol]

    symbols = [take(coded) for _ in range(numel)]
    buckets = [(symbol + 1) // 2 for symbol in symbols]
    values = [b + offsets[b - 1] / 256 if 0 < b < 8 else 0.0 for b in buckets]
    for octave in range(1, 21):
        width = 2 ** (24 - octave)
        for i, b in enumerate(buckets):
            if b // 8 == octave:
                inside = take(lambda slot, w=width: (slot // w, slot // w * w, w))
                values[i] = float(((8 + b % 8) << octave) - 8 + inside)
    assert state == 0  # all that was put on the stack has been taken
    assert not words
    return [
        -v if symbol and symbol % 2 == 0 else v for v, symbol in zip(values, symbols, strict=True)
    ]


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_second_decoder_reads_the_same(shape, rate):
    for numel in (3, 40, 700):
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
    for index in range(8):
        inside = np.abs(k) == index
        mean = np.abs(x.double().numpy()[inside]).mean() / step if index and inside.any() else 0
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
    symbols, counts, sums = quantize(np.concatenate([k, -k]).astype(np.float32), np.float32(1))
    assert symbols[: len(k)].tolist() == [max(2 * b - 1, 0) for b in expected]
    assert symbols[len(k) :].tolist() == [2 * b for b in expected]
    assert counts.tolist() == np.bincount(symbols, minlength=2 * LAST_BUCKET + 1).tolist()
    assert sums.sum() == 2 * k.sum()
    assert STARTS[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14]
    assert (np.diff(STARTS) == 2 ** OCTAVES[:-1]).all()


def test_frequencies_by_hand():
    # 5 symbols leave 2^24 - 5 = 16777211 to share. 4 of 8, a quarter and three quarters: 1/8, 3/8;
    # 2 of 8: 1/16, 3/16; rounded down, plus 1 each. The first takes what is left.
    model = Model(np.array([2, 4, 2]), 96)
    assert frequencies(model).tolist() == [4194305, 2097152, 6291455, 1048576, 3145728]
    assert frequencies(model).sum() == 2**24
    assert frequencies(Model(np.array([0, 0, 0, 5]), 0)).tolist() == [1, 1, 1, 1, 1, 2**24 - 6, 1]


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
    with pytest.raises(UpdateError, match="ecq cannot code an update that is not finite or above"):
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


def test_settings():
    assert Ecq().rates == Rates.between(0.1, 8.0)
    assert not Ecq().unbiased
    assert Ecq().init(7).numel() == 0
    assert Ecq().side_values(7) == 1
    for rate in (0.09, 8.5, 0, math.nan):
        with pytest.raises(ConfigError, match=f"ecq has no {rate:g}-bit rate; it offers 0.1 to 8"):
            Ecq().encode(torch.ones(1), NONE, rate, seed=0)


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
    out = torch.zeros(packet.numel)
    Ecq().accumulate(packet, NONE, 0, out, 0.5)
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


REAL = [encode(data(shape, 300, scale=1e-3), rate) for shape, rate in product(SHAPES, (0.5, 2, 8))]


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
