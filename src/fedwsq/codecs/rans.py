"""Symbols to bytes near their entropy and back: range ANS (Duda, 2013) with states side by side.

What both ends know of the symbols is how many of 2^14 slots each has. A stack of 16-bit words is
written by `push` and read by `pop`, which gives back last what went in first. Symbol i of a push
belongs to state i mod lanes, so that a processor works on many at a time, and numpy on all.

A state is below 2^32. To push a symbol of `width` slots from `start` on

1. if the state is at least width x 2^18, its low 16 bits become a word and the state the rest;
2. state = floor(state / width) x 2^14 + state mod width + start.

To pop one, the slot is state mod 2^14, and

1. state = floor(state / 2^14) x width + slot - start;
2. if the state is below 2^16 and words are left, state = state x 2^16 + the last word.

Symbols are pushed last to first and popped first to last. Several states start at 2^16, which costs
each about 3 bytes; a single one starts at 0 and costs next to nothing.

Three implementations find the same bytes: compiled loops, the same loops as plain Python for few
lanes, and the numpy in this file for many.
"""

import functools

import numpy as np
from numpy.typing import NDArray

from fedwsq.codecs import kernels
from fedwsq.codecs.kernels import RANS_BITS, RANS_LOW, Integers, Shares, Symbols

SLOTS = 2**RANS_BITS
STATE_BYTES = 4
# With fewer, a loop over single symbols takes less time than numpy over so short arrays.
MANY_LANES = 32
# An element takes plain Python about as long as sixteen in the codecs with levels take numpy.
WORK = 16
# The bits of a symbol by its slots, in 2^20ths: whole numbers, so that all machines add up the same
COST_UNIT = 2**20


def shares_of(slots: Integers) -> Shares:
    """Every symbol with its own."""
    return Shares(slots, slots, np.cumsum(slots) - slots)


@functools.cache
def even_shares(bits: int) -> Shares:
    """Those of plain bits: the same for every symbol."""
    return shares_of(np.full(2**bits, SLOTS >> bits))


@functools.cache
def costs() -> Integers:
    """What a symbol with so many slots costs, in `COST_UNIT`; nothing for none, as none occurs."""
    bits = RANS_BITS - np.log2(np.arange(1, SLOTS + 1))
    priced = np.rint(bits * COST_UNIT).astype(np.int64)
    return np.concatenate([[0], priced])


class Writer:
    """A stack to push to."""

    def __init__(self, lanes: int) -> None:
        self.states = first_states(lanes)
        self.words: list[bytes] = []

    def push(self, symbols: Symbols, shares: Shares) -> None:
        """Put the symbols on top, the last one first."""
        if not len(symbols):
            return
        if kernels.usable(WORK * len(symbols)):
            words = kernels.push(symbols, shares, self.states)
        elif len(self.states) < MANY_LANES:
            words = self._push_each(symbols, shares)
        else:
            words = self._push_rows(symbols, shares)
        self.words.append(words.astype("<u2").tobytes())

    def code(self) -> bytes:
        """All words and then the states, without the zero bytes at the end."""
        states = self.states.astype("<u4").tobytes()
        return b"".join([*self.words, states]).rstrip(b"\0")

    def _push_each(self, symbols: Symbols, shares: Shares) -> NDArray[np.uint16]:
        states = self.states.tolist()
        words = [0] * (len(symbols) + 1)
        end = [0]
        kernels.push_loop(
            symbols.tolist(), shares.widths.tolist(), shares.starts.tolist(), states, words, end
        )
        self.states[:] = states
        return np.array(words[: end[0]], np.uint16)

    def _push_rows(self, symbols: Symbols, shares: Shares) -> NDArray[np.uint16]:
        lanes = len(self.states)
        found = []
        for start in reversed(range(0, len(symbols), lanes)):
            row = symbols[start : start + lanes]
            width = shares.widths[row]
            state = self.states[: len(row)]
            full = state >= width << kernels.RANS_SPARE_BITS
            found.append(state[full][::-1])
            state[full] >>= 16
            whole = (state / width).astype(np.int64)  # exact: float64 has bits to spare
            # state = whole x 2^14 + (state - whole x width) + start
            state += whole * (SLOTS - width)
            state += shares.starts[row]
        return (np.concatenate(found) & 0xFFFF).astype(np.uint16)


class Reader:
    """A stack to pop from. Any bytes make one: where words are missing, states just run down."""

    def __init__(self, code: bytes, lanes: int) -> None:
        missing = max(STATE_BYTES * lanes - len(code), len(code) % 2)
        words = np.frombuffer(code + bytes(missing), "<u2").astype(np.uint16)
        split = len(words) - 2 * lanes
        self.words = words[:split]
        self.states = words[split:].view("<u4").astype(np.int64)
        self.end = np.array([split])  # words that are left

    def pop(self, count: int, shares: Shares) -> Symbols:
        """The `count` symbols on top."""
        if count and kernels.usable(WORK * count):
            found = np.empty(count, np.uint16)
            kernels.pop(found, shares, self.states, self.words, self.end)
            return found
        if len(self.states) < MANY_LANES:
            return self._pop_each(count, shares)
        return self._pop_rows(count, shares)

    def _pop_each(self, count: int, shares: Shares) -> Symbols:
        found = [0] * count
        states = self.states.tolist()
        end = self.end.tolist()
        # At most a word for each symbol: the others stay packed.
        first = max(end[0] - count, 0)
        words = self.words[first : end[0]].tolist()
        end[0] -= first
        kernels.pop_loop(
            found, shares.owners.tolist(), shares.widths.tolist(), shares.starts.tolist(),
            states, words, end
        )  # fmt: skip
        self.states[:] = states
        self.end[0] = first + end[0]
        return np.array(found, np.uint16)

    def _pop_rows(self, count: int, shares: Shares) -> Symbols:
        lanes = len(self.states)
        found = np.empty(count, np.uint16)
        end = int(self.end[0])
        for start in range(0, count, lanes):
            row = found[start : start + lanes]
            state = self.states[: len(row)]
            slot = state & SLOTS - 1
            np.take(shares.owners, slot, out=row)
            state >>= RANS_BITS
            state *= shares.widths[row]
            state += slot
            state -= shares.starts[row]
            low = np.flatnonzero(state < RANS_LOW)[:end]
            words = self.words[end - len(low) : end]
            state[low] = state[low] << 16 | words[::-1]
            end -= len(low)
        self.end[0] = end
        return found


def first_states(lanes: int) -> Integers:
    """A single state may start at 0.

    Of several, one that is below 2^16 would take words that another has written.
    """
    start = RANS_LOW if lanes > 1 else 0
    return np.full(lanes, start, np.int64)


def expected_overhead(lanes: int) -> int:
    """Bytes that a code has beyond what its symbols are worth, as a rule."""
    # Not above the most, a whole state each: to code twice takes longer than these are worth.
    return STATE_BYTES * lanes if lanes > 1 else 1
