"""What the page says of analyses: curvature, landscapes, updates, drift, gradients, scales."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple, TypeVar

import numpy as np

from fedwsq.report.curves import Columns
from fedwsq.report.groups import Group
from fedwsq.report.page.charts import Axis, Line
from fedwsq.report.page.contours import contour_json, loss_levels, losses
from fedwsq.report.page.drawings import ROUND, SMALL, Chart, Panel, Table, make_chart
from fedwsq.report.page.findings import COORDINATES, Findings, Landscape
from fedwsq.report.page.tables import Cell, Entry
from fedwsq.report.page.words import NOTHING, text

MOST_LAYERS = 60  # in a table
MOST_LANDSCAPES = 12
MOST_STEPS = 11  # of a landscape's table, each way
T = TypeVar("T")
Found = Mapping[Path, Findings]  # by run


class Curvature(NamedTuple):
    """A row of cells for each group that somebody has looked at."""

    caption: str
    head: Sequence[str]
    rows: Sequence[tuple[Entry, Sequence[Cell]]]


class Insights(NamedTuple):
    """Everything that analyses found, as far as there are any."""

    curvature: Curvature | None
    landscapes: Sequence[Chart]
    charts: Sequence[Chart]
    codecs: Sequence[Table]
    gradients: Table | None


class Series(NamedTuple):
    """A number by round: a chart, and where a run has it."""

    panel: Panel
    of: Callable[[Findings], Mapping[int, float]]


def kurtosis(found: Findings) -> dict[int, float]:
    rounds = found.updates.rounds if found.updates else {}
    return {number: kept.kurtosis for number, kept in rounds.items()}


def cosine(found: Findings) -> dict[int, float]:
    return {number: fmean(kept.cosine) for number, kept in (found.drift or {}).items()}


def norm(found: Findings) -> dict[int, float]:
    return {number: fmean(kept.norm) for number, kept in (found.drift or {}).items()}


def scale_cost(found: Findings) -> dict[int, float]:
    """How much more is lost with the shared scales than with the right ones."""
    if found.scales is None or not found.scales.right_scale_error:
        return {}
    right = found.scales.right_scale_error
    costs = {}
    for number, scale in found.scales.rounds.items():
        if scale.expected_error is not None:
            costs[number] = scale.expected_error / right
    return costs


SERIES = (
    Series(
        Panel(
            Axis("kurtosis", "kurtosis", marked=True),
            "Kurtosis of updates",
            "median over layers; 3 is normal",
        ),
        kurtosis,
    ),
    Series(
        Panel(
            Axis("cosine", "cosine", marked=True),
            "Agreement of clients",
            "cosine of their updates to the mean of all, mean over clients",
        ),
        cosine,
    ),
    Series(
        Panel(
            Axis("norm", "norm", marked=True),
            "Drift of clients",
            "length of their updates over that of the mean, mean over clients",
        ),
        norm,
    ),
    Series(
        Panel(
            Axis("scale_cost", "times", "0.[00]"),
            "What shared scales cost",
            "error on normal data over that with the right scale",
        ),
        scale_cost,
    ),
)


def insights(entries: Sequence[Entry], groups: Sequence[Group], found: Found) -> Insights | None:
    """None where nothing was analysed."""
    each = [[found[run.folder] for run in group.runs] for group in groups]
    made = Insights(
        curvature(entries, each),
        landscape_charts(entries, each),
        round_charts(entries, each),
        codec_tables(entries, each),
        gradient_table(entries, each),
    )
    return made if any(made) else None


def curvature(entries: Sequence[Entry], each: Sequence[Sequence[Findings]]) -> Curvature | None:
    rows = []
    examples = set()
    for entry, runs in zip(entries, each, strict=True):
        known = [run.hessian for run in runs if run.hessian]
        if not known:
            continue
        examples |= {hessian.examples for hessian in known}
        cells = []
        for coordinates in COORDINATES:
            tops = [hessian.tops[coordinates] for hessian in known]
            values = [max(top.eigenvalues) for top in tops if top.eigenvalues]
            cells.append(_eigenvalue(values, all(top.converged for top in tops)))
        rows.append((entry, cells))
    if not rows:
        return None
    said = " and ".join(f"{count:,}" for count in sorted(examples))
    caption = (
        f"The largest eigenvalue of the loss at the last model, over {said} training examples: how "
        "sharp it is. Raw coordinates are the weights as they are trained, effective ones those "
        "that layers compute with, relative ones the latter in units of each filter's length, "
        "which is what standardized and plain models can be compared by."
    )
    return Curvature(caption, ["", *COORDINATES], rows)


def _eigenvalue(values: Sequence[float], converged: bool) -> Cell:
    if not values:
        return Cell(NOTHING, "not converged")
    more = f"{min(values):.3g} to {max(values):.3g}" if len(values) > 1 else ""
    if not converged:
        more = "not converged"
    return Cell(f"{fmean(values):.4g}", more)


def landscape_charts(entries: Sequence[Entry], each: Sequence[Sequence[Findings]]) -> list[Chart]:
    """One for the first run of each group that has one, all on one scale of colours."""
    chosen: list[tuple[Entry, Landscape]] = []
    for entry, runs in zip(entries, each, strict=True):
        known = [run.landscape for run in runs if run.landscape]
        # One without a finite loss has nothing to show.
        if known and np.isfinite(losses(known[0])).any():
            chosen.append((entry, known[0]))
    chosen = chosen[:MOST_LANDSCAPES]
    levels = loss_levels([landscape for _, landscape in chosen])
    if levels is None:
        return []
    charts = []
    for entry, landscape in chosen:
        charts.append(
            Chart(
                id=f"landscape-{entry.number}",
                title=entry.label,
                note=f"loss on {landscape.examples:,} examples ({text(landscape.data)})",
                x="first direction",
                y="second direction",
                percent=False,
                json=contour_json(landscape, levels, SMALL),
                table=_grid(landscape, f"Loss around {entry.label}"),
            )
        )
    return charts


def _grid(landscape: Landscape, caption: str) -> Table:
    """The losses at some of the steps."""
    count = len(landscape.steps)
    chosen = np.linspace(0, count - 1, min(MOST_STEPS, count)).round().astype(int)
    head = ["first, second", *(f"{landscape.steps[b]:.3g}" for b in chosen)]
    rows = []
    for a in chosen:
        found = [landscape.loss[a][b] for b in chosen]
        cells = [NOTHING if loss is None else f"{loss:.3g}" for loss in found]
        rows.append([f"{landscape.steps[a]:.3g}", *cells])
    return Table(caption, head, rows)


def round_charts(entries: Sequence[Entry], each: Sequence[Sequence[Findings]]) -> list[Chart]:
    charts = []
    for panel, of in SERIES:
        lines = []
        for entry, runs in zip(entries, each, strict=True):
            known = [numbers for run in runs if (numbers := of(run))]
            columns = tuple(_columns(panel.axis.column, numbers) for numbers in known)
            if columns:
                lines.append(Line(entry.number, entry.label, entry.look, columns))
        if lines:
            charts.append(make_chart(lines, ROUND, panel.axis, panel, SMALL))
    return charts


def _columns(name: str, numbers: Mapping[int, float]) -> Columns:
    return {
        "round": np.array(list(numbers), np.float64),
        name: np.array(list(numbers.values()), np.float64),
    }


def codec_tables(entries: Sequence[Entry], each: Sequence[Sequence[Findings]]) -> list[Table]:
    """What every codec loses at equal bytes, a table for each number of them."""
    labels = []
    columns = []
    for entry, runs in zip(entries, each, strict=True):
        known = [run.updates.equal_bytes for run in runs if run.updates]
        if any(known):
            labels.append(entry.label)
            columns.append(known)
    tables = []
    for bits in dict.fromkeys(key for known in columns for run in known for key in run):
        lost = [
            _mean_errors([run[bits].errors for run in known if bits in run]) for known in columns
        ]
        codecs = dict.fromkeys(codec for errors in lost for codec in errors)
        order = sorted(codecs, key=lambda codec: lost[0].get(codec, float("inf")))
        rows = []
        for codec in order:
            cells = [f"{errors[codec]:.3g}" if codec in errors else NOTHING for errors in lost]
            rows.append([text(codec), *cells])
        caption = f"Squared error over energy at as many bytes as DANUQ sends at {text(bits)} bits"
        tables.append(Table(caption, ["", *labels], rows))
    return tables


def _mean_errors(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Over the runs that have a codec."""
    codecs = dict.fromkeys(codec for errors in runs for codec in errors)
    return {codec: fmean(errors[codec] for errors in runs if codec in errors) for codec in codecs}


def gradient_table(entries: Sequence[Entry], each: Sequence[Sequence[Findings]]) -> Table | None:
    """The mean shares over clients and seeds, layers down and groups across."""
    labels = []
    columns: list[dict[str, str]] = []
    for entry, runs in zip(entries, each, strict=True):
        known = [run.gradients for run in runs if run.gradients]
        if not known:
            continue
        labels.append(entry.label)
        cells = {}
        for layer in known[0]:
            shares = [run[layer] for run in known if layer in run]
            weight = fmean(share for each in shares for share in each.weight)
            ones = fmean(share for each in shares for share in each.ones)
            cells[layer] = f"{100 * weight:.1f}, {100 * ones:.1f}"
        columns.append(cells)
    layers = list(dict.fromkeys(layer for cells in columns for layer in cells))
    if not layers:
        return None
    caption = "Percent of the squared gradient along the weight, and along the vector of ones"
    if len(layers) > MOST_LAYERS:
        caption += f"; the first {MOST_LAYERS} of {len(layers)} layers"
    rows = []
    for layer in layers[:MOST_LAYERS]:
        rows.append([text(layer), *(cells.get(layer, NOTHING) for cells in columns)])
    return Table(caption, ["", *labels], rows)
