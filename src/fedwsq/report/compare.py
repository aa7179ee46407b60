"""Runs side by side: accuracy and bytes over seeds, and what must not be compared."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from fedwsq.core.errors import ConfigError, did_you_mean
from fedwsq.federation.record import RoundRecord
from fedwsq.report.estimate import Estimate, difference, estimate
from fedwsq.report.groups import Group, differing, group_runs, one_a_seed
from fedwsq.runs.reading import Reading

MOVING = 0.9  # how much of the moving average is kept from round to round
PLATEAU = 10  # the last evaluations, whose mean is what a run came to


@dataclass(frozen=True)
class Target:
    """An accuracy to reach and hold; `group` is whose, if it is one's."""

    accuracy: float
    group: Group | None = None


@dataclass(frozen=True)
class Reached:
    """The bytes, both ways, until the target was reached for good; of the runs that did."""

    bytes: Estimate | None
    runs: int
    of: int


@dataclass(frozen=True)
class Line:
    """One group. Accuracies are from 0 to 1, bytes are means over seeds."""

    group: Group
    last: Estimate | None
    smoothed: Estimate | None
    best: Estimate | None
    behind: Estimate | None  # smoothed, less that of the best group; None for the best itself
    uplink_bytes: float
    downlink_bytes: float
    reached: Reached
    times_fewer: float | None  # bytes of the target's whole run over bytes to reach it
    seconds: float

    @property
    def total_bytes(self) -> float:
        return self.uplink_bytes + self.downlink_bytes


@dataclass(frozen=True)
class Comparison:
    """Groups by smoothed accuracy, the best first."""

    lines: tuple[Line, ...]
    target: Target
    flags: tuple[str, ...]  # why some of it should not be compared
    left_out: tuple[str, ...]  # runs that are not in it, and why


def compare(runs: Iterable[Reading], target: str = "", rounds: int | None = None) -> Comparison:
    """Finished runs by group; with `rounds`, all that got so far, as they were then.

    `target` is an accuracy or the label of a group; by default the group that came to least.
    """
    found = list(runs)
    if rounds is not None:
        _require_rounds(found, rounds)
    taken = []
    for run in found:
        compared = _as_of(run, rounds)
        if compared is not None:
            taken.append(compared)
    left_out = _left_out(found, taken, rounds)
    taken, repeated = one_a_seed(taken)
    left_out += [f"{text}, and is left out" for text in repeated]
    groups = group_runs(taken)
    if not groups:
        raise ConfigError(f"none of {len(found)} runs can be compared: {'; '.join(left_out)}")

    goal = _target(groups, target)
    best, *others = sorted(
        [_line(group, goal) for group in groups],
        key=_by_accuracy,
        reverse=True,
    )
    lines = [best]
    for line in others:
        lines.append(replace(line, behind=_behind(line, best)))
    return Comparison(tuple(lines), goal, tuple(flags(groups)), tuple(left_out))


def smooth(rows: Sequence[RoundRecord]) -> list[float | None]:
    """The moving average of accuracy after each row, of 0.9 a round; None where none was measured.

    Rows have it of 0.9 an evaluation, which is the same where every round is evaluated. Where only
    each third is, that would look back three times as many rounds: here an accuracy counts for all
    rounds since the one before it.
    """
    evaluated = [row for row in rows if row.accuracy is not None]
    steps = [after.round - before.round for before, after in pairwise(evaluated)]
    if all(step == 1 for step in steps):
        return [row.accuracy_ema for row in rows]

    found: list[float | None] = []
    average: float | None = None
    last = 0
    for row in rows:
        if row.accuracy is None:
            found.append(None)
            continue
        kept = MOVING ** (row.round - last)
        average = row.accuracy if average is None else kept * average + (1 - kept) * row.accuracy
        last = row.round
        found.append(average)
    return found


def smoothed(run: Reading) -> float | None:
    """The moving average after the last evaluation: what the paper reports."""
    values = [value for value in smooth(run.rows) if value is not None]
    return values[-1] if values else None


def accuracies(run: Reading) -> list[float]:
    """Of all evaluations, in order."""
    return [row.accuracy for row in run.rows if row.accuracy is not None]


def plateau(run: Reading) -> float | None:
    """What a run came to: the mean of its last evaluations."""
    values = accuracies(run)
    return statistics.fmean(values[-PLATEAU:]) if values else None


def _came_to(group: Group) -> float:
    levels = map(plateau, group.runs)
    known = [level for level in levels if level is not None]
    return statistics.fmean(known) if known else 0.0


def bytes_to(run: Reading, accuracy: float) -> int | None:
    """All bytes until the smoothed accuracy is there and stays; None if it does not."""
    number = held_from(run, accuracy)
    if number is None:
        return None
    return sum(total_bytes(row) for row in run.rows if row.round <= number)


def held_from(run: Reading, accuracy: float) -> int | None:
    """The round in which the smoothed accuracy is there to stay; None if it does not."""
    found: int | None = None
    for row, average in zip(run.rows, smooth(run.rows), strict=True):
        if average is None:
            continue
        if average < accuracy:
            found = None
        elif found is None:
            found = row.round
    return found


def total_bytes(row: RoundRecord) -> int:
    return row.uplink_bytes + row.downlink_bytes


def flags(groups: Sequence[Group]) -> list[str]:
    """What makes a comparison doubtful, in words."""
    runs = [run for group in groups for run in group.runs]
    rounds = {run.name: str(len(run.rows)) for run in runs}
    return [
        *origin_flags(groups),
        *_differ("the number of rounds", rounds),
        *_other_settings(groups),
        *one_a_seed(runs)[1],
    ]


def origin_flags(groups: Sequence[Group]) -> list[str]:
    """Those of them that hold whatever was meant to differ: where and from what runs were made."""
    runs = [run for group in groups for run in group.runs]
    said = []
    for fact in ("precision", "commit", "fedwsq", "torch", "cpu", "device"):
        where = {run.name: str(getattr(run.facts, fact)) for run in runs}
        said += _differ(fact, where)
    dirty = [run.name for run in runs if run.facts.commit.endswith("-dirty")]
    if dirty:
        said.append(f"made from a checkout with changes that no commit has: {_some(dirty)}")
    seeds = {group.label: ", ".join(map(str, group.seeds)) for group in _known(groups)}
    return [
        *said,
        *_differ("the set of seeds", seeds),
        *_other_data(groups),
        *_lost_rows(runs),
    ]


def _other_settings(groups: Sequence[Group]) -> list[str]:
    """Groups that have other settings of what is learned rather than how."""
    groups = _known(groups)
    said = []
    for key in differing([group.settings for group in groups]):
        if key.startswith(("data.", "metric.")):
            values = {group.label: str(group.settings.get(key)) for group in groups}
            said += _differ(key, values)
    return said


def _known(groups: Sequence[Group]) -> list[Group]:
    """Of one whose settings are lost nothing is known: that is said elsewhere, once."""
    return [group for group in groups if group.settings]


def _lost_rows(runs: Sequence[Reading]) -> list[str]:
    said = []
    for run in runs:
        if run.lost_rows:
            rows = "1 row" if run.lost_rows == 1 else f"{run.lost_rows} rows"
            said.append(f"{run.name} lacks {rows}, so its bytes and seconds are too low")
    return said


def _other_data(groups: Sequence[Group]) -> list[str]:
    """Runs that say the same of their data, and had other files."""
    digests: dict[str, dict[str, str]] = {}
    for group in groups:
        for run in group.runs:
            said = {key: x for key, x in group.settings.items() if key.startswith("data.")}
            digests.setdefault(f"{run.seed} {said}", {})[run.name] = run.facts.data
    return [text for where in digests.values() for text in _differ("the data itself", where)]


def _differ(what: str, where: Mapping[str, str]) -> list[str]:
    """`precision differs: bfloat16 (a, b), float32 (c)`; nothing if all say the same."""
    by_value: dict[str, list[str]] = {}
    for name, value in where.items():
        by_value.setdefault(value, []).append(name)
    if len(by_value) < 2:
        return []
    parts = [f"{value or 'unknown'} ({_some(names)})" for value, names in by_value.items()]
    return [f"{what} differs: {', '.join(parts)}"]


def _some(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def _require_rounds(runs: Sequence[Reading], rounds: int) -> None:
    if rounds < 1:
        raise ConfigError(
            f"--rounds is {rounds}, must be at least 1; left out, runs are compared as they ended"
        )
    most = max(map(_done, runs), default=0)
    if 0 < most < rounds:
        raise ConfigError(
            f"--rounds is {rounds}, and none of {len(runs)} runs got so far; the longest has "
            f"{most} rounds"
        )


def _done(run: Reading) -> int:
    return run.rows[-1].round if run.rows else 0


def _as_of(run: Reading, rounds: int | None) -> Reading | None:
    """The run as it is compared; None if it has not got that far."""
    if rounds is None:
        return run if run.state == "finished" else None
    if not run.settings or _done(run) < rounds:
        return None
    rows = tuple(row for row in run.rows if row.round <= rounds)
    # However long they were meant to be, they are compared as if this was all.
    return replace(run, rows=rows, settings={**run.settings, "rounds": rounds})


def _left_out(found: Sequence[Reading], taken: Sequence[Reading], rounds: int | None) -> list[str]:
    folders = {run.folder for run in taken}
    said = []
    for run in found:
        if run.folder in folders:
            continue
        how_far = f"{_done(run)} of {run.rounds} rounds"
        if rounds is not None:
            how_far += f", and {rounds} were asked for"
        why = run.error or "; ".join(run.problems) or how_far
        said.append(f"{run.name} is {run.state}: {why}")
    return said


def _target(groups: Sequence[Group], wanted: str) -> Target:
    """What `--target` means: an accuracy, a group, or nothing said."""
    by_label = {group.label: group for group in groups}
    group = by_label.get(wanted)
    if not wanted:
        group = min(groups, key=_came_to)
    if group is not None:
        return Target(_came_to(group), group)
    try:
        accuracy = float(wanted)
    except ValueError:
        offer = f"{', '.join(by_label)}{did_you_mean(wanted, by_label)}"
        raise ConfigError(
            f"--target is {wanted!r}; it can be an accuracy such as 0.6, or one of {offer}"
        ) from None
    # Tables say percent, and so would many; other metrics have scales of their own.
    shares = all(run.metric == "accuracy" for group in groups for run in group.runs)
    if shares and not 0 <= accuracy <= 1:
        raise ConfigError(f"--target is {wanted}; accuracies are from 0 to 1, such as 0.6")
    return Target(accuracy)


def _line(group: Group, target: Target) -> Line:
    last = []
    best = []
    for run in group.runs:
        values = accuracies(run)
        if values:
            last.append(values[-1])
            best.append(max(values))
    reached = _reached(group, target)
    return Line(
        group,
        last=estimate(last),
        smoothed=estimate(_smoothed(group)),
        best=estimate(best),
        behind=None,
        uplink_bytes=_mean_total(group, lambda row: row.uplink_bytes),
        downlink_bytes=_mean_total(group, lambda row: row.downlink_bytes),
        reached=reached,
        times_fewer=_times_fewer(reached, target),
        seconds=_mean_total(group, lambda row: row.seconds),
    )


def _reached(group: Group, target: Target) -> Reached:
    costs = [bytes_to(run, target.accuracy) for run in group.runs]
    known = [cost for cost in costs if cost is not None]
    return Reached(estimate(known), len(known), len(costs))


def _times_fewer(reached: Reached, target: Target) -> float | None:
    # Of some seeds only, it would be the lucky ones' factor.
    if reached.bytes is None or reached.runs < reached.of or target.group is None:
        return None
    whole = _mean_total(target.group, total_bytes)
    return whole / max(1.0, reached.bytes.mean)


def _mean_total(group: Group, quantity: Callable[[RoundRecord], float]) -> float:
    """Added up over a run's rounds; the mean over its seeds."""
    return statistics.fmean(sum(map(quantity, run.rows)) for run in group.runs)


def _smoothed(group: Group) -> list[float]:
    values = map(smoothed, group.runs)
    return [value for value in values if value is not None]


def _behind(line: Line, best: Line) -> Estimate | None:
    return difference(_smoothed(line.group), _smoothed(best.group))


def _by_accuracy(line: Line) -> float:
    return line.smoothed.mean if line.smoothed else float("-inf")
