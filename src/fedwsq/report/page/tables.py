"""What the page says in tables: groups side by side, classes, failures, settings."""

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np

from fedwsq.federation.record import RoundRecord
from fedwsq.plan.read import Settings
from fedwsq.report.compare import bytes_to, smoothed, total_bytes
from fedwsq.report.groups import Group, differing
from fedwsq.report.looks import Look
from fedwsq.report.page.drawings import Table
from fedwsq.report.page.words import NOTHING, score, score_range, seconds, text
from fedwsq.runs.lines import human_bytes, times_less
from fedwsq.runs.reading import Reading

MOST_CLASSES = 20  # that have room for a column each
MOST_REASONS = 12
MOST_COLUMNS = 30  # of settings side by side


class Entry(NamedTuple):
    """A group as legends and tables show it."""

    number: int
    label: str
    seeds: str
    look: Look


class Cell(NamedTuple):
    """A number, what it is about, and whether it is the best of its column."""

    text: str
    more: str = ""
    best: bool = False


class Summary(NamedTuple):
    """One row of cells a group."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]


class Classes(NamedTuple):
    """Accuracy of each class, a row a group."""

    caption: str
    head: Sequence[str]
    rows: Sequence[tuple[Entry, Sequence[float]]]


class Measure(NamedTuple):
    """One column of the summary: a number of each run, and how to show it."""

    title: str
    of: Callable[[Reading], float | None]
    show: Callable[[Sequence[float]], Cell]
    best: Callable[[Sequence[float]], float] | None = None


def last_score(run: Reading) -> float | None:
    return next((row.accuracy for row in reversed(run.rows) if row.accuracy is not None), None)


def best_score(run: Reading) -> float | None:
    return max((row.accuracy for row in run.rows if row.accuracy is not None), default=None)


def added(quantity: Callable[[RoundRecord], float | None]) -> Callable[[Reading], float | None]:
    """The sum over a run's rows; None where a row does not know."""

    def total(run: Reading) -> float | None:
        values = [quantity(row) for row in run.rows]
        known = [value for value in values if value is not None]
        return sum(known) if known and len(known) == len(values) else None

    return total


def total_factor(run: Reading) -> float | None:
    """How many times less was sent than in float32."""
    sent = sum(total_bytes(row) for row in run.rows)
    whole = sum(row.uplink_bytes_float32 + row.downlink_bytes_float32 for row in run.rows)
    return whole / sent if sent else None


def measures(metric: str, target: float | None) -> list[Measure]:
    scores = lambda values: Cell(score(fmean(values), metric), score_range(values, metric))
    sizes = lambda values: Cell(human_bytes(fmean(values)))
    times = lambda values: Cell(seconds(fmean(values)))
    factor = lambda values: Cell(times_less(fmean(values)))
    found = [
        Measure("last", last_score, scores, max),
        Measure("smoothed", smoothed, scores, max),
        Measure("best", best_score, scores, max),
        Measure("up", added(lambda row: row.uplink_bytes), sizes),
        Measure("down", added(lambda row: row.downlink_bytes), sizes),
        Measure("total", added(total_bytes), sizes, min),
        Measure("than float32", total_factor, factor),
    ]
    if target is not None:
        reached = lambda run: bytes_to(run, target)
        found.append(Measure(f"to {score(target, metric)}", reached, sizes, min))
    return [
        *found,
        Measure("simulated", added(lambda row: row.simulated_seconds), times, min),
        Measure("took", added(lambda row: row.seconds), times),
    ]


def usual_target(groups: Sequence[Group]) -> float | None:
    """The smoothed accuracy of the run that ended lowest: one that all of them reach and hold.

    Groups that are not at their end may come to more; only where none is, they count.
    """
    ended = [group for group in groups if at_end(group)]
    ends = [smoothed(run) for group in ended or groups for run in group.runs]
    return min((end for end in ends if end is not None), default=None)


def side_by_side(groups: Sequence[Group], metric: str) -> Summary:
    """The mean over the seeds of each group, and how far they are apart."""
    target = usual_target(groups)
    chosen = []
    found = []
    for measure in measures(metric, target):
        if any(_known(measure, group) for group in groups):
            chosen.append(measure)
            found.append(_column(measure, groups))
    rows = [list(cells) for cells in zip(*found, strict=True)]
    caption = (
        f"Means over seeds, and the lowest and highest of them. {metric.capitalize()} of the last "
        "round, of its moving average, and of the best round; bytes up, down and in all"
    )
    if target is not None and any(measure.title.startswith("to ") for measure in chosen):
        caption += (
            f", and in all until the average stayed at {score(target, metric)}, which is where "
            "the run ended that ended lowest"
        )
    caption += "."
    return Summary(caption, ["", *(measure.title for measure in chosen)], rows)


def _known(measure: Measure, group: Group) -> list[float]:
    values = [measure.of(run) for run in group.runs]
    return [value for value in values if value is not None]


def _column(measure: Measure, groups: Sequence[Group]) -> list[Cell]:
    """A cell a group; only groups whose runs are all at their end can be the best."""
    values = [_known(measure, group) for group in groups]
    means = [fmean(each) if each else None for each in values]
    ended = [
        mean
        for mean, each, group in zip(means, values, groups, strict=True)
        if mean is not None and len(each) == len(group.runs) and at_end(group)
    ]
    best = measure.best(ended) if measure.best and len(ended) > 1 else None
    cells = []
    for mean, each, group in zip(means, values, groups, strict=True):
        if mean is None:
            cells.append(Cell(NOTHING))
            continue
        cell = measure.show(each)._replace(best=mean == best)
        if len(each) < len(group.runs):
            cell = cell._replace(more=f"{len(each)} of {len(group.runs)} seeds")
        cells.append(cell)
    return cells


def at_end(group: Group) -> bool:
    return all(run.state == "finished" for run in group.runs)


def by_class(entries: Sequence[Entry], groups: Sequence[Group]) -> Classes | None:
    """The last scored round of each run, where classes are few enough for a column each."""
    rows = []
    for entry, group in zip(entries, groups, strict=True):
        last = [_last_classes(run) for run in group.runs]
        known = [each for each in last if each]
        if known and len({len(each) for each in known}) == 1:
            rows.append((entry, [float(share) for share in np.mean(known, axis=0)]))
    widths = {len(shares) for _, shares in rows}
    if len(widths) != 1 or max(widths) > MOST_CLASSES:
        return None
    (width,) = widths
    head = class_names(groups, width)
    caption = "Accuracy on each class after the last scored round, in percent, mean over seeds."
    return Classes(caption, head, rows)


def class_names(groups: Sequence[Group], count: int) -> list[str]:
    """As all runs call them; numbers where they differ, or have no names."""
    names = {run.classes for group in groups for run in group.runs}
    common = names.pop() if len(names) == 1 else ()
    if len(common) != count:
        return [str(number) for number in range(count)]
    return [text(name) for name in common]


def _last_classes(run: Reading) -> list[float]:
    return next((row.class_accuracy for row in reversed(run.rows) if row.class_accuracy), [])


def reasons(groups: Sequence[Group]) -> Table | None:
    """Why clients failed, the most frequent first."""
    counted: Counter[tuple[str, str]] = Counter()
    for group in groups:
        for run in group.runs:
            for row in run.rows:
                counted.update((group.label, text(why)) for why in row.failures.values())
    if not counted:
        return None
    rows = [
        [why, label, f"{number:,}"] for (label, why), number in counted.most_common(MOST_REASONS)
    ]
    rest = sum(counted.values()) - sum(number for _, number in counted.most_common(MOST_REASONS))
    if rest:
        rows.append(["other reasons", "", f"{rest:,}"])
    return Table("Why clients failed", ["reason", "in", "times"], rows)


def differences(groups: Sequence[Group]) -> Table:
    """The settings in which groups differ, groups across."""
    shown = groups[:MOST_COLUMNS]
    keys = differing([group.settings for group in groups if group.settings])
    rows = [[text(key), *(_setting(group.settings, key) for group in shown)] for key in keys]
    caption = "What differs between them; everything else is the same."
    if len(shown) < len(groups):
        caption += f" Of {len(groups)} groups the first {len(shown)} are shown."
    return Table(caption, ["", *(group.label for group in shown)], rows)


def shared(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """The settings that all groups have in common."""
    known = [group.settings for group in groups if group.settings]
    if not known:
        return []
    apart = set(differing(known))
    return [(text(key), text(value)) for key, value in known[0].items() if key not in apart]


def _setting(settings: Settings, key: str) -> str:
    return text(settings[key]) if key in settings else NOTHING
