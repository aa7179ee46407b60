"""What `fedwsq analyze` left in a run directory; a file that says anything else is refused."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from fedwsq.core.checked import checked, fits
from fedwsq.core.text import read_text

MAX_BYTES = 2**24
MOST_ENTRIES = 10_000  # rounds, layers or codecs in one file
MOST_POINTS = 101  # of a landscape, each way
COORDINATES = ("raw", "effective", "relative")
ROUND = re.compile(r"[1-9][0-9]{0,8}")
T = TypeVar("T")


@dataclass(frozen=True)
class Top:
    """The largest eigenvalues in some coordinates, largest first."""

    eigenvalues: list[float]
    residuals: list[float]
    converged: bool


@dataclass(frozen=True)
class Hessian:
    """How sharp the loss is, over so many examples."""

    examples: int
    tops: Mapping[str, Top]  # by coordinates


@dataclass(frozen=True)
class Landscape:
    """The loss on a grid: `loss[a][b]` at steps a and b along the two directions."""

    examples: int
    data: str
    steps: list[float]
    loss: list[list[float | None]]  # None: not a finite number

    def __post_init__(self) -> None:
        points = len(self.steps)
        if not 2 <= points <= MOST_POINTS:
            raise ValueError(f"a landscape of {points} points a side, must be 2 to {MOST_POINTS}")
        if any(after <= before for before, after in pairwise(self.steps)):
            raise ValueError("its steps do not ascend")
        if len(self.loss) != points or any(len(row) != points for row in self.loss):
            raise ValueError(f"its losses are not {points} rows of {points}")


@dataclass(frozen=True)
class Updates:
    """Of one kept round."""

    kurtosis: float


@dataclass(frozen=True)
class EqualBytes:
    """What codecs lose at as many bits a parameter, scales included."""

    bits: float
    errors: dict[str, float]


@dataclass(frozen=True)
class AllUpdates:
    """Of all kept rounds."""

    rounds: Mapping[int, Updates]
    equal_bytes: Mapping[str, EqualBytes]  # of the last round, by DANUQ's bits


@dataclass(frozen=True)
class Drift:
    """Of every client of a round, against the mean update."""

    cosine: list[float]
    norm: list[float]

    def __post_init__(self) -> None:
        require_some(self.cosine, self.norm)


@dataclass(frozen=True)
class Shares:
    """Of a layer's squared gradient, by client."""

    weight: list[float]
    ones: list[float]

    def __post_init__(self) -> None:
        require_some(self.weight, self.ones)


@dataclass(frozen=True)
class Scale:
    """Of one round: the expected error is that on normal data, None where nobody can tell."""

    median: float
    expected_error: float | None


@dataclass(frozen=True)
class Scales:
    """Of all rounds with a shared scale, and the error of the code with the right one."""

    right_scale_error: float | None
    rounds: Mapping[int, Scale]


@dataclass(frozen=True)
class Findings:
    """All that was found in one run; None is what nobody has looked at."""

    hessian: Hessian | None
    landscape: Landscape | None
    updates: AllUpdates | None
    drift: Mapping[int, Drift] | None
    gradients: Mapping[str, Shares] | None  # by layer
    scales: Scales | None
    problems: tuple[str, ...]


def require_some(*lists: list[float]) -> None:
    if not all(lists):
        raise ValueError("a list of no clients where some were expected")


def read_findings(run: Path) -> Findings:
    """What is there, as far as it can be read."""
    problems: list[str] = []

    def read(name: str, parse: Callable[[Mapping[str, object]], T]) -> T | None:
        path = run / "analysis" / f"{name}.json"
        if not path.exists():
            return None
        try:
            return parse(_table(json.loads(read_text(path, MAX_BYTES))))
        except (OSError, ValueError, RecursionError) as error:
            problems.append(f"analysis/{name}.json cannot be read: {error}")
            return None

    return Findings(
        hessian=read("hessian", _hessian),
        landscape=read("landscape", lambda found: checked(Landscape, found)),
        updates=read("updates", _updates),
        drift=read("drift", _drift),
        gradients=read("gradients", _gradients),
        scales=read("scales", _scales),
        problems=tuple(problems),  # last, when all of them are known
    )


def _hessian(found: Mapping[str, object]) -> Hessian:
    tops = {name: checked(Top, found.get(name)) for name in COORDINATES}
    examples = found.get("examples")
    if not isinstance(examples, int):
        raise ValueError("it does not say how many examples it is of")
    return Hessian(examples, tops)


def _updates(found: Mapping[str, object]) -> AllUpdates:
    tables = _table(found.get("rounds"))
    rounds = _by_round(Updates, tables)
    equal: dict[str, EqualBytes] = {}
    if rounds:
        last = _table(tables[str(max(rounds))])
        # Those of an older version had none.
        for bits, errors in _table(last.get("equal_bytes", {})).items():
            equal[bits] = checked(EqualBytes, errors)
    return AllUpdates(rounds, equal)


def _drift(found: Mapping[str, object]) -> Mapping[int, Drift]:
    tables = _table(found.get("rounds"))
    return _by_round(Drift, {number: _table(kept).get("all") for number, kept in tables.items()})


def _gradients(found: Mapping[str, object]) -> Mapping[str, Shares]:
    return {name: checked(Shares, each) for name, each in _table(found.get("layers")).items()}


def _scales(found: Mapping[str, object]) -> Scales:
    right = found.get("right_scale_error")
    if not fits(float | None, right):
        raise ValueError("right_scale_error is not a number")
    assert right is None or isinstance(right, int | float)
    return Scales(right, _by_round(Scale, _table(found.get("rounds"))))


def _table(found: object) -> Mapping[str, object]:
    if not isinstance(found, dict):
        raise ValueError(f"{type(found).__name__} where a table was expected")
    if len(found) > MOST_ENTRIES:
        raise ValueError(f"a table of {len(found):,} entries, must have {MOST_ENTRIES:,} at most")
    return found


def _by_round(kind: type[T], tables: Mapping[str, object]) -> dict[int, T]:
    """The rounds of an analysis in ascending order."""
    found = {}
    for word, table in tables.items():
        if not ROUND.fullmatch(word):
            raise ValueError(f"{word[:20]!r} is not the number of a round")
        found[int(word)] = checked(kind, table)
    return dict(sorted(found.items()))
