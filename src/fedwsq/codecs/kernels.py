"""The codecs' inner loops, compiled by numba if it is installed: one pass and no copy.

What each computes is easiest to read in plain torch, which also does it on a GPU:
`reference.quantize`, `expand` and `survey`. Each gives the bits of its twin in numpy
(`coding.quantize`, `coding.look_up`, `groups.moments`; those of the entropy coder are in `ecq`,
`ecq_model` and `rans`), which runs where numba is missing, for other widths and as long as there is
too little to do to load it. The loops are plain Python until then; `compiled` makes machine code.

They work in pieces that stay in the innermost cache, and without branches, so that the compiler
makes wide instructions of them.
"""

import functools
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedwsq.codecs import compiled

WIDTHS = (1, 2, 4, 8)  # bits of a code that never crosses a byte
# Loading numba takes half a second, and compiling for the first time a few more.
WORTH_LOADING = 2**16  # elements at once
WORTH_LOADING_IN_ALL = 2**23  # elements of smaller vectors, which numpy needs about as long for
LANES = 512  # sums that run side by side; a fixed part of what a std is, see `groups.moments`
PIECE = 1024  # elements worked on at a time; whole bytes at every width
MANY_EDGES = 32  # from here on only every 16th is counted first

# Entropy coding, see `rans`: the slots that symbols share are 2^14, so that a table of them stays
# in the innermost caches; words have 16 bits, states 32.
RANS_BITS = 14
RANS_LOW = 2**16
RANS_SPARE_BITS = 32 - RANS_BITS
# In `index`, what is left of x / step goes by 2^-15ths of a step.
INDEX_SHARES = 2**15
COUNT_SHIFT = 32
# The exponent and the first three mantissa bits of |k| + 8 as a float32 number the buckets of |k|,
# see `ecq`: below 2^24 a float32 holds all of it exactly.
INDEX_SHIFT = 20
INDEX_FIRST = int(np.float32(8).view(np.int32)) >> INDEX_SHIFT
INDEX_SYMBOLS = 2 * 167 + 1

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]
Symbols = NDArray[np.uint16]
Words = NDArray[np.uint16]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

# How a code is found, see `Rounding`. Plain numbers: the loops are compiled for them.
COUNT = 0
UNIFORM = 1
MAGNITUDE = 2
BETWEEN = 3

NOTHING = np.empty(0, np.float32)
NEAREST = np.full(1, 0.5, np.float32)


class Scales(NamedTuple):
    """One scale for every `size` elements in a row; the last may have fewer."""

    each: Floats
    size: int

    def spread(self, numel: int) -> Floats:
        """The scale of every element; a single one is left as it is, to be broadcast."""
        if len(self.each) == 1:
            return self.each
        return np.repeat(self.each, self.size)[:numel]


class Rounding(NamedTuple):
    """How the code of x / scale is found.

    COUNT is the number of `marks` below it, which are edges then. BETWEEN goes from the level below
    to the next, and the marks are the levels. UNIFORM is as `uq.quantize_uniform` and MAGNITUDE as
    `qsgd.quantize_magnitude`, by arithmetic and without marks. All but COUNT go up where the draw
    is below the share of the way: `draws` has one for each element, or one for all.
    """

    form: int
    marks: Floats = NOTHING
    draws: Floats = NEAREST


class Coded(NamedTuple):
    """A vector as packed codes: each stands for a level, times the scale of its group."""

    code: bytes
    bits: int
    numel: int
    levels: Floats
    scales: Scales


@dataclass(frozen=True)
class Shares:
    """Which of 2^14 slots each symbol has, one symbol's after the other's; see `rans`."""

    slots: Integers  # how many; they add up to all of them
    widths: Integers  # how many a symbol is pushed with, and from where on: its own,
    starts: Integers  # or those of another that stands for it

    @functools.cached_property
    def owners(self) -> Symbols:
        """Of each slot the symbol that is popped there."""
        symbols = np.arange(len(self.slots), dtype=np.uint16)
        return np.repeat(symbols, self.slots)


def usable(numel: int, bits: int = 8) -> bool:
    """Whether a vector of so many elements goes through these.

    A large one does, and all do once many have come.
    """
    global _seen
    if bits not in WIDTHS:
        return False
    if not compiled.loaded and numel < WORTH_LOADING:
        _seen += numel
        if _seen < WORTH_LOADING_IN_ALL:
            return False
    return compiled.numba_module() is not None


def quantize(values: Floats, scales: Scales, bits: int, rounding: Rounding) -> bytes:
    """The packed code of each x / scale; 0 where the scale is 0."""
    _require_scales(len(values), scales)
    form, marks, draws = rounding
    if len(draws) not in (1, len(values)):
        raise ValueError(f"{len(draws)} draws do not fit {len(values)} elements")

    edges = marks
    if form == BETWEEN:
        if len(marks) < 2:
            raise ValueError(f"there is nothing between {len(marks)} levels")
        # All levels but the ends: what is outside goes to an end.
        edges = marks[1:-1]
    if len(edges) >= 2**bits:
        raise ValueError(f"{len(edges)} edges do not fit in {bits} bits")
    if len(edges) >= MANY_EDGES:
        edges = np.pad(edges, (0, 255 - len(edges)), constant_values=np.inf)

    length = (len(values) * bits + 7) // 8
    if not length:
        return b""
    # Bytes that are written in place: to copy megabytes takes about as long as to find them.
    file = io.BytesIO()
    file.seek(length - 1)
    file.write(b"\0")
    with file.getbuffer() as view:
        packed = np.frombuffer(view, np.uint8)
        stride = int(len(draws) > 1)
        _kernel("quantize")(
            values, scales.each, scales.size, edges, bits, form, draws, stride, marks, packed
        )
    return file.getvalue()


def expand(coded: Coded, weight: float, out: Floats, add: bool) -> None:
    """Write the level of each code, times its scale, times `weight`, into `out`, or add it."""
    code, bits, _, levels, scales = coded
    # The compiled loops trust their arguments, so `out` itself is held against the rest.
    _require_scales(len(out), scales)
    if len(code) != (len(out) * bits + 7) // 8:
        raise ValueError(f"{len(code)} bytes are not {len(out)} codes of {bits} bits")
    pairs = _pairs(levels.tobytes(), bits)
    packed = np.frombuffer(code, np.uint8)
    _kernel("expand")(packed, bits, pairs, scales.each, scales.size, np.float32(weight), out, add)


def survey(values: Floats, size: int) -> Doubles:
    """Of every `size` elements max|x|, the sum of x - x[0] and that of its square.

    See `groups.moments`.
    """
    out = np.empty((math.ceil(len(values) / size), 3))
    _kernel("survey")(values, size, out)
    return out


def index(values: Floats, step: np.float32, symbols: Symbols, tallies: Integers) -> None:
    """The symbol of each x / step, and sums over all that have it; see `ecq_model.index`."""
    if len(symbols) != len(values):
        raise ValueError(f"{len(symbols)} symbols are not {len(values)} elements")
    if len(tallies) != INDEX_SYMBOLS:
        raise ValueError(f"{len(tallies)} tallies are not {INDEX_SYMBOLS} symbols")
    _kernel("index")(values, step, symbols, tallies)


def push(symbols: Symbols, shares: Shares, states: Integers) -> Words:
    """The words that symbols put on the stack; see `rans`."""
    _require_lanes(states)
    known = min(len(shares.widths), len(shares.starts))
    if int(symbols.max(initial=0)) >= known:
        raise ValueError("there are symbols that have no share")
    words = np.empty(len(symbols) + 1, np.uint16)
    end = np.zeros(1, np.int64)
    _kernel("push")(symbols, shares.widths, shares.starts, states, words, end)
    return words[: end[0]]


def pop(found: Symbols, shares: Shares, states: Integers, words: Words, end: Integers) -> None:
    """Fill `found` with symbols from the stack, of which `end` words are left."""
    _require_lanes(states)
    if len(shares.owners) != 2**RANS_BITS or not 0 <= end[0] <= len(words):
        raise ValueError("a stack has all slots, and no more words than there are")
    known = min(len(shares.widths), len(shares.starts))
    if int(shares.owners.max()) >= known:
        raise ValueError("there are slots of symbols that have no share")
    _kernel("pop")(found, shares.owners, shares.widths, shares.starts, states, words, end)


def late(symbols: Symbols, first: int) -> Integers:
    """Where the symbols are that do not come before `first`."""
    where = np.empty(len(symbols), np.int64)
    count = np.zeros(1, np.int64)
    _kernel("late")(symbols, first, where, count)
    return where[: count[0]]


def spread(symbols: Symbols, table: Floats, out: Floats, add: bool) -> None:
    """Write what each symbol stands for into `out`, or add it."""
    if len(symbols) != len(out) or int(symbols.max(initial=0)) >= len(table):
        raise ValueError("there are symbols without a value, or without a place")
    _kernel("spread")(symbols, table, out, add)


def _require_lanes(states: Integers) -> None:
    lanes = len(states)
    if not lanes or lanes & lanes - 1:
        raise ValueError(f"the number of states is a power of two, not {lanes}")


def _require_scales(numel: int, scales: Scales) -> None:
    # A wrong number here would be a read outside the array in the compiled loops.
    each, size = scales
    if numel and (size < 1 or len(each) != math.ceil(numel / size)):
        raise ValueError(f"{len(each)} scales do not fit {numel} elements in groups of {size}")


# The loops. Their arguments are single arrays and numbers, which is what numba compiles best.


def _quantize(values: Any, scales: Any, size: Any, edges: Any, bits: Any, form: Any, draws: Any,
              stride: Any, levels: Any, out: Any) -> None:  # fmt: skip
    ratios = np.empty(PIECE, np.float32)
    codes = np.empty(PIECE, np.uint8)
    for start in range(0, len(values), PIECE):
        stop = min(start + PIECE, len(values))

        # The ratios, group by group. Where the scale is 0 they are below every edge, and so is
        # what is left of the last piece: a code of 0, and zeros after the last code.
        at = start
        while at < stop:
            group = at // size
            end = min((group + 1) * size, stop)
            scale = scales[group]
            x = values[at:end]
            ratio = ratios[at - start : end - start]
            if scale == 0:
                ratio[:] = -np.inf
            else:
                for j in range(len(x)):
                    ratio[j] = x[j] / scale
            at = end
        ratios[stop - start :] = -np.inf

        # How many edges are below each. All of a piece against one edge is a single wide
        # comparison, so up to 31 edges this beats a search.
        codes[:] = 0
        apart = 1 if len(edges) < MANY_EDGES else 16
        for k in range(apart - 1, len(edges), apart):
            for j in range(PIECE):
                codes[j] += np.uint8(ratios[j] > edges[k])
        if apart > 1:
            for j in range(PIECE):  # the other fifteen between two of those, by halving
                found = np.uint64(codes[j]) * np.uint64(16)
                for step in (8, 4, 2, 1):
                    above = ratios[j] > edges[found + np.uint64(step - 1)]
                    found += np.uint64(step) if above else np.uint64(0)
                codes[j] = found

        # Rounding by chance, or by arithmetic where the draw is 1/2.
        if form == UNIFORM:
            top = np.float32(2**bits - 1)
            for j in range(stop - start):
                f = (ratios[j] + np.float32(1)) * (top / np.float32(2))
                k = np.floor(f)
                if draws[(start + j) * stride] < f - k:
                    k += np.float32(1)
                codes[j] = np.uint8(min(max(k, np.float32(0)), top))
        elif form == MAGNITUDE:
            most = np.float32(2 ** (bits - 1) - 1)
            for j in range(stop - start):
                f = abs(ratios[j]) * most
                k = np.floor(f)
                if draws[(start + j) * stride] < f - k:
                    k += np.float32(1)
                k = min(k, most)
                codes[j] = np.uint8(most - k if ratios[j] < 0 else most + k)
        elif form == BETWEEN:
            for j in range(stop - start):
                below = levels[codes[j]]
                gap = levels[np.uint64(codes[j]) + np.uint64(1)] - below
                share = (ratios[j] - below) / gap
                if draws[(start + j) * stride] < share:
                    codes[j] += np.uint8(1)

        # The codes into bytes, a loop for each width: the compiler knows how often the inner runs.
        packed = out[start * bits // 8 : (stop * bits + 7) // 8]
        if bits == 8:
            packed[:] = codes[: len(packed)]
        elif bits == 4:
            for j in range(len(packed)):
                packed[j] = codes[2 * j] | codes[2 * j + 1] << 4
        elif bits == 2:
            for j in range(len(packed)):
                byte = np.uint8(0)
                for m in range(4):
                    byte |= codes[4 * j + m] << 2 * m
                packed[j] = byte
        else:
            for j in range(len(packed)):
                byte = np.uint8(0)
                for m in range(8):
                    byte |= codes[8 * j + m] << m
                packed[j] = byte


def _expand(
    code: Any, bits: Any, pairs: Any, scales: Any, size: Any, weight: Any, out: Any, add: Any
) -> None:
    # Two float32 at a time, moved as one integer: the compiler joins no scalars by itself.
    found = np.empty(PIECE // 2, np.uint64)
    chosen = found.view(np.float32)
    single = pairs.view(np.float32)
    for start in range(0, len(out), PIECE):
        stop = min(start + PIECE, len(out))

        # The levels of a piece, from a table of what each byte stands for. All of a byte's are read
        # before one is written: the compiler cannot know that a write leaves the table alone.
        piece = code[start * bits // 8 : (stop * bits + 7) // 8]
        if bits == 8:
            for j in range(len(piece)):
                chosen[j] = single[piece[j]]
        elif bits == 4:
            for j in range(len(piece)):
                found[j] = pairs[piece[j]]
        elif bits == 2:
            for j in range(len(piece)):
                k = np.uint64(piece[j]) * np.uint64(2)
                a = pairs[k]
                b = pairs[k + np.uint64(1)]
                found[2 * j] = a
                found[2 * j + 1] = b
        else:
            for j in range(len(piece)):
                k = np.uint64(piece[j]) * np.uint64(4)
                a = pairs[k]
                b = pairs[k + np.uint64(1)]
                c = pairs[k + np.uint64(2)]
                d = pairs[k + np.uint64(3)]
                found[4 * j] = a
                found[4 * j + 1] = b
                found[4 * j + 2] = c
                found[4 * j + 3] = d

        # Times scale and weight, group by group.
        at = start
        while at < stop:
            group = at // size
            end = min((group + 1) * size, stop)
            scale = scales[group]
            level = chosen[at - start : end - start]
            y = out[at:end]
            if add:
                for j in range(len(y)):
                    y[j] += level[j] * scale * weight
            else:
                for j in range(len(y)):
                    y[j] = level[j] * scale * weight
            at = end


def _survey(values: Any, size: Any, out: Any) -> None:
    lanes = 1
    while lanes < min(size, LANES):
        lanes *= 2
    top = np.empty(lanes, np.float32)
    sums = np.empty(lanes)
    squares = np.empty(lanes)
    for group in range(len(out)):
        start = group * size
        stop = min((group + 1) * size, len(values))
        first = np.float64(values[start])
        top[:] = 0
        sums[:] = 0
        squares[:] = 0
        for at in range(start, stop, lanes):
            x = values[at : min(at + lanes, stop)]
            for j in range(len(x)):
                d = np.float64(x[j]) - first
                sums[j] += d
                squares[j] += d * d
                top[j] = abs(x[j]) if abs(x[j]) > top[j] else top[j]

        # The upper half of the lanes onto the lower, until one is left.
        half = lanes // 2
        while half:
            for j in range(half):
                sums[j] += sums[half + j]
                squares[j] += squares[half + j]
                top[j] = max(top[j], top[half + j])
            half //= 2
        # A comparison passes over NaN; the sum does not.
        out[group, 0] = top[0] if squares[0] == squares[0] else np.nan
        out[group, 1] = sums[0]
        out[group, 2] = squares[0]


def _index(values: Any, step: Any, symbols: Any, tallies: Any) -> None:
    # Four tallies in turn: most elements have the same few symbols, and each addition would wait
    # for the one before.
    apart = np.zeros((4, INDEX_SYMBOLS), np.int64)
    shifted = np.empty(PIECE, np.float32)
    leading = shifted.view(np.int32)
    sums = np.empty(PIECE, np.int64)
    for start in range(0, len(values), PIECE):
        x = values[start : start + PIECE]
        symbol = symbols[start : start + PIECE]
        for j in range(len(x)):
            ratio = abs(x[j]) / step
            k = np.rint(ratio)
            shifted[j] = k + np.float32(8)
            sums[j] = np.int64((ratio - k) * np.float32(INDEX_SHARES)) + (1 << COUNT_SHIFT)
        for j in range(len(x)):
            bucket = (leading[j] >> INDEX_SHIFT) - INDEX_FIRST
            positive = 1 if x[j] > 0 else 0
            # No step is so fine that the last is passed; but then a tally would be, too.
            symbol[j] = min(max(2 * bucket - positive, 0), INDEX_SYMBOLS - 1)
        whole = len(x) // 4 * 4
        for j in range(0, whole, 4):
            apart[0, symbol[j]] += sums[j]
            apart[1, symbol[j + 1]] += sums[j + 1]
            apart[2, symbol[j + 2]] += sums[j + 2]
            apart[3, symbol[j + 3]] += sums[j + 3]
        for j in range(whole, len(x)):
            apart[0, symbol[j]] += sums[j]
    for table in range(4):
        for j in range(INDEX_SYMBOLS):
            tallies[j] += apart[table, j]


# These two are also run as they are, on lists.


def push_loop(symbols: Any, widths: Any, starts: Any, states: Any, words: Any, end: Any) -> None:
    lane = len(states) - 1
    at = 0
    for i in range(len(symbols) - 1, -1, -1):
        symbol = symbols[i]
        width = widths[symbol]
        state = states[i & lane]
        # No branch, which no processor could foresee: each word stays only where it is one.
        words[at] = state & 0xFFFF
        full = 1 if state >= width << RANS_SPARE_BITS else 0
        at += full
        state >>= full << 4
        # Exact: the quotient is off by less than what is between it and the next whole number.
        whole = int(state / width)
        states[i & lane] = (whole << RANS_BITS) + (state - whole * width) + starts[symbol]
    end[0] = at


def pop_loop(
    found: Any, owners: Any, widths: Any, starts: Any, states: Any, words: Any, end: Any
) -> None:
    lane = len(states) - 1
    at = end[0]
    for i in range(len(found)):
        state = states[i & lane]
        slot = state & (1 << RANS_BITS) - 1
        symbol = owners[slot]
        state = (state >> RANS_BITS) * widths[symbol] + slot - starts[symbol]
        if state < RANS_LOW and at > 0:
            at -= 1
            state = state << 16 | words[at]
        states[i & lane] = state
        found[i] = symbol
    end[0] = at


def _late(symbols: Any, first: Any, where: Any, count: Any) -> None:
    found = 0
    for start in range(0, len(symbols), PIECE):
        piece = symbols[start : start + PIECE]
        # Mostly there are few or none: one wide comparison tells.
        top = np.uint16(0)
        for j in range(len(piece)):
            top = max(top, piece[j])
        if top >= first:
            for j in range(len(piece)):
                where[found] = start + j
                found += 1 if piece[j] >= first else 0
    count[0] = found


def _spread(symbols: Any, table: Any, out: Any, add: Any) -> None:
    if add:
        for j in range(len(out)):
            out[j] += table[symbols[j]]
    else:
        for j in range(len(out)):
            out[j] = table[symbols[j]]


_seen = 0  # elements of vectors that were not worth loading for
_SOURCES: dict[str, Callable[..., None]] = {
    "quantize": _quantize,
    "expand": _expand,
    "survey": _survey,
    "index": _index,
    "push": push_loop,
    "pop": pop_loop,
    "late": _late,
    "spread": _spread,
}


def _kernel(name: str) -> Callable[..., None]:
    """The compiled loop."""
    return compiled.kernel(name, _SOURCES[name])


@functools.lru_cache(maxsize=64)
def _pairs(levels: bytes, bits: int) -> NDArray[np.uint64]:
    """What each byte stands for, two levels in a number; codes without one have the last one's."""
    table = np.frombuffer(levels, np.float32).take(_codes_of_bytes(bits), mode="clip")
    return table.reshape(-1).view(np.uint64)


@functools.cache
def _codes_of_bytes(bits: int) -> Bytes:
    """The codes in each of the 256 bytes, first to last."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    every = np.arange(256, dtype=np.uint8)
    return (every[:, None] >> shifts) & np.uint8(2**bits - 1)
