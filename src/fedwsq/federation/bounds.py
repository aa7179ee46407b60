"""What replies are held against: fixed limits, and what is usual among the clients of a run.

What is usual is a median, which a minority cannot move far. Where nobody is outside, everything
is as if there were no bounds, bit for bit.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedwsq.core.errors import MessageError
from fedwsq.plan import Bounds
from fedwsq.wire import Message, Shared, SideValues
from fedwsq.wire.message import REPLY_METRICS

LATELY = 5  # cohorts that say together what is usual
# What was usual is forgotten slowly: late in a run most clients learn little more, and some still
# as much as ever. A hundredth a round halves it in 69.
KEPT = 0.99
MAX_CLAIM = 1e12  # what a reply says of itself counts up to here
# The shared scale is far off in the first rounds of a run that starts it from a number: 50 times
# in the published setting.
MAX_LEAP = 1000.0
MAX_SPREAD = 100.0  # of a metric that a method uses, over its median


class Seen(NamedTuple):
    """What a reply is compared by."""

    norms: dict[str, float]  # of each decoded vector
    examples: float  # as the server knows them, or as it was told


def middle(values: Sequence[float]) -> float:
    """The median; of two the smaller.

    Half of what one of two says would be as much as it likes, and what is usual is remembered.
    """
    return min(values) if len(values) == 2 else statistics.median(values)


@dataclass(frozen=True)
class Trend:
    """What is usual of one quantity, by the medians of cohorts."""

    latest: tuple[float, ...] = ()
    level: float = 0.0  # the median of the latest, or what was usual before, whichever is more

    def after(self, found: Sequence[float]) -> "Trend":
        """With one more cohort; of one that did nothing, nothing could be a multiple."""
        median = middle(found)
        if not median:
            return self
        latest = (*self.latest, median)[-LATELY:]
        return Trend(latest, max(KEPT * self.level, statistics.median(latest)))


@dataclass(frozen=True)
class Usual:
    """What is usual of the updates of a run."""

    norms: Mapping[str, Trend] = field(default_factory=dict)  # by vector
    examples: Trend = Trend()

    def knows(self, vectors: Sequence[str]) -> bool:
        """Whether there is enough to hold replies against before all of a cohort are there."""
        none = Trend()
        return all(len(self.norms.get(vector, none).latest) == LATELY for vector in vectors)

    def after(self, cohort: Sequence[Seen]) -> "Usual":
        """With one more cohort."""
        if not cohort:
            return self
        norms = {}
        for vector in cohort[0].norms:
            before = self.norms.get(vector, Trend())
            norms[vector] = before.after([seen.norms[vector] for seen in cohort])
        return Usual(norms, self.examples.after([seen.examples for seen in cohort]))


@dataclass(frozen=True)
class Limits:
    """How much a reply may be; infinite where there is nothing to compare it with."""

    norms: Mapping[str, float]
    examples: float  # of a client that the server has only been told of
    usual_examples: float

    def factor(self, vector: str, norm: float, examples: float) -> float:
        """What an update is multiplied with; 1 unless it is too long.

        Who is known to have more examples than usual takes more steps, and may get farther.
        """
        limit = self.norms.get(vector, math.inf) * max(1.0, examples / self.usual_examples)
        return 1.0 if norm <= limit else limit / norm


def limits(bounds: Bounds, usual: Usual, cohort: Sequence[Seen] = ()) -> Limits:
    """What a reply may be; while little is known, its own cohort says what is usual, too."""
    known = usual.after(cohort)
    norms = {}
    for vector, trend in known.norms.items():
        level = max((trend.level, *trend.latest[-1:])) if cohort else trend.level
        if bounds.norm and level:
            norms[vector] = bounds.norm * level
    examples = known.examples.level or math.inf
    return Limits(norms, bounds.weight * examples, examples)


def check_claims(message: Message, shared: Shared, largest: float) -> None:
    """Refuse scales that no sane update has, and metrics that no training has."""
    for vector, states in shared.items():
        for name in states:
            scale = max(message.packets[vector][name].side, default=0.0)
            if scale > largest:
                raise MessageError(
                    f"a scale of tensor {name} of {vector!r} is {scale:g}, "
                    f"at most {largest:g} is let in (bounds.magnitude)"
                )
    for name in REPLY_METRICS:
        value = message.metrics.get(name, 0.0)
        if value < 0 and name != "loss":
            raise MessageError(f"metric {name!r} is {value:g}, must not be negative")


def bounded_sides(shared: Shared, sides: SideValues, factor: float) -> SideValues:
    """Side values of which those that are far above the others are scaled down.

    A tensor's scales are compared as a whole, by their root mean square: those of single channels
    differ between honest clients by any factor.
    """
    bounded: SideValues = {}
    for vector, tensors in sides.items():
        bounded[vector] = {}
        for name, found in tensors.items():
            before = _root_mean_square(shared[vector][name].double().numpy()[None])[0]
            bounded[vector][name] = _bounded(found, float(before), factor)
    return bounded


def _bounded(
    sides: list[tuple[float, ...]], before: float, factor: float
) -> list[tuple[float, ...]]:
    sizes = _root_mean_square(np.array(sides, np.float64))
    moved = sizes[sizes > 0].tolist()
    if not moved:
        return sides
    limit = factor * middle(moved)
    if 2 * len(moved) <= len(sizes):
        # Most say that this tensor did not move: who says otherwise may be one that lies, and does
        # not raise the scale. One that is not calibrated yet waits for a later round.
        limit = min(limit, before)
    elif before:
        limit = min(limit, MAX_LEAP * before)
    bounded = []
    for side, size in zip(sides, sizes.tolist(), strict=True):
        if size > limit:
            side = tuple(value * limit / size for value in side)
        bounded.append(side)
    return bounded


def _root_mean_square(scales: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each row."""
    found: NDArray[np.float64] = np.sqrt(np.square(scales).mean(1))
    return found


def bounded_mean(values: Sequence[float]) -> float:
    """The mean, of values within `MAX_SPREAD` times the median magnitude."""
    # Of 0 nothing is a multiple.
    limit = MAX_SPREAD * middle([abs(value) for value in values]) or math.inf
    return statistics.fmean(min(max(value, -limit), limit) for value in values)
