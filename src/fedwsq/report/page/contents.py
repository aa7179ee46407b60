"""What the page says: all words and numbers, ready for a template that escapes them."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from fedwsq.core.version import VERSION
from fedwsq.report.compare import bytes_to, flags, smoothed, total_bytes
from fedwsq.report.curves import columns
from fedwsq.report.groups import Group, group_runs
from fedwsq.report.looks import Look, look
from fedwsq.report.page.charts import Line, points_each
from fedwsq.report.page.command import repeat_command
from fedwsq.report.page.drawings import Chart, Table, accuracy_charts, panel_charts
from fedwsq.report.page.findings import read_findings
from fedwsq.report.page.insights import Found, Insights, insights
from fedwsq.report.page.tables import (
    Classes,
    Entry,
    Summary,
    added,
    at_end,
    by_class,
    differences,
    reasons,
    shared,
    side_by_side,
    usual_target,
)
from fedwsq.report.page.words import count, score, text
from fedwsq.runs.lines import human_bytes
from fedwsq.runs.reading import Reading

MOST_NAMES = 3  # in a title


class Fact(NamedTuple):
    """A number to take away."""

    what: str
    value: str
    who: str


class RunEntry(NamedTuple):
    """One run: how far it got, what is wrong with it, and how to repeat it."""

    name: str
    state: str
    progress: str
    label: str
    look: Look
    problems: Sequence[str]
    made: str
    command: str


@dataclass(frozen=True)
class Page:
    """All that the template needs."""

    title: str
    setting: str
    counted: str
    notices: Sequence[str]
    doubts: Sequence[str]
    facts: Sequence[Fact]
    metric: str
    groups: Sequence[Entry]
    views: Sequence[Chart]
    summary: Summary
    panels: Sequence[Chart]
    absent: str
    classes: Classes | None
    failures: Table | None
    insights: Insights | None
    differences: Table
    shared: Sequence[tuple[str, str]]
    runs: Sequence[RunEntry]
    remarks: Sequence[str]


def contents(readings: Sequence[Reading]) -> Page:
    groups = group_runs(readings)
    entries = [_entry(number, group) for number, group in enumerate(groups)]
    lines = [_line(entry, group) for entry, group in zip(entries, groups, strict=True)]
    metric = _metric(readings)
    found = {run.folder: read_findings(run.folder) for run in readings}
    panels, absent = panel_charts(lines)
    return Page(
        title=_title(groups),
        setting=_setting(groups),
        counted=_counted(readings),
        notices=_notices(readings, found),
        doubts=[text(flag) for flag in flags(groups)] if len(readings) > 1 else [],
        facts=_facts(groups, metric),
        metric=metric,
        groups=entries,
        views=accuracy_charts(lines, metric),
        summary=side_by_side(groups, metric),
        panels=panels,
        absent=_listed([title.lower() for title in absent]),
        classes=by_class(entries, groups),
        failures=reasons(groups),
        insights=insights(entries, groups, found),
        differences=differences(groups),
        shared=shared(groups),
        runs=[
            _run(run, entry)
            for entry, group in zip(entries, groups, strict=True)
            for run in group.runs
        ],
        remarks=_remarks(lines),
    )


def _entry(number: int, group: Group) -> Entry:
    seeds = f"seed {group.seeds[0]}" if len(group.seeds) == 1 else f"{len(group.seeds)} seeds"
    states = Counter(run.state for run in group.runs if run.state != "finished")
    for state, number_of in states.items():
        seeds += f", {number_of} {state}" if len(group.runs) > 1 else f", {state}"
    return Entry(number, text(group.label), seeds, look(number))


def _line(entry: Entry, group: Group) -> Line:
    runs = tuple(columns(run.rows) for run in group.runs if run.rows)
    return Line(entry.number, entry.label, entry.look, runs)


def _metric(readings: Sequence[Reading]) -> str:
    """One word for what all runs measure."""
    names = {run.metric for run in readings if run.settings}
    return text(names.pop()) if len(names) == 1 else "accuracy or metric"


def _title(groups: Sequence[Group]) -> str:
    data = sorted({str(group.settings["data.name"]) for group in groups if group.settings})
    names = [group.label for group in groups]
    what = _listed(names) if len(names) <= MOST_NAMES else f"{len(names)} settings"
    where = f" on {_listed(data)}" if data else ""
    return text(what + where)


def _setting(groups: Sequence[Group]) -> str:
    """What all of them have in common, as far as one wants to know it first."""
    common = dict(shared(groups))
    partition = common.get("data.partition.name", "")
    if "data.partition.alpha" in common:
        partition += f" {common['data.partition.alpha']}"
    parts = [
        common.get("data.name", ""),
        common.get("model.name", ""),
        partition,
        f"{common['data.clients']} clients" if "data.clients" in common else "",
        f"{common['clients_per_round']} a round" if "clients_per_round" in common else "",
        f"{common['rounds']} rounds" if "rounds" in common else "",
    ]
    return ", ".join(part for part in parts if part)


def _counted(readings: Sequence[Reading]) -> str:
    states = Counter(run.state for run in readings)
    each = ", ".join(f"{number:,} {state}" for state, number in states.most_common())
    rows = sum(len(run.rows) for run in readings)
    made = time.strftime("%Y-%m-%d %H:%M")
    return f"{count(len(readings), 'run')} ({each}), {count(rows, 'round')}, read {made}"


def _notices(readings: Sequence[Reading], found: Found) -> list[str]:
    """What a reader must know before believing any number."""
    notices = []
    for run in readings:
        said = [*_problems(run), *found[run.folder].problems]
        if said:
            notices.append(f"{run.name}: {'; '.join(said)}")
    return [text(notice) for notice in notices]


def _problems(run: Reading) -> list[str]:
    found = [*run.problems]
    if run.error:
        found.append(f"gave up: {run.error}")
    if run.damaged_rows:
        found.append(f"{count(run.damaged_rows, 'damaged row')} left out")
    if run.missing_rows:
        found.append(
            f"{count(run.missing_rows, 'round')} without a row, so its bytes and times are too low"
        )
    return [text(each) for each in found]


def _facts(groups: Sequence[Group], metric: str) -> list[Fact]:
    """The best score, and who got there with the fewest bytes; of runs that are at their end."""
    target = usual_target(groups)
    groups = [group for group in groups if at_end(group)]
    facts = []
    scored = _means(groups, smoothed)
    if scored:
        best = max(scored, key=lambda label: scored[label])
        value = score(scored[best], metric)
        facts.append(Fact(f"Highest {metric}, smoothed", value, text(best)))
    if target is not None:
        sent = _means(groups, lambda run: bytes_to(run, target))
        what = f"Fewest bytes to {score(target, metric)}"
        facts += _fewest(what, sent)
    facts += _fewest("Least sent in all", _means(groups, added(total_bytes)))
    return facts


def _fewest(what: str, sent: Mapping[str, float]) -> list[Fact]:
    if not sent:
        return []
    least = min(sent, key=lambda label: sent[label])
    most = max(sent, key=lambda label: sent[label])
    who = least
    if sent[most] > sent[least]:
        who += f"; {sent[most] / sent[least]:.1f} times less than {most}"
    return [Fact(what, human_bytes(sent[least]), text(who))]


def _means(groups: Sequence[Group], of: Callable[[Reading], float | None]) -> dict[str, float]:
    """By label, the mean over seeds where every seed has a value."""
    found = {}
    for group in groups:
        values = [of(run) for run in group.runs]
        known = [value for value in values if value is not None]
        if known and len(known) == len(values):
            found[group.label] = fmean(known)
    return found


def _run(run: Reading, entry: Entry) -> RunEntry:
    done = run.rows[-1].round if run.rows else 0
    # One whose settings are lost does not say how many rounds it was to have.
    planned = f" of {run.rounds:,}" if run.settings else ""
    facts = run.facts
    made = [
        f"fedwsq {facts.fedwsq}" if facts.fedwsq else "",
        facts.commit,
        facts.precision,
        facts.cpu,
        f"started {facts.started}" if facts.started else "",
    ]
    return RunEntry(
        name=text(run.name),
        state=run.state,
        progress=f"round {done:,}{planned}, seed {run.seed}",
        label=entry.label,
        look=entry.look,
        problems=_problems(run),
        made=text(", ".join(part for part in made if part)),
        command=repeat_command(run),
    )


def _remarks(lines: Sequence[Line]) -> list[str]:
    remarks = [
        "Lines are means over the runs that differ in nothing but their seed, bands reach from the "
        "lowest to the highest of them. Where some seeds have not got as far as others, the mean "
        "is of those that have.",
        "Bytes are lengths of real messages, in both directions.",
    ]
    longest = max((len(run["round"]) for line in lines for run in line.runs), default=0)
    if longest > points_each(lines):
        remarks.append(
            f"Of long runs about {points_each(lines)} rounds a line are drawn, the first ones and "
            "then evenly spread ones; every number in words or tables is of all rows."
        )
    remarks.append(f"Made by fedwsq {VERSION}.")
    return remarks


def _listed(words: Sequence[str]) -> str:
    """`one, two and three`."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"
