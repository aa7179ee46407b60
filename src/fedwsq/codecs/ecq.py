"""ECQ: a uniform quantizer whose indices are entropy-coded, so that any rate is on offer and every byte is used.

An element x becomes the index k = round(x / step). Behind a scalar quantizer and an ideal entropy coder, evenly spaced
thresholds with each cell's mean as its value lose next to nothing against the best (Gish and Pierce, 1968). The step is
the finest whose code, model included, fits the rate.

Indices are coded as symbols: 0 is k = 0; 2 b - 1 and 2 b are the positive and the negative k of bucket b. Each |k|
below 8 is a bucket; from there on every octave of |k| + 8 has eight, and the place inside the bucket, o bits in octave
o, follows in the stream, octave after octave, once all symbols are through. The code is

    1 byte    the last bucket that occurs, 1 to 167
    1 byte    the share of negatives among the indices that are not 0, in 128ths
    varints   how many indices fall in each bucket from 1 on; a 0 is followed by how many more zeros there are
    bytes     for each bucket from 1 to 7: how far the mean of |x| / step is from |k|, in 256ths, signed
    the rest  an ANS stream (Duda, 2013): little-endian 32-bit words, without the zero bytes at its end

or nothing at all, with a step of 0, for a vector of zeros. A varint holds seven bits a byte, least significant first,
with the high bit set on all but the last.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import constriction
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwsq.codecs.base import MAX_MAGNITUDE, Alone, Packet, finite_values, rows_of
from fedwsq.codecs.groups import Floats
from fedwsq.core.errors import ConfigError, MessageError
from fedwsq.core.types import Rate

Integers = NDArray[np.int64]

MIN_BYTES = 16  # what the smallest tensors may take: room for a model
FINEST = 2**23  # the largest |k| that is sent: a float32 has no finer steps below its largest value
OWN_BUCKET = 8  # |k| below this has a bucket of its own
PRECISION = 24  # bits of a symbol's probability
SIGN_SHARES = 128
OFFSET_SHARES = 256
SAMPLE = 2**16  # elements on which the step is searched for, at most
CHUNK = 2**14  # elements that are quantized at a time: what stays in the cache
CLOSE = 1024  # a code that leaves less than one part in so many of its budget is good enough

# Bucket b holds the eighth b % 8 of octave b // 8, counted from |k| + 8 = 8 on: just the exponent and the first three
# mantissa bits of |k| + 8 as a float32, which holds all of it exactly below 2^24.
_BUCKETS = np.arange(8 * (PRECISION - 3) + 1)
OCTAVES = _BUCKETS // 8
STARTS = (
    (8 + _BUCKETS % 8) << OCTAVES
) - 8  # the smallest |k| of each bucket; the last one is past the end
LAST_BUCKET = len(_BUCKETS) - 2
_MANTISSA_SHIFT = 20
_FIRST_BUCKET = int(np.float32(8).view(np.int32)) >> _MANTISSA_SHIFT


@dataclass(frozen=True)
class Ecq(Alone):
    """Entropy-coded quantization: the finest uniform step that fits the rate, any from 0.1 to 8 bits.

    Nothing is shared: step and model travel with each packet. A tensor's code is never longer than its elements times
    the rate, or 16 bytes.
    """

    wire_id: ClassVar[int] = 10

    @property
    def rates(self) -> tuple[float, float]:
        """Any rate from 0.1 to 8 bits."""
        return (0.1, 8.0)

    @property
    def unbiased(self) -> bool:
        """No: what is near 0 becomes 0."""
        return False

    def encode(self, x: Tensor, shared: Tensor, rate: Rate, seed: int) -> Packet:
        """The finest step that fits, and the indices it gives."""
        low, high = self.rates
        if not low <= rate <= high:  # NaN fails too
            raise ConfigError(f"ecq has no {rate:g}-bit rate; it offers {low:g} to {high:g}")
        values = finite_values(x, "ecq")
        step, code = finest_code(values, self.max_bytes(len(values), rate))
        return Packet(code, (step,), rate, len(values), own_scale=True, rows=rows_of(x.shape))

    def check(self, packet: Packet) -> None:
        """Read the model; any stream behind a sound one decodes to values no larger than the last bucket's."""
        if len(packet.side) != 1:
            raise MessageError(f"an ecq packet has 1 side value, its step, not {len(packet.side)}")
        if not packet.own_scale:
            raise MessageError("an ecq packet is decoded with its own step; its flag is missing")
        (step,) = packet.side
        if not packet.code:
            if step != 0:
                raise MessageError(f"an ecq packet without a code has a step of 0, not {step:g}")
            return
        largest = int(STARTS[len(read_code(packet.code, packet.numel).model.counts)]) - 1
        # Rounding at most doubles a value, and a bucket ends at most an eighth above it.
        if not 0 < step * largest <= 2 * MAX_MAGNITUDE:  # NaN fails too
            raise MessageError(
                f"an ecq packet has a step of {step:g} and indices to {largest}: no real update has both"
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


def finest_code(values: Floats, budget: int) -> tuple[float, bytes]:
    """The finest step whose code has at most `budget` bytes, and that code; 0 and nothing when all would be zeros."""
    largest = float(np.abs(values).max(initial=0))
    if largest == 0:
        return 0.0, b""
    # A stride without the factors 2 and 3, of which kernels and channels are made.
    stride = 1 if len(values) <= SAMPLE else 6 * math.ceil(len(values) / SAMPLE / 6) + 1
    sample = values[::stride]
    # The entropy of N(0, s^2), log2(sqrt(2 pi e) s), less log2(step) is the rate, if it is high; s is from mean|x|.
    spread = math.sqrt(math.pi / 2) * float(np.abs(sample).mean(dtype=np.float64))
    guess = math.sqrt(2 * math.pi * math.e) * spread / 2 ** (8 * budget / len(values))
    step, code = search_step(sample, largest, guess, budget, stride, rounds=12)
    if stride > 1:
        step, code = search_step(values, largest, step or guess, budget, 1, rounds=4)
    return (step, code) if code else (0.0, b"")


def search_step(
    values: Floats, largest: float, guess: float, budget: int, stride: int, rounds: int
) -> tuple[float, bytes]:
    """The finest step whose code, its stream times `stride`, fits the budget, as close as `rounds` trials come.

    It is looked for among the bits of float32, which are the logarithm near enough: by moves from the guess that double
    until there is a step on either side of the best, then by false position, the Illinois way (Dowell, Jarratt, 1971).
    """
    # From twice the largest value on, everything is 0.
    low, high = max(bits_of(largest / FINEST), 1) - 1, bits_of(min(2 * largest, MAX_MAGNITUDE))
    at, trial, fitted, best, spares = bits_of(guess), 0, None, (0.0, b""), dict[int, float]()
    while high - low > 1:
        at, trial = min(max(at, low + 1), high - 1), trial + 1
        step = np.int32(at).view(np.float32)
        head, stream = encode_indices(values, step)
        spare = spares[at] = budget - len(head) - len(stream) * stride
        fits = spare >= 0
        if fits:
            high, best = at, (float(step), head + stream)
        else:
            low = at
        if high in spares and (0 <= spare <= budget // CLOSE or trial >= rounds):
            break
        if low in spares and high in spares:
            if fits == fitted:  # the other end has stayed twice: let it count for less
                spares[low if fits else high] /= 2
            fitted = fits
            at = low + int(
                (high - low) * (budget / CLOSE / 2 - spares[low]) / (spares[high] - spares[low])
            )
        else:
            # An octave of steps saves about one bit an element.
            at -= int(2**trial * 2**23 * spare * 8 / (len(values) * stride))
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
    offsets: NDArray[
        np.int8
    ]  # what to add to |k| in the buckets from 1 on that have a mean, in 256ths
    words: NDArray[np.uint32]


def encode_indices(values: Floats, step: np.float32) -> tuple[bytes, bytes]:
    """The model and the stream of round(values / step); nothing when all are 0."""
    symbols, counts, sums = quantize(values, step)
    pairs = counts[1:].reshape(-1, 2)
    used = int(np.flatnonzero(counts)[-1] + 1) // 2 if len(values) else 0
    if not used:
        return b"", b""
    buckets = np.concatenate([counts[:1], pairs.sum(1)[:used]])
    model = Model(buckets, negative_share(*pairs.sum(0).tolist()))
    inner = buckets[1:OWN_BUCKET]
    means = sums[1:].reshape(-1, 2).sum(1)[: len(inner)] / np.maximum(inner, 1)
    offsets = (
        np.rint((means - STARTS[1 : len(inner) + 1]) * OFFSET_SHARES)
        .clip(-128, 127)
        .astype(np.int8)
    )
    offsets[inner == 0] = 0

    coder = constriction.stream.stack.AnsCoder()  # a stack: what is decoded last goes in first
    for octave, where in reversed(by_octave(symbols, model)):
        inside = np.rint(np.abs(values[where]) / step).astype(np.int32) + 8 & (1 << octave) - 1
        coder.encode_reverse(inside, constriction.stream.model.Uniform(1 << octave))
    coder.encode_reverse(symbols, symbol_model(model))
    head = bytes([used, model.negative]) + write_counts(buckets[1:].tolist()) + offsets.tobytes()
    return head, coder.get_compressed().astype("<u4").tobytes().rstrip(b"\0")


def quantize(
    values: Floats, step: np.float32
) -> tuple[NDArray[np.int32], Integers, NDArray[np.float64]]:
    """The symbol of each value; how often each symbol occurs, and the sum of |x| / step over it."""
    size = 2 * LAST_BUCKET + 1
    symbols, counts, sums = (
        np.empty(len(values), np.int32),
        np.zeros(size, np.int64),
        np.zeros(size),
    )
    for start in range(0, len(values), CHUNK):
        x = values[start : start + CHUNK]
        ratios = np.abs(x) / step
        found = (np.rint(ratios) + np.float32(8)).view(np.int32)
        found >>= _MANTISSA_SHIFT
        found -= _FIRST_BUCKET
        found *= 2
        found -= x > 0
        part = np.maximum(found, 0, out=symbols[start : start + CHUNK])
        counts += np.bincount(part, minlength=size)
        sums += np.bincount(part, ratios, size)
    return symbols, counts, sums


def decode_indices(parts: Parts, numel: int) -> Floats:
    """The value of each index in steps."""
    model, offsets, words = parts
    coder = constriction.stream.stack.AnsCoder(words)
    symbols = coder.decode(symbol_model(model), numel)
    table = STARTS[: len(model.counts)].astype(np.float32)
    table[1 : len(offsets) + 1] += offsets.astype(np.float32) / np.float32(OFFSET_SHARES)
    signed = np.stack([table, -table], 1).reshape(-1)[1:]
    signed[0] = 0  # not -0
    found: Floats = signed.take(symbols)
    for octave, where in by_octave(symbols, model):
        inside = coder.decode(constriction.stream.model.Uniform(1 << octave), len(where)).astype(
            np.float32
        )
        found[where] += np.copysign(inside, found[where])
    return found


def by_octave(symbols: NDArray[np.int32], model: Model) -> list[tuple[int, Integers]]:
    """Where the indices are that share their bucket, for each octave that has any."""
    where = np.flatnonzero(symbols >= 2 * OWN_BUCKET - 1)
    octaves = OCTAVES[(symbols[where] + 1) // 2]
    found = (
        (octave, where[octaves == octave])
        for octave in range(1, int(OCTAVES[len(model.counts) - 1]) + 1)
    )
    return [(octave, places) for octave, places in found if len(places)]


# The model


def symbol_model(model: Model) -> Any:
    """The coder's model with exactly the probabilities `frequencies` / 2^24."""
    # It adds 1 to every weight after scaling them to what is then left of 2^24: here by exactly 1, so nothing rounds.
    return constriction.stream.model.Categorical(
        (frequencies(model) - 1).astype(np.float64), perfect=False
    )


def frequencies(model: Model) -> Integers:
    """2^24 shared out among the symbols as the counts say, at least 1 for each: all in integers, on both ends."""
    signed = np.outer(model.counts, [SIGN_SHARES - model.negative, model.negative]).reshape(-1)[1:]
    signed[0] = SIGN_SHARES * model.counts[0]
    free = 2**PRECISION - len(signed)
    shares: Integers = (
        signed * free // (SIGN_SHARES * model.counts.sum())
    )  # int64 has room for 2^32 elements
    shares += 1
    shares[0] += 2**PRECISION - shares.sum()
    return shares


def negative_share(positive: int, negative: int) -> int:
    """The share of negatives in 128ths; all or nothing only where it is."""
    share = (SIGN_SHARES * negative + (positive + negative) // 2) // (positive + negative)
    return min(max(share, int(negative > 0)), SIGN_SHARES - int(positive > 0))


def write_counts(counts: Sequence[int]) -> bytes:
    """Varints; a run of zeros is a 0 and how many more follow."""
    written = bytearray()
    for zero, run in itertools.groupby(counts, key=lambda count: count == 0):
        for value in (0, len(list(run)) - 1) if zero else run:
            while value > 127:
                written.append(value & 127 | 128)
                value >>= 7
            written.append(value)
    return bytes(written)


def read_code(code: bytes, numel: int) -> Parts:
    """The parts of a code that is not empty, or `MessageError`."""
    if len(code) < 2 or not 1 <= code[0] <= LAST_BUCKET or code[1] > SIGN_SHARES:
        raise MessageError(
            f"an ecq code starts with its last bucket, 1 to {LAST_BUCKET}, and a share of at most {SIGN_SHARES}, "
            f"not with {list(code[:2])}"
        )
    used, counts, at = code[0], [0], 2
    while len(counts) <= used:
        value, at = read_varint(code, at)
        counts.append(value)
        if value == 0:
            more, at = read_varint(code, at)
            if more >= used - len(counts) + 1:
                raise MessageError("an ecq code's last bucket is empty")
            counts += [0] * more
    counts[0] = numel - sum(counts)
    if counts[0] < 0:
        raise MessageError(
            f"an ecq code counts {numel - counts[0]} indices that are not 0 in {numel} elements"
        )
    end = at + min(used, OWN_BUCKET - 1)
    if end > len(code) or (end < len(code) and code[-1] == 0):
        raise MessageError("an ecq code ends inside its model or in a zero byte")
    words = np.frombuffer(code[end:] + bytes((end - len(code)) % 4), "<u4").astype(np.uint32)
    return Parts(Model(np.array(counts), code[1]), np.frombuffer(code[at:end], np.int8), words)


def read_varint(code: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, below 2^35 and in as few bytes as it takes, and where the next one starts."""
    value = 0
    for i, byte in enumerate(code[at : at + 5]):
        value |= (byte & 127) << 7 * i
        if byte < 128:
            if byte == 0 and i > 0:
                break
            return value, at + i + 1
    raise MessageError("an ecq code holds a count that does not end, or is longer than it must be")
