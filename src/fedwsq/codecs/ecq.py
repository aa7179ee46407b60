"""ECQ: a uniform quantizer whose indices are entropy-coded: any rate, and every byte is used.

An element x becomes the index k = round(x / step). Behind a scalar quantizer and an ideal entropy
coder, evenly spaced thresholds with each cell's mean as its value lose next to nothing against the
best (Gish and Pierce, 1968). The step is the finest whose code, model included, fits the rate.

Indices are coded as symbols: 0 is k = 0; 2 b - 1 and 2 b are the positive and the negative k of
bucket b. Each |k| below 8 is a bucket; from there on every octave of |k| + 8 has eight, and the
place inside the bucket, o bits in octave o, follows in the stream. The code is

    1 byte    the last bucket that occurs, 1 to 167
    1 byte    the share of negatives among the indices that are not 0, in 128ths
    varints   how many indices fall in each bucket from 1 on; a 0 is followed by how many more
              zeros there are
    bytes     for each bucket from 1 to 7: how far the mean of |x| / step is from |k|, in 256ths,
              signed
    the rest  a stack as `rans` writes it, without the zero bytes at its end

or nothing at all, with a step of 0, for a vector of zeros. A varint holds seven bits a byte, least
significant first, with the high bit set on all but the last.

The elements are on the stack in slices of 2^15, so that neither end holds more than a slice beside
the values. A slice has its symbols on top, then which ones the rare symbols are, then the places,
octave after octave. Symbols with less than one slot of the coder's 2^14 are rare: they share one,
and are told apart by slots of their own.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwsq.codecs import kernels, rans
from fedwsq.codecs.base import (
    MAX_MAGNITUDE,
    Packet,
    Stateless,
    flat_values,
    largest_magnitude,
    require_finite,
    rows_of,
)
from fedwsq.codecs.kernels import COUNT_SHIFT, INDEX_SHARES, Floats, Integers, Shares, Symbols
from fedwsq.codecs.rans import SLOTS, STATE_BYTES
from fedwsq.codecs.rates import Rates
from fedwsq.core.errors import MessageError
from fedwsq.core.types import Rate

MIN_BYTES = 16  # what the smallest tensors may take: room for a model
FINEST = 2**23  # the largest |k| that is sent: a float32 has no finer steps below its largest value
OWN_BUCKET = 8  # |k| below this has a bucket of its own
SIGN_SHARES = 128
OFFSET_SHARES = 256
SLICE = 2**15  # elements that are coded at a time: part of the format
# A state costs about 3 bytes, and so many indices that are not 0 some two thousand.
INDICES_PER_LANE = 4096
MAX_LANES = 1024
PLACE_BITS = 10  # of a place go on the stack at once
SAMPLE = 2**17  # elements on which the step is searched for, at most
ATTEMPTS = 3  # at a code that fits closely
CLOSE = 1024  # a code that leaves less than one part in so many of its budget is good enough

# Bucket b holds the eighth b % 8 of octave b // 8, counted from |k| + 8 = 8 on.
_BUCKETS = np.arange(8 * 21 + 1)
OCTAVES = _BUCKETS // 8
# The smallest |k| of each bucket; the last one is past the end.
STARTS = ((8 + _BUCKETS % 8) << OCTAVES) - 8
LAST_BUCKET = len(_BUCKETS) - 2
SYMBOLS = kernels.INDEX_SYMBOLS
FIRST_SHARED = 2 * OWN_BUCKET - 1  # the first symbol that more than one |k| has


@dataclass(frozen=True)
class Ecq(Stateless):
    """Entropy-coded quantization: the finest uniform step that fits the rate.

    Nothing is shared: step and model travel with each packet. A tensor's code is never longer than
    its elements times the rate, or 16 bytes. Biased: what is near 0 becomes 0.
    """

    wire_id = 13  # 10 was a code of the same name by another coder
    rates = Rates.between(0.1, 8.0)

    def encode(self, x: Tensor, shared: Tensor, rate: Rate, seed: int) -> Packet:
        self.rates.require(rate, "ecq")
        values = flat_values(x)
        largest = largest_magnitude(values)
        require_finite(largest, "ecq")
        step, code = finest_code(values, largest, self.max_bytes(len(values), rate))
        return Packet(code, (step,), rate, len(values), own_scale=True, rows=rows_of(x.shape))

    def check(self, packet: Packet) -> None:
        """Read the model; any stream behind a sound one decodes to values it allows."""
        if len(packet.side) != 1:
            raise MessageError(f"an ecq packet has 1 side value, its step, not {len(packet.side)}")
        if not packet.own_scale:
            raise MessageError("an ecq packet is decoded with its own step; its flag is missing")

        (step,) = packet.side
        if not packet.code:
            if step != 0:
                raise MessageError(f"an ecq packet without a code has a step of 0, not {step:g}")
            return
        buckets = len(read_code(packet.code, packet.numel).model.counts)
        largest = int(STARTS[buckets]) - 1
        # Rounding at most doubles a value, and a bucket ends at most an eighth above it.
        if not 0 < step * largest <= 2 * MAX_MAGNITUDE:  # NaN fails too
            raise MessageError(
                f"an ecq packet has a step of {step:g} and indices to {largest}: "
                "no real update has both"
            )

    def decode(self, packet: Packet, shared: Tensor, seed: int) -> Tensor:
        """The mean of each index's cell, or its middle from |k| = 8 on."""
        out = torch.empty(packet.numel)
        if not packet.code:
            return out.zero_()
        add_values(packet, 1.0, out.numpy(), add=False)
        return out

    def accumulate(
        self, packet: Packet, shared: Tensor, seed: int, out: Tensor, weight: float
    ) -> None:
        if packet.code and out.device.type == "cpu":
            add_values(packet, weight, out.numpy(), add=True)
        else:
            super().accumulate(packet, shared, seed, out, weight)

    def max_bytes(self, numel: int, rate: Rate) -> int:
        """The rate itself; 16 bytes for tensors that are too small for it."""
        return max(math.ceil(numel * rate / 8), MIN_BYTES)

    def side_values(self, numel: int, rows: int = 1) -> int:
        """The step."""
        return 1


# The search for the step


class Tally(NamedTuple):
    """What there is to know of the indices that a step gives."""

    counts: Integers  # how often each symbol occurs
    excess: Integers  # the sum of |x| / step - |k| over each, in 2^-15ths


class Found(NamedTuple):
    """A step, and the code that it gives."""

    step: float
    code: bytes


ZEROS = Found(0.0, b"")


class Guess(NamedTuple):
    """Where to look for a step first."""

    at: int  # its bits, see `bits_of`
    slope: float  # how many of them make the code a byte shorter


class Trial(NamedTuple):
    """A step that was tried."""

    at: int
    step: np.float32
    tally: Tally
    size: int  # bytes that its code takes, as far as the tally tells


class Search(NamedTuple):
    """What to find the finest step for."""

    values: Floats
    stride: int  # they are every so many-th of a vector, so their stream counts so many times
    largest: float  # max|x| of the vector
    budget: int  # bytes that its code may take

    def attempt(self, at: int) -> Trial:
        step = np.int32(at).view(np.float32)
        tally = tally_of(self.values, step)
        return Trial(at, step, tally, expected_bytes(tally, self.stride))


def finest_code(values: Floats, largest: float, budget: int) -> Found:
    """The finest step whose code has at most `budget` bytes; `ZEROS` when all would be zeros."""
    if largest == 0:
        return ZEROS
    stride = sample_stride(len(values))
    sample = np.ascontiguousarray(values[::stride])
    guess = first_guess(sample, len(values), budget)
    if stride > 1:
        _, guess = search_step(Search(sample, stride, largest, budget), guess, rounds=12)

    # What a tally cannot tell, a few bytes, is known once there is a code: then the search is for
    # a little more or less `room` than the budget.
    best = ZEROS
    room = budget
    attempt = 0
    while True:
        attempt += 1
        trial, guess = search_step(Search(values, 1, largest, room), guess, rounds=12 // attempt)
        if trial is None or not trial.size:  # nothing fits but zeros
            return best
        code = write_code(values, trial)
        spare = budget - len(code)
        if spare >= 0 and (best is ZEROS or trial.step < best.step):
            best = Found(float(trial.step), code)
        # Good enough, or tried often enough; without any code that fits it goes on.
        if best is not ZEROS and (attempt >= ATTEMPTS or 0 <= spare <= budget // CLOSE):
            return best
        corrected = budget - (len(code) - trial.size)
        if spare < 0:
            corrected = min(corrected, room - 1)  # so that it ends
        if corrected == room:
            return best
        room = corrected


def sample_stride(count: int) -> int:
    """Every so many-th of `count` elements is enough to start a search with."""
    if count <= SAMPLE:
        return 1
    # Without the factors 2 and 3, of which kernels and channels are made.
    return 6 * math.ceil(count / SAMPLE / 6) + 1


def first_guess(sample: Floats, count: int, budget: int) -> Guess:
    """Where the step of `count` normal elements lies at this many bytes.

    The entropy of N(0, s^2), log2(sqrt(2 pi e) s), less log2(step) is the rate, if it is high; s is
    from mean|x|. An octave of steps, 2^23 in the bits of float32, saves about one bit an element.
    """
    spread = math.sqrt(math.pi / 2) * float(np.abs(sample).mean(dtype=np.float64))
    step = math.sqrt(2 * math.pi * math.e) * spread / 2 ** (8 * budget / count)
    return Guess(bits_of(step), 2**23 * 8 / count)


@dataclass
class Bracket:
    """Two steps, as bits of float32, between which the finest that fits the budget lies."""

    low: int  # too fine
    high: int  # fits
    # The bytes to spare at either end, negative at `low`; None until it was tried.
    low_spare: float | None = None
    high_spare: float | None = None
    fitted: bool | None = None  # whether the last trial between two known ends did

    def move_end(self, at: int, spare: int) -> None:
        """A step was tried: it is the new end on its side."""
        if spare >= 0:
            self.high = at
            self.high_spare = spare
        else:
            self.low = at
            self.low_spare = spare

    def between(self, wanted: float, fits: bool) -> int | None:
        """Where `wanted` bytes are to spare on a straight line; None until both ends were tried.

        `fits` is what the last trial did: where the same end moves twice, the other counts for half
        (the Illinois way), or it would stay for ever.
        """
        if self.low_spare is None or self.high_spare is None:
            return None
        if fits == self.fitted:
            if fits:
                self.low_spare /= 2
            else:
                self.high_spare /= 2
        self.fitted = fits
        share = (self.high - self.low) * (wanted - self.low_spare)
        return self.low + int(share / (self.high_spare - self.low_spare))


def search_step(search: Search, guess: Guess, rounds: int) -> tuple[Trial | None, Guess]:
    """The finest step whose code fits the budget, as close as `rounds` trials come.

    It is looked for among the bits of float32, which are the logarithm near enough: by moves from
    the guess that double until there is a step on either side of the best, then by false position,
    the Illinois way (Dowell, Jarratt, 1971). With it comes what the next search may start from.
    """
    budget = search.budget
    wanted = budget / CLOSE / 2
    # From twice the largest value on, everything is 0.
    finest = max(bits_of(search.largest / FINEST), 1) - 1
    coarsest = bits_of(min(2 * search.largest, MAX_MAGNITUDE))
    bracket = Bracket(finest, coarsest)
    best: Trial | None = None  # the finest that fits
    finer: Trial | None = None  # the coarsest that does not
    at, slope = guess
    trial = 0
    while bracket.high - bracket.low > 1:
        trial += 1
        at = min(max(at, bracket.low + 1), bracket.high - 1)
        tried = search.attempt(at)
        spare = budget - tried.size
        fits = spare >= 0
        bracket.move_end(at, spare)
        if fits:
            best = tried
        else:
            finer = tried

        close = 0 <= spare <= budget // CLOSE
        if best and (close or trial >= rounds):
            break
        inside = bracket.between(wanted, fits)
        if inside is None:
            at -= int(2 ** (trial - 1) * slope * (spare - wanted))
        else:
            at = inside

    if best and finer and finer.size > best.size:
        slope = (best.at - finer.at) / (finer.size - best.size)
    return best, Guess(best.at if best else at, slope)


def bits_of(x: float) -> int:
    """The bits of a float32 as an integer: in the same order for all that are positive."""
    return int(np.float32(x).view(np.int32))


# Symbols


def index(values: Floats, step: np.float32) -> tuple[Symbols, Tally]:
    """The symbols of round(values / step), for at most 2^16 values, and what they add up to."""
    symbols = np.empty(len(values), np.uint16)
    if kernels.usable(len(values)):
        # Counts and sums in one number each: half the additions.
        tallies = np.zeros(SYMBOLS, np.int64)
        kernels.index(values, step, symbols, tallies)
        counts = (tallies + 2 ** (COUNT_SHIFT - 1)) >> COUNT_SHIFT
        return symbols, Tally(counts, tallies - (counts << COUNT_SHIFT))

    ratios = np.abs(values) / step
    k = np.rint(ratios)
    # The bucket is in the leading bits of |k| + 8; then twice that, one less if positive.
    found = (k + np.float32(8)).view(np.int32)
    found >>= kernels.INDEX_SHIFT
    found -= kernels.INDEX_FIRST
    found *= 2
    found -= values > 0
    symbols[:] = np.maximum(found, 0, out=found)  # a small positive one is 0 too
    excess = np.trunc((ratios - k) * np.float32(INDEX_SHARES))
    sums = np.bincount(found, excess, SYMBOLS)  # whole numbers, so that no order matters
    return symbols, Tally(np.bincount(found, minlength=SYMBOLS), sums.astype(np.int64))


def tally_of(values: Floats, step: np.float32) -> Tally:
    """What the symbols of any number of values add up to."""
    counts = np.zeros(SYMBOLS, np.int64)
    excess = np.zeros(SYMBOLS, np.int64)
    for start in range(0, len(values), 2 * SLICE):
        _, tally = index(values[start : start + 2 * SLICE], step)
        counts += tally.counts
        excess += tally.excess
    return Tally(counts, excess)


# The model


class Model(NamedTuple):
    """What both ends know before the first symbol."""

    counts: Integers  # how many indices fall in each bucket, to the last that occurs
    negative: int  # the share of negative ones among those that are not 0, in 128ths

    @property
    def lanes(self) -> int:
        """How many states code the symbols: a power of two."""
        nonzero = int(self.counts[1:].sum())
        fitting = max(nonzero // INDICES_PER_LANE, 1)
        return min(1 << fitting.bit_length() - 1, MAX_LANES)


class Slots(NamedTuple):
    """How the coder's slots are shared out."""

    common: Integers  # of each symbol, and of one more that stands for all rare ones
    rare: Integers  # of each rare symbol, to tell them apart; 0 for all others

    @property
    def is_rare(self) -> NDArray[np.bool_]:
        return self.rare > 0

    def common_shares(self) -> Shares:
        """The rare symbols are pushed as the last one."""
        shares = rans.shares_of(self.common)
        stand_in = np.append(self.is_rare, False)
        widths = np.where(stand_in, self.common[-1], self.common)
        starts = np.where(stand_in, shares.starts[-1], shares.starts)
        return Shares(self.common, widths, starts)

    def rare_shares(self) -> Shares | None:
        """None if no symbol is rare."""
        if not self.common[-1]:
            return None
        return rans.shares_of(self.rare)


def model_of(tally: Tally) -> Model | None:
    """What to send of a tally; None when all indices are 0."""
    signs = tally.counts[1:].reshape(-1, 2)  # [buckets, positive and negative]
    each = signs.sum(1)
    present = np.flatnonzero(each)
    if not len(present):
        return None
    buckets = np.concatenate([tally.counts[:1], each[: present[-1] + 1]])
    positive, negative = signs.sum(0).tolist()
    return Model(buckets, negative_share(positive, negative))


def slots_of(model: Model) -> Slots:
    """2^14 slots shared out among the symbols as the counts say; none for what does not occur.

    All in integers, so that both ends find the same.
    """
    shares_of_signs = [SIGN_SHARES - model.negative, model.negative]
    weights = np.outer(model.counts, shares_of_signs).reshape(-1)[1:]
    weights[0] = SIGN_SHARES * model.counts[0]
    total = int(weights.sum())
    common = weights * SLOTS // total  # int64 has room for 2^32 elements
    is_rare = (weights > 0) & (common == 0)
    together = int(weights[is_rare].sum())
    if not together:
        return Slots(with_rest(np.append(common, 0)), np.zeros_like(weights))

    stand_in = max(together * SLOTS // total, 1)
    free = SLOTS - int(is_rare.sum())
    rare = np.where(is_rare, weights * free // together + 1, 0)
    return Slots(with_rest(np.append(common, stand_in)), with_rest(rare))


def with_rest(slots: Integers) -> Integers:
    """Those that are left go to the first symbol with most, which they change least."""
    slots[slots.argmax()] += SLOTS - slots.sum()
    return slots


def expected_bytes(tally: Tally, stride: int) -> int:
    """How long the code of such symbols is, if every one stands for `stride`; 0 for zeros."""
    model = model_of(tally)
    if model is None:
        return 0
    slots = slots_of(model)
    prices = rans.costs()[slots.common[:-1]] + rans.costs()[slots.rare]
    prices[slots.is_rare] += rans.costs()[slots.common[-1]]
    occurring = tally.counts[: len(prices)]
    places = int(model.counts @ OCTAVES[: len(model.counts)])
    bits = int(occurring @ prices) // rans.COST_UNIT + places
    whole = Model(model.counts * stride, model.negative)
    stream = stride * bits // 8 + rans.expected_overhead(whole.lanes)
    offsets = min(len(model.counts), OWN_BUCKET) - 1
    return len(write_model(whole)) + offsets + stream


# The code


class Parts(NamedTuple):
    """A code, read."""

    model: Model
    offsets: NDArray[np.int8]  # what to add to |k| in each bucket below 8, from 1 on, in 256ths
    stream: bytes


def write_code(values: Floats, trial: Trial) -> bytes:
    """The model and the stream of round(values / step); nothing when all are 0."""
    model = model_of(trial.tally)
    if model is None:
        return b""
    slots = slots_of(model)
    common = slots.common_shares()
    rare = slots.rare_shares()
    # The first symbol of which its slots do not tell all.
    first_late = FIRST_SHARED
    if rare:
        first_late = min(int(slots.is_rare.argmax()), FIRST_SHARED)
    writer = rans.Writer(model.lanes)
    # A stack: what is read last goes in first.
    for start in reversed(range(0, len(values), SLICE)):
        x = values[start : start + SLICE]
        symbols, _ = index(x, trial.step)
        late = late_symbols(symbols, first_late)
        k = np.rint(np.abs(x[late]) / trial.step).astype(np.int64)
        for octave, chosen in reversed(by_octave(symbols[late])):
            push_places(writer, k[chosen] + 8 & (1 << octave) - 1, octave)
        if rare:
            late = late[slots.is_rare[symbols[late]]]
            writer.push(symbols[late], rare)
        writer.push(symbols, common)
    offsets = mean_offsets(model, trial.tally)
    return write_model(model) + offsets.tobytes() + writer.code()


def add_values(packet: Packet, weight: float, out: Floats, add: bool) -> None:
    """Write the value of each index, times `weight`, into `out`, or add it."""
    if len(out) != packet.numel:
        raise ValueError(f"{packet.numel} elements do not fit {len(out)}")
    parts = read_code(packet.code, packet.numel)
    slots = slots_of(parts.model)
    common = slots.common_shares()
    rare = slots.rare_shares()
    escape = len(slots.rare)  # the symbol that stands for the rare ones
    reader = rans.Reader(parts.stream, parts.model.lanes)
    step = np.float32(packet.side[0])
    in_steps = symbol_values(parts)
    values = in_steps * step * np.float32(weight)
    values[FIRST_SHARED:] = 0  # these depend on their places
    for start in range(0, len(out), SLICE):
        y = out[start : start + SLICE]
        symbols = reader.pop(len(y), common)
        late = late_symbols(symbols, min(escape, FIRST_SHARED))
        if rare:
            escaped = late[symbols[late] == escape]
            symbols[escaped] = reader.pop(len(escaped), rare)
        look_up(symbols, values, y, add)
        for octave, chosen in by_octave(symbols[late]):
            where = late[chosen]
            found = in_steps[symbols[where]]
            places = pop_places(reader, len(where), octave).astype(np.float32)
            found += np.copysign(places, found)
            y[where] += found * step * np.float32(weight)


def symbol_values(parts: Parts) -> Floats:
    """What each symbol stands for, in steps: the first |k| of its bucket, or the mean of one."""
    table = STARTS[: len(parts.model.counts)].astype(np.float32)
    offsets = parts.offsets.astype(np.float32)
    table[1 : len(offsets) + 1] += offsets / np.float32(OFFSET_SHARES)
    signed: Floats = np.stack([table, -table], 1).reshape(-1)[1:]
    signed[0] = 0  # not -0
    return signed


def look_up(symbols: Symbols, values: Floats, out: Floats, add: bool) -> None:
    """Write the value of each symbol into `out`, or add it."""
    if kernels.usable(len(symbols)):
        kernels.spread(symbols, values, out, add)
    elif add:
        out += values.take(symbols)
    else:
        values.take(symbols, out=out)


def late_symbols(symbols: Symbols, first: int) -> Integers:
    """Where the symbols are that do not come before `first`: mostly few."""
    if kernels.usable(len(symbols)):
        return kernels.late(symbols, first)
    return np.flatnonzero(symbols >= first)


def by_octave(symbols: Symbols) -> list[tuple[int, Integers]]:
    """Which of the symbols share their bucket, for each octave that has any."""
    octaves = OCTAVES[(symbols + 1) // 2]
    found = []
    for octave in range(1, int(octaves.max(initial=0)) + 1):
        chosen = np.flatnonzero(octaves == octave)
        if len(chosen):
            found.append((octave, chosen))
    return found


def push_places(writer: rans.Writer, places: Integers, bits: int) -> None:
    """Plain bits; of many, the lowest ten are on top."""
    low = min(bits, PLACE_BITS)
    if bits > low:
        writer.push((places >> low).astype(np.uint16), rans.even_shares(bits - low))
    lowest = places & (1 << low) - 1
    writer.push(lowest.astype(np.uint16), rans.even_shares(low))


def pop_places(reader: rans.Reader, count: int, bits: int) -> Integers:
    low = min(bits, PLACE_BITS)
    places = reader.pop(count, rans.even_shares(low)).astype(np.int64)
    if bits > low:
        places |= reader.pop(count, rans.even_shares(bits - low)).astype(np.int64) << low
    return places


def write_model(model: Model) -> bytes:
    """What a code begins with."""
    used = len(model.counts) - 1
    head = bytes([used, model.negative])
    return head + write_counts(model.counts[1:].tolist())


def mean_offsets(model: Model, tally: Tally) -> NDArray[np.int8]:
    """How far the mean of |x| / step is from |k|, in 256ths, where a bucket is a single |k|."""
    inner = model.counts[1:OWN_BUCKET]
    excess = tally.excess[1:].reshape(-1, 2).sum(1)[: len(inner)]
    away = excess / (np.maximum(inner, 1) * (INDEX_SHARES // OFFSET_SHARES))
    offsets: NDArray[np.int8] = np.rint(away).clip(-128, 127).astype(np.int8)
    return offsets


def negative_share(positive: int, negative: int) -> int:
    """The share of negatives in 128ths; all or nothing only where it is."""
    both = positive + negative
    share = (SIGN_SHARES * negative + both // 2) // both
    return min(max(share, int(negative > 0)), SIGN_SHARES - int(positive > 0))


def write_counts(counts: Sequence[int]) -> bytes:
    """Varints; a run of zeros is a 0 and how many more follow."""
    written = bytearray()
    for zero, run in itertools.groupby(counts, key=lambda count: count == 0):
        values = list(run)
        if zero:
            values = [0, len(values) - 1]
        for value in values:
            while value > 127:
                written.append(value & 127 | 128)
                value >>= 7
            written.append(value)
    return bytes(written)


def read_code(code: bytes, numel: int) -> Parts:
    """The parts of a code that is not empty, or `MessageError`."""
    if len(code) < 2 or not 1 <= code[0] <= LAST_BUCKET or code[1] > SIGN_SHARES:
        raise MessageError(
            f"an ecq code starts with its last bucket, 1 to {LAST_BUCKET}, "
            f"and a share of at most {SIGN_SHARES}, not with {list(code[:2])}"
        )
    used = code[0]
    negative = code[1]
    counts, at = read_counts(code, 2, used)
    # What is in no other bucket is 0.
    rest = numel - sum(counts)
    if rest < 0:
        raise MessageError(
            f"an ecq code counts {numel - rest} indices that are not 0 in {numel} elements"
        )

    end = at + min(used, OWN_BUCKET - 1)
    if end > len(code) or (end < len(code) and code[-1] == 0):
        raise MessageError("an ecq code ends inside its model or in a zero byte")
    offsets = np.frombuffer(code[at:end], np.int8)
    model = Model(np.array([rest, *counts]), negative)
    # A single state may be as short as it is; of several only the last may lack its zero bytes.
    if model.lanes > 1 and len(code) - end <= STATE_BYTES * (model.lanes - 1):
        raise MessageError(f"an ecq code has {len(code) - end} bytes for {model.lanes} states")
    return Parts(model, offsets, code[end:])


def read_counts(code: bytes, at: int, used: int) -> tuple[list[int], int]:
    """How many indices fall in each bucket from 1 to `used`, and where the counts end."""
    counts: list[int] = []
    while len(counts) < used:
        value, at = read_varint(code, at)
        counts.append(value)
        if value == 0:
            more, at = read_varint(code, at)
            if more >= used - len(counts):
                raise MessageError("an ecq code's last bucket is empty")
            counts += [0] * more
    return counts, at


def read_varint(code: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, below 2^35 and in as few bytes as it takes, and where the next starts."""
    value = 0
    for i, byte in enumerate(code[at : at + 5]):
        value |= (byte & 127) << 7 * i
        if byte < 128:
            if byte == 0 and i > 0:
                break
            return value, at + i + 1
    raise MessageError("an ecq code holds a count that does not end, or is longer than it must be")
