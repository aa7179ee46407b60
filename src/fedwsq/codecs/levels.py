"""DANUQ's levels for N(0, 1), of four kinds, and what any level set costs."""

import functools
import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from reprlib import repr as brief
from statistics import NormalDist
from typing import NamedTuple

from fedwsq.codecs.rates import Rates
from fedwsq.core.errors import ConfigError, did_you_mean
from fedwsq.core.ranges import ABOVE_0_FINITE, require

# The published FedWSQ code's constants (21 July 2025). Its 4-bit set is not the minimizer of the
# paper's own cost.
PAPER: dict[int, tuple[float, ...]] = {
    1: (-0.7979, 0.7979),
    2: (-1.224, 0.0, 0.7646, 1.7242),
    4: (
        *(-2.6536, -1.9735, -1.508, -1.149, -0.8337, -0.5439, -0.2686, 0.0),
        *(0.2303, 0.4648, 0.7081, 0.9663, 1.2481, 1.5676, 1.9679, 2.6488),
    ),
}
LEVEL_KINDS = ("paper", "optimal", "lloyd-max", "even")
SOLVED_WIDTHS = range(1, 9)


@functools.cache
def widths(kind: str) -> Rates:
    """The bit widths that have levels of this kind."""
    if kind not in LEVEL_KINDS:
        offer = ", ".join(LEVEL_KINDS)
        hint = did_you_mean(kind, LEVEL_KINDS)
        raise ConfigError(f'danuq has no level kind "{kind}"; it offers {offer}{hint}')
    if kind == "paper":
        return Rates.of(*PAPER)
    return Rates.of(*SOLVED_WIDTHS)


@functools.cache
def levels(bits: int, kind: str = "paper") -> tuple[float, ...]:
    """The 2^bits levels, ascending, for data of unit variance.

    `optimal` minimizes the squared error with one level pinned at 0, 2^(bits-1) - 1 levels below it
    and 2^(bits-1) above; one bit has no zero. `lloyd-max` pins nothing and is symmetric (Max,
    1960). `even` has the same step between all levels, the best one: such codes add up.
    """
    if bits not in widths(kind):
        offer = "1 to 8"
        if kind == "paper":
            offer = '1, 2, 4 (kinds "optimal", "lloyd-max" and "even" offer 1 to 8)'
        raise ConfigError(f'danuq has no {bits}-bit "{kind}" levels; it offers {offer}')
    if kind == "paper":
        return PAPER[bits]
    if kind == "even":
        return even(bits)
    half = 2 ** (bits - 1)
    if kind == "lloyd-max" or bits == 1:
        above = one_side(half, pinned=False)
        return (*mirrored(above), *above)
    below = one_side(half - 1, pinned=True)
    return (*mirrored(below), 0.0, *one_side(half, pinned=True))


def even(bits: int) -> tuple[float, ...]:
    """Levels one step apart around 0; the step is rounded, so that it is the same everywhere."""
    places = [k - (2**bits - 1) / 2 for k in range(2**bits)]
    step = round(best_scale(tuple(places)), 6)
    return tuple(step * place for place in places)


def mirrored(side: Sequence[float]) -> Iterator[float]:
    """Positive levels on the other side of 0, ascending too."""
    return (-q for q in reversed(side))


# What levels cost


def edges(levels: Sequence[float]) -> tuple[float, ...]:
    """Where the nearest level changes: the midpoints, one fewer than the levels."""
    return tuple((a + b) / 2 for a, b in pairwise(levels))


def normal_error(levels: Sequence[float], scale_ratio: float = 1.0) -> float:
    """Expected squared error on normal data in units of the variance.

    The true std is `scale_ratio` times the scale in use.
    """
    require(ABOVE_0_FINITE, scale_ratio=scale_ratio)
    levels = _finite(levels)
    # Dividing x and the levels by the ratio leaves x ~ N(0, 1); E(x - Q)^2 = 1 - 2 E[x Q] + E[Q^2].
    scaled = [level / scale_ratio for level in levels]
    found = zip(scaled, cells(scaled), strict=True)
    return 1 + math.fsum(q * (q * cell.mass - 2 * cell.moment) for q, cell in found)


@functools.cache
def best_scale(levels: tuple[float, ...]) -> float:
    """The multiple of the std that loses least when these levels, times it, code N(0, 1)."""

    def lost(scale: float) -> float:
        # True std 1 and scale s is the same as true std 1 / s and scale 1.
        return normal_error(levels, 1 / scale)

    # By golden section: the interval shrinks by the same ratio at every step.
    ratio = (math.sqrt(5) - 1) / 2
    low = 1e-3
    high = 10.0
    while high - low > 1e-10:
        a = high - ratio * (high - low)
        b = low + ratio * (high - low)
        if lost(a) < lost(b):
            high = b
        else:
            low = a
    return (low + high) / 2


def normal_bias(levels: Sequence[float]) -> float:
    """E[Q(x)] for x ~ N(0, 1)."""
    levels = _finite(levels)
    return math.fsum(q * cell.mass for q, cell in zip(levels, cells(levels), strict=True))


def normal_entropy(levels: Sequence[float]) -> float:
    """Bits that an ideal entropy coder would spend on one code of N(0, 1) data."""
    masses = [cell.mass for cell in cells(_finite(levels))]
    return -math.fsum(mass * math.log2(mass) for mass in masses if mass > 0)


def _finite(levels: Sequence[float]) -> Sequence[float]:
    """Levels out of a program, if they are any."""
    try:
        known = bool(len(levels)) and all(map(math.isfinite, levels))
    except TypeError:
        known = False
    if not known:
        raise ConfigError(
            f"levels are {brief(levels)}, must be a list of finite numbers, one at least"
        )
    return levels


class Cell(NamedTuple):
    """The part of N(0, 1) between two edges: its probability, and its integral of x."""

    mass: float
    moment: float


def cells(levels: Sequence[float]) -> Iterator[Cell]:
    """The cell of each level."""
    bounds = (-math.inf, *edges(levels), math.inf)
    return (cell(a, b) for a, b in pairwise(bounds))


def cell(a: float, b: float) -> Cell:
    """The cell from `a` to `b`, to full relative accuracy in either tail."""
    if a + b < 0:  # The mirror image, so that no two numbers near 1 are subtracted.
        mass, moment = cell(-b, -a)
        return Cell(mass, -moment)
    mass = (math.erfc(a / math.sqrt(2)) - math.erfc(b / math.sqrt(2))) / 2
    if math.isinf(a):
        return Cell(mass, 0.0)
    # density(a) - density(b), without the loss of digits where both are nearly the same.
    return Cell(mass, -density(a) * math.expm1((a - b) * (a + b) / 2))


def density(x: float) -> float:
    """The density of N(0, 1)."""
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


# The solver


def one_side(count: int, *, pinned: bool) -> list[float]:
    """The `count` positive levels of least error on x > 0.

    They lie beside a level at 0 if `pinned`, else from an edge at 0 on. Stationarity: each level is
    the centroid of its cell. Lloyd's iteration comes near, Newton's finishes.
    """
    # The best density of levels is the cube root of the data's (Panter and Dite, 1951): N(0, 3).
    start = NormalDist(0, math.sqrt(3))
    shift = 0.0 if pinned else -0.5
    shares = [0.5 + 0.5 * (r + shift) / (count + 0.5 + shift) for r in range(1, count + 1)]
    q = [start.inv_cdf(share) for share in shares]
    for _ in range(20):
        q = [centroid.value for centroid in centroids(q, pinned)]
    for _ in range(20):
        step = newton_step(q, centroids(q, pinned))
        q = [level + change for level, change in zip(q, step, strict=True)]
        if max(map(abs, step)) < 1e-12:  # Convergence is quadratic: what is left is rounding.
            break
    return q


class Centroid(NamedTuple):
    """The mean of a level's cell, and how fast it follows the level below and the level above."""

    value: float
    by_lower: float
    by_upper: float


def centroids(q: Sequence[float], pinned: bool) -> list[Centroid]:
    """The centroid of each positive level's cell."""
    lowest = q[0] / 2 if pinned else 0.0
    found = []
    for a, b in pairwise([lowest, *edges(q), math.inf]):
        mass, moment = cell(a, b)
        value = moment / mass
        # An edge moves by half of what either of its levels moves; at 0 and infinity it does not.
        by_lower = 0.0
        if a > 0:
            by_lower = density(a) * (value - a) / mass / 2
        by_upper = 0.0
        if b < math.inf:
            by_upper = density(b) * (b - value) / mass / 2
        found.append(Centroid(value, by_lower, by_upper))
    return found


def newton_step(q: Sequence[float], targets: Sequence[Centroid]) -> list[float]:
    """The change that makes each level its centroid, to first order.

    A tridiagonal system, by elimination: centroid r follows level r at `by_lower + by_upper`. Plain
    floats, so that the levels never depend on a BLAS.
    """
    # change[r] = known + ratio * change[r + 1]; before the first level nothing moves.
    ratio = [0.0]
    known = [0.0]
    for level, (value, by_lower, by_upper) in zip(q, targets, strict=True):
        pivot = 1 - by_lower - by_upper - by_lower * ratio[-1]
        known.append((value - level + by_lower * known[-1]) / pivot)
        ratio.append(by_upper / pivot)

    # Back from the last level, beyond which nothing moves either.
    change = [0.0]
    for k, r in zip(reversed(known[1:]), reversed(ratio[1:]), strict=True):
        change.append(k + r * change[-1])
    return change[:0:-1]
