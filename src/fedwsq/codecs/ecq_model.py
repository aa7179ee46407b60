"""What `ecq` knows before it codes: symbols, how often each occurs, the model that says so, and
the coder's slots that follow from it.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedwsq.codecs import kernels, rans
from fedwsq.codecs.kernels import COUNT_SHIFT, INDEX_SHARES, Floats, Integers, Shares, Symbols
from fedwsq.codecs.rans import SLOTS
from fedwsq.core.errors import MessageError

OWN_BUCKET = 8  # |k| below this has a bucket of its own
SIGN_SHARES = 128
OFFSET_SHARES = 256
SLICE = 2**15  # elements that are coded at a time: part of the format
# A state costs about 3 bytes, and so many indices that are not 0 some two thousand.
INDICES_PER_LANE = 4096
MAX_LANES = 1024

# Bucket b holds the eighth b % 8 of octave b // 8, counted from |k| + 8 = 8 on.
_BUCKETS = np.arange(8 * 21 + 1)
OCTAVES = _BUCKETS // 8
# The smallest |k| of each bucket; the last one is past the end.
STARTS = ((8 + _BUCKETS % 8) << OCTAVES) - 8
LAST_BUCKET = len(_BUCKETS) - 2
SYMBOLS = kernels.INDEX_SYMBOLS


# Symbols


class Tally(NamedTuple):
    """What there is to know of the indices that a step gives."""

    counts: Integers  # how often each symbol occurs
    excess: Integers  # the sum of |x| / step - |k| over each, in 2^-15ths


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


def negative_share(positive: int, negative: int) -> int:
    """The share of negatives in 128ths; all or nothing only where it is."""
    both = positive + negative
    share = (SIGN_SHARES * negative + both // 2) // both
    return min(max(share, int(negative > 0)), SIGN_SHARES - int(positive > 0))


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


def mean_offsets(model: Model, tally: Tally) -> NDArray[np.int8]:
    """How far the mean of |x| / step is from |k|, in 256ths, where a bucket is a single |k|."""
    inner = model.counts[1:OWN_BUCKET]
    excess = tally.excess[1:].reshape(-1, 2).sum(1)[: len(inner)]
    away = excess / (np.maximum(inner, 1) * (INDEX_SHARES // OFFSET_SHARES))
    offsets: NDArray[np.int8] = np.rint(away).clip(-128, 127).astype(np.int8)
    return offsets


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


# Its bytes


def write_model(model: Model) -> bytes:
    """What a code begins with."""
    used = len(model.counts) - 1
    head = bytes([used, model.negative])
    return head + write_counts(model.counts[1:].tolist())


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
