"""The search for the step of `ecq`: the finest whose code fits, as far as a tally tells."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedwsq.codecs.base import MAX_MAGNITUDE
from fedwsq.codecs.ecq_model import Tally, expected_bytes, tally_of
from fedwsq.codecs.kernels import Floats

FINEST = 2**23  # the largest |k| that is sent: a float32 has no finer steps below its largest value
SAMPLE = 2**17  # elements on which the step is searched for, at most
CLOSE = 1024  # a code that leaves less than one part in so many of its budget is good enough


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
