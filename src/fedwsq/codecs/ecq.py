"""ECQ: a uniform quantizer whose indices are entropy-coded: any rate, and every byte is used.

An element x becomes the index k = round(x / step). Behind a scalar quantizer and an ideal entropy
coder, evenly spaced thresholds with each cell's mean as its value lose next to nothing against the
best (Gish and Pierce, 1968). The step is the finest whose code, model included, fits the rate.

Indices are coded as symbols: 0 is k = 0; 2 b - 1 and 2 b are the positive and the negative k of
bucket b. Each |k| below 8 is a bucket; from there on every octave of |k| + 8 has eight, and the
place inside the bucket, o bits in octave o, follows in the stream, octave after octave, once all
symbols are through. The code is

    1 byte    the last bucket that occurs, 1 to 167
    1 byte    the share of negatives among the indices that are not 0, in 128ths
    varints   how many indices fall in each bucket from 1 on; a 0 is followed by how many more
              zeros there are
    bytes     for each bucket from 1 to 7: how far the mean of |x| / step is from |k|, in 256ths,
              signed
    the rest  an ANS stream (Duda, 2013): little-endian 32-bit words, without the zero bytes at its
              end

or nothing at all, with a step of 0, for a vector of zeros. A varint holds seven bits a byte, least
significant first, with the high bit set on all but the last.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import constriction
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwsq.codecs.base import MAX_MAGNITUDE, Packet, Stateless, finite_values, rows_of
from fedwsq.codecs.kernels import Doubles, Floats
from fedwsq.codecs.rates import Rates
from fedwsq.core.errors import MessageError
from fedwsq.core.types import Rate

Integers = NDArray[np.int64]
Symbols = NDArray[np.int32]

MIN_BYTES = 16  # what the smallest tensors may take: room for a model
FINEST = 2**23  # the largest |k| that is sent: a float32 has no finer steps below its largest value
OWN_BUCKET = 8  # |k| below this has a bucket of its own
PRECISION = 24  # bits of a symbol's probability
SIGN_SHARES = 128
OFFSET_SHARES = 256
SAMPLE = 2**16  # elements on which the step is searched for, at most
CHUNK = 2**14  # elements that are quantized at a time: what stays in the cache
CLOSE = 1024  # a code that leaves less than one part in so many of its budget is good enough

# Bucket b holds the eighth b % 8 of octave b // 8, counted from |k| + 8 = 8 on: just the exponent
# and the first three mantissa bits of |k| + 8 as a float32, which holds all of it exactly below
# 2^24.
_BUCKETS = np.arange(8 * (PRECISION - 3) + 1)
OCTAVES = _BUCKETS // 8
# The smallest |k| of each bucket; the last one is past the end.
STARTS = ((8 + _BUCKETS % 8) << OCTAVES) - 8
LAST_BUCKET = len(_BUCKETS) - 2
_MANTISSA_SHIFT = 20
_FIRST_BUCKET = int(np.float32(8).view(np.int32)) >> _MANTISSA_SHIFT


@dataclass(frozen=True)
class Ecq(Stateless):
    """Entropy-coded quantization: the finest uniform step that fits the rate.

    Nothing is shared: step and model travel with each packet. A tensor's code is never longer than
    its elements times the rate, or 16 bytes. Biased: what is near 0 becomes 0.
    """

    wire_id = 10
    rates = Rates.between(0.1, 8.0)

    def encode(self, x: Tensor, shared: Tensor, rate: Rate, seed: int) -> Packet:
        self.rates.require(rate, "ecq")
        values = finite_values(x, "ecq")
        step, code = finest_code(values, self.max_bytes(len(values), rate))
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
        if not packet.code:
            return torch.zeros(packet.numel)
        found = decode_indices(read_code(packet.code, packet.numel), packet.numel)
        found *= np.float32(packet.side[0])
        return torch.from_numpy(found)

    def max_bytes(self, numel: int, rate: Rate) -> int:
        """The rate itself; 16 bytes for tensors that are too small for it."""
        return max(math.ceil(numel * rate / 8), MIN_BYTES)

    def side_values(self, numel: int, rows: int = 1) -> int:
        """The step."""
        return 1


# The search for the step


class Found(NamedTuple):
    """A step, and the code that it gives."""

    step: float
    code: bytes


ZEROS = Found(0.0, b"")


class Search(NamedTuple):
    """What to find the finest step for."""

    values: Floats
    stride: int  # they are every so many-th of a vector, so their stream counts so many times
    largest: float  # max|x| of the vector
    budget: int  # bytes that its code may take


def finest_code(values: Floats, budget: int) -> Found:
    """The finest step whose code has at most `budget` bytes; `ZEROS` when all would be zeros."""
    largest = float(np.abs(values).max(initial=0))
    if largest == 0:
        return ZEROS
    stride = 1
    if len(values) > SAMPLE:
        # Without the factors 2 and 3, of which kernels and channels are made.
        stride = 6 * math.ceil(len(values) / SAMPLE / 6) + 1
    sample = values[::stride]

    # The entropy of N(0, s^2), log2(sqrt(2 pi e) s), less log2(step) is the rate, if it is high; s
    # is from mean|x|.
    spread = math.sqrt(math.pi / 2) * float(np.abs(sample).mean(dtype=np.float64))
    guess = math.sqrt(2 * math.pi * math.e) * spread / 2 ** (8 * budget / len(values))
    found = search_step(Search(sample, stride, largest, budget), guess, rounds=12)
    if stride > 1:
        found = search_step(Search(values, 1, largest, budget), found.step or guess, rounds=4)
    return found if found.code else ZEROS


def search_step(search: Search, guess: float, rounds: int) -> Found:
    """The finest step whose code fits the budget, as close as `rounds` trials come.

    It is looked for among the bits of float32, which are the logarithm near enough: by moves from
    the guess that double until there is a step on either side of the best, then by false position,
    the Illinois way (Dowell, Jarratt, 1971).
    """
    values, stride, largest, budget = search
    # `low` is too fine and `high` fits. From twice the largest value on, everything is 0.
    low = max(bits_of(largest / FINEST), 1) - 1
    high = bits_of(min(2 * largest, MAX_MAGNITUDE))
    # The bytes to spare at either end, negative at `low`; None until it was tried.
    low_spare: float | None = None
    high_spare: float | None = None
    best = ZEROS
    fitted: bool | None = None  # whether the last trial between two known ends did
    trial = 0
    at = bits_of(guess)
    while high - low > 1:
        at = min(max(at, low + 1), high - 1)
        trial += 1
        step = np.int32(at).view(np.float32)
        head, stream = encode_indices(values, step)
        spare = budget - len(head) - len(stream) * stride
        fits = spare >= 0
        if fits:
            high = at
            high_spare = spare
            best = Found(float(step), head + stream)
        else:
            low = at
            low_spare = spare

        close = 0 <= spare <= budget // CLOSE
        if high_spare is not None and (close or trial >= rounds):
            break
        if low_spare is None or high_spare is None:
            # An octave of steps saves about one bit an element.
            at -= int(2**trial * 2**23 * spare * 8 / (len(values) * stride))
            continue
        if fits == fitted:  # the other end has stayed twice: let it count for less
            if fits:
                low_spare /= 2
            else:
                high_spare /= 2
        fitted = fits
        wanted = budget / CLOSE / 2
        at = low + int((high - low) * (wanted - low_spare) / (high_spare - low_spare))
    return best


def bits_of(x: float) -> int:
    """The bits of a float32 as an integer: in the same order for all that are positive."""
    return int(np.float32(x).view(np.int32))


# The code


class Model(NamedTuple):
    """What both ends know before the first symbol."""

    counts: Integers  # how many indices fall in each bucket, to the last that occurs
    negative: int  # the share of negative ones among those that are not 0, in 128ths


class Parts(NamedTuple):
    """A code, read."""

    model: Model
    offsets: NDArray[np.int8]  # what to add to |k| in each bucket below 8, from 1 on, in 256ths
    words: NDArray[np.uint32]


class Indexed(NamedTuple):
    """What became of some values."""

    symbols: Symbols  # one for each
    counts: Integers  # how often each symbol occurs
    sums: Doubles  # of |x| / step over each symbol


def encode_indices(values: Floats, step: np.float32) -> tuple[bytes, bytes]:
    """The model and the stream of round(values / step); nothing when all are 0."""
    symbols, counts, sums = quantize(values, step)
    used = 0  # the last bucket that occurs; both of its symbols count
    if len(values):
        used = int(np.flatnonzero(counts)[-1] + 1) // 2
    if not used:
        return b"", b""

    signs = counts[1:].reshape(-1, 2)  # [buckets, positive and negative]
    buckets = np.concatenate([counts[:1], signs.sum(1)[:used]])
    positive, negative = signs.sum(0).tolist()
    model = Model(buckets, negative_share(positive, negative))
    offsets = mean_offsets(buckets, sums[1:].reshape(-1, 2).sum(1))

    coder = constriction.stream.stack.AnsCoder()  # a stack: what is decoded last goes in first
    for octave, where in reversed(by_octave(symbols, model)):
        index = np.rint(np.abs(values[where]) / step).astype(np.int32)
        inside = index + 8 & (1 << octave) - 1
        coder.encode_reverse(inside, constriction.stream.model.Uniform(1 << octave))
    coder.encode_reverse(symbols, symbol_model(model))
    stream = coder.get_compressed().astype("<u4").tobytes().rstrip(b"\0")

    head = bytes([used, model.negative])
    return head + write_counts(buckets[1:].tolist()) + offsets.tobytes(), stream


def mean_offsets(buckets: Integers, sums: Doubles) -> NDArray[np.int8]:
    """How far the mean of |x| / step is from |k|, in 256ths, where a bucket is a single |k|.

    `sums` are those of the buckets from 1 on.
    """
    inner = buckets[1:OWN_BUCKET]
    means = sums[: len(inner)] / np.maximum(inner, 1)
    away = (means - STARTS[1 : len(inner) + 1]) * OFFSET_SHARES
    offsets: NDArray[np.int8] = np.rint(away).clip(-128, 127).astype(np.int8)
    offsets[inner == 0] = 0
    return offsets


def quantize(values: Floats, step: np.float32) -> Indexed:
    """The symbols of round(values / step), and what there is to know of each."""
    size = 2 * LAST_BUCKET + 1
    symbols = np.empty(len(values), np.int32)
    counts = np.zeros(size, np.int64)
    sums = np.zeros(size)
    for start in range(0, len(values), CHUNK):
        chunk = slice(start, start + CHUNK)
        x = values[chunk]
        ratios = np.abs(x) / step
        # The bucket is in the leading bits of |k| + 8; then twice that, one less if positive.
        found = (np.rint(ratios) + np.float32(8)).view(np.int32)
        found >>= _MANTISSA_SHIFT
        found -= _FIRST_BUCKET
        found *= 2
        found -= x > 0
        part = np.maximum(found, 0, out=symbols[chunk])  # a small positive one is 0 too
        counts += np.bincount(part, minlength=size)
        sums += np.bincount(part, ratios, size)
    return Indexed(symbols, counts, sums)


def decode_indices(parts: Parts, numel: int) -> Floats:
    """The value of each index in steps."""
    model, offsets, words = parts
    coder = constriction.stream.stack.AnsCoder(words)
    symbols = coder.decode(symbol_model(model), numel)

    # What each symbol stands for: the first |k| of its bucket, or the mean of its own.
    table = STARTS[: len(model.counts)].astype(np.float32)
    table[1 : len(offsets) + 1] += offsets.astype(np.float32) / np.float32(OFFSET_SHARES)
    signed = np.stack([table, -table], 1).reshape(-1)[1:]
    signed[0] = 0  # not -0
    found: Floats = signed.take(symbols)
    for octave, where in by_octave(symbols, model):
        places = coder.decode(constriction.stream.model.Uniform(1 << octave), len(where))
        found[where] += np.copysign(places.astype(np.float32), found[where])
    return found


def by_octave(symbols: Symbols, model: Model) -> list[tuple[int, Integers]]:
    """Where the indices are that share their bucket, for each octave that has any."""
    where = np.flatnonzero(symbols >= 2 * OWN_BUCKET - 1)
    octaves = OCTAVES[(symbols[where] + 1) // 2]
    last = int(OCTAVES[len(model.counts) - 1])
    found = []
    for octave in range(1, last + 1):
        places = where[octaves == octave]
        if len(places):
            found.append((octave, places))
    return found


# The model


def symbol_model(model: Model) -> Any:
    """The coder's model with exactly the probabilities `frequencies` / 2^24."""
    # It adds 1 to every weight after scaling them to what is then left of 2^24: here by exactly 1,
    # so nothing rounds.
    weights = (frequencies(model) - 1).astype(np.float64)
    return constriction.stream.model.Categorical(weights, perfect=False)


def frequencies(model: Model) -> Integers:
    """2^24 shared out among the symbols as the counts say, at least 1 for each.

    All in integers, so that both ends find the same.
    """
    shares_of_signs = [SIGN_SHARES - model.negative, model.negative]
    signed = np.outer(model.counts, shares_of_signs).reshape(-1)[1:]
    signed[0] = SIGN_SHARES * model.counts[0]
    free = 2**PRECISION - len(signed)
    total = SIGN_SHARES * model.counts.sum()
    shares: Integers = signed * free // total  # int64 has room for 2^32 elements
    shares += 1
    shares[0] += 2**PRECISION - shares.sum()
    return shares


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
    stream = code[end:] + bytes((end - len(code)) % 4)  # with the zeros that were left out
    words = np.frombuffer(stream, "<u4").astype(np.uint32)
    return Parts(Model(np.array([rest, *counts]), negative), offsets, words)


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
