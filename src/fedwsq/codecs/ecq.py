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

import math
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
from fedwsq.codecs.ecq_model import (
    LAST_BUCKET,
    OCTAVES,
    OFFSET_SHARES,
    OWN_BUCKET,
    SIGN_SHARES,
    SLICE,
    STARTS,
    Model,
    index,
    mean_offsets,
    model_of,
    read_counts,
    slots_of,
    write_model,
)
from fedwsq.codecs.ecq_search import (
    CLOSE,
    Search,
    Trial,
    first_guess,
    sample_stride,
    search_step,
)
from fedwsq.codecs.kernels import Floats, Integers, Symbols
from fedwsq.codecs.rans import STATE_BYTES
from fedwsq.codecs.rates import Rates
from fedwsq.core.errors import MessageError
from fedwsq.core.types import Rate

MIN_BYTES = 16  # what the smallest tensors may take: room for a model
PLACE_BITS = 10  # of a place go on the stack at once
ATTEMPTS = 3  # at a code that fits closely
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


# The finest code


class Found(NamedTuple):
    """A step, and the code that it gives."""

    step: float
    code: bytes


ZEROS = Found(0.0, b"")


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


# Writing and reading


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
