"""What pictures draw: quantities of a run round by round, and their mean and band over seeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fedwsq.federation.record import RoundRecord
from fedwsq.report.compare import smooth, total_bytes

Values: TypeAlias = npt.NDArray[np.float64]
Columns: TypeAlias = Mapping[str, Values]  # one value a row; nan is what was not measured
Quantity: TypeAlias = Callable[[RoundRecord], float | None]

# The first points of a line lie far apart on a logarithmic axis, so all of them are drawn.
WHOLE_START = 50


def loss(row: RoundRecord) -> float | None:
    return row.validation_loss if row.test_loss is None else row.test_loss


QUANTITIES: Mapping[str, Quantity] = {
    "accuracy": lambda row: row.accuracy,
    "loss": loss,
    "train_loss": lambda row: row.train_loss,
    "bits": lambda row: row.bits,
    "quantization_error": lambda row: row.quantization_error,
    "scale_ratio": lambda row: row.scale_ratio,
    "client_accuracy": lambda row: row.client_accuracy,
    "client_accuracy_worst_decile": lambda row: row.client_accuracy_worst_decile,
}
# Added up from the first round on.
TOTALS: Mapping[str, Quantity] = {
    "bytes": total_bytes,
    "seconds": lambda row: row.simulated_seconds,
    "failures": lambda row: row.failed,
}


def columns(rows: Sequence[RoundRecord]) -> Columns:
    """The rounds of one run as columns, in the order of the rows."""
    found = {"round": np.array([row.round for row in rows], np.float64)}
    found["smoothed"] = np.array([_number(value) for value in smooth(rows)], np.float64)
    for name, quantity in QUANTITIES.items():
        found[name] = np.array([_number(quantity(row)) for row in rows], np.float64)
    for name, quantity in TOTALS.items():
        # One round without a value, and nobody knows the sums that follow.
        found[name] = np.array(list(accumulate(_number(quantity(row)) for row in rows)))
    return found


@dataclass(frozen=True)
class Curve:
    """One quantity against another: the mean over seeds, the lowest and the highest of them."""

    rounds: Values
    x: Values
    mean: Values
    low: Values
    high: Values
    seeds: Values  # how many got this far

    def __len__(self) -> int:
        return len(self.rounds)

    def take(self, which: npt.NDArray[np.int64]) -> "Curve":
        parts = (self.rounds, self.x, self.mean, self.low, self.high, self.seeds)
        return Curve(*(part[which] for part in parts))

    def thinned(self, most: int) -> "Curve":
        """At most about `most` points: the first ones, then evenly spread ones, and the last."""
        count = len(self)
        if count <= most:
            return self
        spread = np.linspace(0, count - 1, most - WHOLE_START).round().astype(np.int64)
        return self.take(np.union1d(np.arange(WHOLE_START), spread))


def curve(runs: Sequence[Columns], x: str, y: str) -> Curve:
    """`y` against `x`, round by round, over runs that differ in nothing but their seed.

    A round that only some seeds have reached is the mean of those.
    """
    if not runs:
        return Curve(*[np.zeros(0)] * 6)
    rounds = np.unique(np.concatenate([run["round"] for run in runs]))
    ys = np.full((len(runs), len(rounds)), np.nan)
    xs = np.full_like(ys, np.nan)
    for number, run in enumerate(runs):
        at = np.searchsorted(rounds, run["round"])
        ys[number, at] = run[y]
        xs[number, at] = run[x]
    xs[~np.isfinite(ys)] = np.nan
    ys[~np.isfinite(xs)] = np.nan

    known = np.isfinite(ys).any(axis=0)
    ys = ys[:, known]
    xs = xs[:, known]
    return Curve(
        rounds=rounds[known],
        x=np.nanmean(xs, axis=0),
        mean=np.nanmean(ys, axis=0),
        low=np.nanmin(ys, axis=0),
        high=np.nanmax(ys, axis=0),
        seeds=np.isfinite(ys).sum(axis=0).astype(np.float64),
    )


def _number(value: float | None) -> float:
    return np.nan if value is None else float(value)
