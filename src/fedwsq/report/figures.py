"""Figures for papers, drawn with matplotlib: convergence, bits against accuracy, levels."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedwsq.analysis.pictures import draw_strips, whole_numbers
from fedwsq.core.errors import ConfigError
from fedwsq.plan.read import Settings
from fedwsq.report.compare import smoothed
from fedwsq.report.curves import columns, curve
from fedwsq.report.estimate import estimate
from fedwsq.report.groups import (
    Group,
    describe_bits,
    describe_method,
    group_runs,
    one_a_seed,
)
from fedwsq.report.looks import Look, look
from fedwsq.runs.reading import Reading

COLUMNS = 2  # of a grid
PANEL = (4.6, 3.2)  # inches
BAND_ALPHA = 0.18
MARKS = "osD^vPX"
# What makes two runs belong into one panel.
SCENE = ("data.name", "data.partition.", "data.clients", "clients_per_round", "model.name")
ACROSS = {
    "rounds": ("round", "round", 1.0),
    "bytes": ("bytes", "total sent, MB", 1e6),
    "time": ("seconds", "simulated time, s", 1.0),
}


class Panel(NamedTuple):
    """The groups that share data, model and clients."""

    title: str
    groups: Sequence[Group]


def panels(runs: Sequence[Reading]) -> list[Panel]:
    """One for each combination of data set, split, clients and model, in order of appearance.

    A run whose settings are lost belongs nowhere, and one that repeats another adds nothing.
    """
    scenes: dict[str, list[Reading]] = {}
    for run in one_a_seed(runs)[0]:
        if run.rows and run.settings:
            scenes.setdefault(repr(_scene(run.settings)), []).append(run)
    if not scenes:
        raise ConfigError(f"none of {len(runs)} runs has a round to draw; let one finish first")
    return [Panel(_title(each[0].settings), group_runs(each)) for each in scenes.values()]


def grid_size(count: int) -> tuple[float, float]:
    """Inches of a grid with so many panels."""
    across = min(count, COLUMNS)
    down = -(-count // COLUMNS)
    return PANEL[0] * across, PANEL[1] * down


def draw_curves(figure: Any, found: Sequence[Panel], x: str, average: bool) -> None:
    """Accuracy against rounds, bytes or time: a line a group, a band over its seeds."""
    column, label, unit = ACROSS[x]
    looks = _looks(found)
    for axes, panel in zip(_grid(figure, len(found)), found, strict=True):
        for group in panel.groups:
            runs = [columns(run.rows) for run in group.runs if run.rows]
            line = curve(runs, column, "smoothed" if average else "accuracy")
            if not len(line):
                continue
            style = looks[group.label]
            dash = (0, style.dash or (1, 0))
            across = line.x / unit
            axes.fill_between(
                across, 100 * line.low, 100 * line.high, color=style.colour, alpha=BAND_ALPHA, lw=0
            )
            axes.plot(
                across, 100 * line.mean, color=style.colour, ls=dash, lw=1.4, label=group.label
            )
        if not axes.lines:
            raise ConfigError(f"no run of {panel.title} has {label}; draw against something else")
        axes.set(title=panel.title, xlabel=label, ylabel="test accuracy, %")
        if x == "rounds":
            whole_numbers(axes.xaxis)
        if x == "bytes":
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
        axes.grid(alpha=0.25, lw=0.6)
    _legend(figure)


def draw_bits(figure: Any, found: Sequence[Panel]) -> None:
    """Smoothed accuracy against bits a coded parameter, with intervals over seeds."""
    families = [[_family(group.settings) for group in panel.groups] for panel in found]
    names = list(dict.fromkeys(name for each in families for name in each))
    for axes, panel, family in zip(_grid(figure, len(found)), found, families, strict=True):
        for number, name in enumerate(names):
            groups = [group for group, of in zip(panel.groups, family, strict=True) if of == name]
            points = sorted(point for group in groups if (point := _bits_point(group)))
            if not points:
                continue
            bits, accuracy, half = np.array(points).T
            style = look(number)
            axes.errorbar(
                bits,
                100 * accuracy,
                100 * half,
                color=style.colour,
                marker=MARKS[number % len(MARKS)],
                markersize=5,
                lw=1.2,
                capsize=2,
                label=name,
            )
        axes.set(title=panel.title, xlabel="bits a coded parameter", ylabel="test accuracy, %")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.grid(alpha=0.25, lw=0.6)
    _legend(figure)


def draw_levels(
    figure: Any,
    updates: Mapping[str, npt.NDArray[np.float32]],
    levels: Mapping[str, Sequence[float]],
) -> None:
    """Where each codec has its levels, over the histogram of real updates in units of their std."""
    rows = figure.subplots(len(updates), 1, squeeze=False, sharex=True)[:, 0]
    grid = np.linspace(-4, 4, 201)
    normal = np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi)
    for axes, (name, values) in zip(rows, updates.items(), strict=True):
        axes.hist(values / values.std(), bins=161, range=(-4, 4), density=True, color="0.8")
        axes.plot(grid, normal, color="black", lw=1, label="N(0, 1)")
        axes.set_xlim(-4, 4)
        draw_strips(axes, levels, [look(number).colour for number in range(len(levels))])
        axes.set(title=name, ylabel="density")
        axes.spines[["top", "right"]].set_visible(False)
    rows[-1].set_xlabel("update / std")
    _legend(figure)


def _scene(settings: Settings) -> Settings:
    return {key: value for key, value in settings.items() if key.startswith(SCENE)}


def _title(settings: Settings) -> str:
    """`cifar10, dirichlet 0.3, 5 of 100 clients`."""
    split = str(settings.get("data.partition.name", ""))
    if "data.partition.alpha" in settings:
        split += f" {settings['data.partition.alpha']}"
    clients = f"{settings.get('clients_per_round')} of {settings.get('data.clients')} clients"
    return f"{settings.get('data.name')}, {split}, {clients}"


def _looks(found: Sequence[Panel]) -> dict[str, Look]:
    """The same line for the same label in every panel."""
    labels = dict.fromkeys(group.label for panel in found for group in panel.groups)
    return {label: look(number) for number, label in enumerate(labels)}


def _grid(figure: Any, count: int) -> list[Any]:
    across = min(count, COLUMNS)
    cells = figure.subplots(-(-count // COLUMNS), across, squeeze=False).flatten()
    for axes in cells:
        axes.spines[["top", "right"]].set_visible(False)
    for empty in cells[count:]:
        empty.set_visible(False)
    return list(cells[:count])


def _legend(figure: Any) -> None:
    """One for all panels, below them, where it hides nothing; in as many columns as fit."""
    found: dict[str, Any] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        found = dict(zip(labels, handles, strict=True)) | found
    for across in (3, 2, 1):
        legend = figure.legend(
            found.values(),
            found.keys(),
            loc="outside lower center",
            ncols=across,
            frameon=False,
            fontsize="small",
        )
        if across == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def _family(settings: Settings) -> str:
    """The method without its bits: `fedwsq`."""
    return describe_method(settings).removesuffix(describe_bits(settings)).strip()


def _bits_point(group: Group) -> tuple[float, float, float] | None:
    """Mean bits, accuracy, and the half width of its interval, 0 with a single seed."""
    bits = [row.bits for run in group.runs for row in run.rows if row.bits is not None]
    ends = [value for run in group.runs if (value := smoothed(run)) is not None]
    reached = estimate(ends)
    if not bits or reached is None:
        return None
    return float(np.mean(bits)), reached.mean, reached.half or 0.0
