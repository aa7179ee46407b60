"""Means over seeds, how sure they are, and whether two of them differ."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean with the half width of its interval; with one value nobody knows how wide that is."""

    mean: float
    half: float | None
    count: int

    @property
    def clear(self) -> bool:
        """Of a difference: whether it is more than chance would give."""
        return self.half is not None and abs(self.mean) > self.half


def estimate(values: Sequence[float]) -> Estimate | None:
    """The mean of the values with Student's interval; None without any."""
    count = len(values)
    if not count:
        return None
    mean = statistics.fmean(values)
    if count == 1:
        return Estimate(mean, None, 1)
    error = statistics.stdev(values) / math.sqrt(count)
    return Estimate(mean, quantile(count - 1) * error, count)


def difference(a: Sequence[float], b: Sequence[float]) -> Estimate | None:
    """Mean of `a` less mean of `b`; Welch's interval, as seeds need not scatter alike."""
    if not a or not b:
        return None
    mean = statistics.fmean(a) - statistics.fmean(b)
    count = min(len(a), len(b))
    if count == 1:
        return Estimate(mean, None, 1)
    parts = [statistics.variance(each) / len(each) for each in (a, b)]
    total = sum(parts)
    if total == 0:
        return Estimate(mean, 0.0, count)
    weights = [part**2 / (len(each) - 1) for part, each in zip(parts, (a, b), strict=True)]
    return Estimate(mean, quantile(total**2 / sum(weights)) * math.sqrt(total), count)


def quantile(freedom: float) -> float:
    """How many standard errors the interval reaches to either side: 4.30 for three seeds."""
    from scipy.special import stdtrit  # slow to import

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
