"""Which charts a page has, and the table that says the same."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedwsq.report.curves import curve
from fedwsq.report.page.charts import Axis, Line, chart_json
from fedwsq.report.page.words import NOTHING

TALL = 440
SMALL = 240
MILESTONES = 12  # rows of a chart's table

ROUND = Axis("round", "round", "0,0", whole=True)


class Table(NamedTuple):
    """Words in rows; the first of a row is its name."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


class Chart(NamedTuple):
    """One chart: what Bokeh draws, and the same in numbers."""

    id: str
    title: str
    note: str
    x: str
    y: str
    percent: bool
    json: str
    table: Table


class Panel(NamedTuple):
    """A small chart against rounds."""

    axis: Axis
    title: str
    note: str


PANELS = (
    Panel(Axis("loss", "loss"), "Loss", "on the data that accuracy is measured on"),
    Panel(Axis("train_loss", "loss"), "Training loss", "mean over the clients of a round"),
    Panel(
        Axis("bits", "bits"),
        "Bits granted",
        "mean bits for a coded parameter, on the way up",
    ),
    Panel(
        Axis("quantization_error", "error", "0.[0000]"),
        "What the code lost",
        "squared error of decoded updates, as a share of their energy",
    ),
    Panel(
        Axis("scale_ratio", "ratio"),
        "Local against shared scale",
        "median over tensors; 1 is where the shared scale fits",
    ),
    Panel(
        Axis("client_accuracy", "accuracy", "0.[0] %"),
        "Accuracy of clients",
        "mean over clients, each on its own test data",
    ),
    Panel(
        Axis("client_accuracy_worst_decile", "accuracy", "0.[0] %"),
        "Accuracy of the worst tenth of clients",
        "each on its own test data",
    ),
    Panel(Axis("failures", "failures", "0,0", whole=True), "Failures", "replies lost, added up"),
)


def accuracy_charts(lines: Sequence[Line], metric: str) -> list[Chart]:
    """Against bytes, rounds and simulated time, as far as there are any."""
    percent = metric == "accuracy"
    y = Axis("accuracy", metric, "0.[0] %" if percent else "0.[0000]")
    sent = bytes_axis(lines)
    views = (
        (sent, "By bytes", f"Against all bytes sent, both directions, in {sent.label.split()[-1]}"),
        (ROUND, "By rounds", "Against rounds"),
        (seconds_axis(), "By time", "Against simulated time on the channels of the plan"),
    )
    found = []
    for x, title, note in views:
        if has_points(lines, x.column, y.column):
            found.append(make_chart(lines, x, y, Panel(y, title, note), TALL))
    return found


def panel_charts(lines: Sequence[Line]) -> tuple[list[Chart], list[str]]:
    """The small charts, and the titles of those that no row has anything for."""
    found = []
    absent = []
    for panel in PANELS:
        y = panel.axis
        if says_something(lines, y.column):
            found.append(make_chart(lines, ROUND, y, panel, SMALL))
        else:
            absent.append(panel.title)
    return found, absent


def make_chart(lines: Sequence[Line], x: Axis, y: Axis, panel: Panel, height: int) -> Chart:
    drawn = [line for line in lines if has_points([line], x.column, y.column)]
    return Chart(
        id=f"{y.column}-{x.column}",
        title=panel.title,
        note=panel.note,
        x=x.label,
        y=y.label,
        percent=y.percent,
        json=chart_json(drawn, x, y, height),
        table=numbers(drawn, x, y, panel.title),
    )


def has_points(lines: Sequence[Line], x: str, y: str) -> bool:
    return any(len(curve(line.runs, x, y)) for line in lines)


def says_something(lines: Sequence[Line], y: str) -> bool:
    """Whether there are values; failures that never happened need no chart."""
    found = [curve(line.runs, "round", y).mean for line in lines]
    if y == "failures":
        return any(values.any() for values in found)
    return any(len(values) for values in found)


def bytes_axis(lines: Sequence[Line]) -> Axis:
    """In the largest unit that leaves the longest run above 1."""
    ends = [run["bytes"][-1] for line in lines for run in line.runs]
    most = max(ends, default=0.0)
    unit, name = max(
        (each for each in ((1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB")) if each[0] <= most),
        default=(1e3, "kB"),
    )
    return Axis("bytes", f"total sent, {name}", "0,0.[00]", unit, logarithmic=True)


def seconds_axis() -> Axis:
    return Axis("seconds", "simulated time, s", "0,0")


def numbers(lines: Sequence[Line], x: Axis, y: Axis, caption: str) -> Table:
    """The chart as a table: some rounds down, groups across."""
    found = [curve(line.runs, x.column, y.column) for line in lines]
    every = np.unique(np.concatenate([each.rounds for each in found] or [np.zeros(0)]))
    chosen = np.linspace(0, len(every) - 1, min(MILESTONES, len(every))).round().astype(int)
    rows = []
    for number in every[chosen]:
        cells = [f"round {number:,.0f}"]
        for each in found:
            (at,) = np.nonzero(each.rounds == number)
            if len(at):
                cells.append(_point(each.x[at[0]], each.mean[at[0]], x, y))
            else:
                cells.append(NOTHING)
        rows.append(cells)
    return Table(caption, ["", *(line.label for line in lines)], rows)


def _point(x_value: float, y_value: float, x: Axis, y: Axis) -> str:
    value = f"{100 * y_value:.1f} %" if y.percent else f"{y_value:.4g}"
    if x is ROUND:
        return value
    return f"{value} at {x_value / x.unit:,.2f} {x.label.rpartition(' ')[2]}"
