"""Runs in the shape of a published table, each cell beside the number that it should give."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from fedwsq.plan import make_plan, plan_settings, read_config
from fedwsq.plan.published import Heading, Table
from fedwsq.plan.read import Settings, dotted
from fedwsq.report.compare import origin_flags, smoothed
from fedwsq.report.estimate import Estimate, estimate
from fedwsq.report.groups import FLOAT32, Group, group_runs, one_a_seed, signature
from fedwsq.report.layout import Format, Row, laid_out
from fedwsq.runs.reading import Reading

# Settings that tell the cells of any table apart, beside the method.
SPLIT = ("data.name", "data.partition.name", "data.partition.alpha")
BITS = ("uplink.bits.name", "uplink.bits.bits", "uplink.bits.choices")
# What does not make a run another than the published one.
NOT_TOLD = ("eval_every", "eval_clients")


@dataclass(frozen=True)
class Result:
    """What was run for a cell. Accuracies are in percent, as the paper has them."""

    group: Group
    accuracy: Estimate
    others: int  # groups that fit the cell as well
    unlike: Mapping[str, tuple[object, object]]  # setting -> here, published


@dataclass(frozen=True)
class Cell:
    """A published number and, where it was run, the one found here."""

    row: Heading
    column: Heading
    published: float
    result: Result | None

    @property
    def text(self) -> str:
        """`84.12 ± 0.31 (86.84, -2.72)`; `(86.84)` where nothing was run."""
        if self.result is None:
            return f"({self.published:.2f})"
        found = self.result.accuracy
        interval = "" if found.half is None else f" ± {found.half:.2f}"
        beside = f"({self.published:.2f}, {found.mean - self.published:+.2f})"
        return f"{found.mean:.2f}{interval} {beside}"


@dataclass(frozen=True)
class Filled:
    """A table with what was run for it."""

    table: Table
    cells: tuple[tuple[Cell, ...], ...]  # row by row
    left_out: tuple[str, ...]  # runs that are in no cell, and why

    @cached_property
    def notes(self) -> list[str]:
        """How what was run differs from what was published."""
        every = [cell for row in self.cells for cell in row]
        run = [cell for cell in every if cell.result is not None]
        said = [f"{len(run)} of {len(every)} cells were run"]
        groups = [cell.result.group for cell in run if cell.result is not None]
        flags = [f"flag: {text}" for text in origin_flags(groups)]
        return [*said, *flags, *_unlike_settings(run), *_doubtful(run), *self.left_out]

    def text(self, form: Format) -> str:
        """The table itself, or with `csv` a line for each cell."""
        if form == "csv":
            return _cell_by_cell(self)
        head = [*self.table.head, *(" ".join(column.label) for column in self.table.columns)]
        rows = [[*row[0].row.label, *(cell.text for cell in row)] for row in self.cells]
        return laid_out(head, rows, form)


def _unlike_settings(cells: Sequence[Cell]) -> list[str]:
    """Which settings are not the published ones, with all their values."""
    values: dict[str, dict[str, None]] = {}  # without repetitions, in order
    for cell in cells:
        unlike = cell.result.unlike if cell.result else {}
        for key, (here, published) in unlike.items():
            values.setdefault(key, {})[f"{here} ({published})"] = None
    if not values:
        return []
    said = [f"  {key}: {', '.join(found)}" for key, found in values.items()]
    return ["settings other than the published ones (in parentheses):", *said]


def _doubtful(cells: Sequence[Cell]) -> list[str]:
    """Cells that more than one group of runs would fit into."""
    said = []
    for cell in cells:
        if cell.result is None or not cell.result.others:
            continue
        name = " ".join((*cell.row.label, *cell.column.label))
        said.append(
            f"{name}: {cell.result.others + 1} groups of runs fit; "
            f"shown is the longest, {cell.result.group.label}"
        )
    return said


def fill(table: Table, runs: Iterable[Reading]) -> Filled:
    """These runs, as far as finished, in the cells whose method, bits, data and split they have."""
    found = list(runs)
    finished = [run for run in found if run.state == "finished"]
    counted, repeated = one_a_seed(finished)
    groups: dict[object, list[Group]] = {}
    for group in group_runs(counted):
        groups.setdefault(cell_key(group.settings, table), []).append(group)

    used: set[object] = set()
    cells = []
    for row, numbers in zip(table.rows, table.values, strict=True):
        line = []
        for column, published in zip(table.columns, numbers, strict=True):
            settings = _resolved(table.cell(row, column))
            key = cell_key(settings, table)
            used.add(key)
            line.append(Cell(row, column, published, _result(groups.get(key, []), settings)))
        cells.append(tuple(line))

    said = [f"{run.name} is {run.state}, and left out" for run in found if run not in finished]
    said += [f"{text}, and is left out" for text in repeated]
    for key, others in groups.items():
        if key not in used:
            said += [f"{group.label} fits no cell of {table.name}" for group in others]
    return Filled(table, tuple(cells), tuple(said))


def cell_key(settings: Settings, table: Table) -> object:
    """What a run and a cell must share for the one to be the other."""
    method = signature(settings)
    keys = [*SPLIT, *table.match]
    if method.codec != FLOAT32:
        keys += BITS
    return method, tuple(repr(settings.get(key)) for key in keys)


def _resolved(cell: Settings) -> Settings:
    """The settings of a cell, every default spelled out."""
    overrides = dict(cell)
    config = overrides.pop("config")
    return dotted(plan_settings(make_plan(read_config(config), overrides)))


def _result(groups: Sequence[Group], published: Settings) -> Result | None:
    """Of several groups the longest, then the one with the most seeds."""
    best: Result | None = None
    for group in sorted(groups, key=lambda each: (each.runs[0].rounds, len(each.runs))):
        values = map(smoothed, group.runs)
        accuracy = estimate([100 * value for value in values if value is not None])
        if accuracy is not None:
            best = Result(group, accuracy, len(groups) - 1, _unlike(group, published))
    return best


def _unlike(group: Group, published: Settings) -> dict[str, tuple[object, object]]:
    found: dict[str, tuple[object, object]] = {}
    for key, here in group.settings.items():
        there = published.get(key, "not there")
        if key not in NOT_TOLD and repr(here) != repr(there):
            found[key] = (here, there)
    return found


def _cell_by_cell(filled: Filled) -> str:
    """Numbers for a program: one line a cell."""
    table = filled.table
    rows: list[Row] = []
    for line in filled.cells:
        for cell in line:
            numbers: list[float | None] = [None] * 4
            if cell.result is not None:
                found = cell.result.accuracy
                numbers = [found.mean, found.half, found.count, found.mean - cell.published]
            texts = ["" if value is None else str(value) for value in numbers]
            name = " ".join(cell.column.label)
            rows.append([*cell.row.label, name, str(cell.published), *texts])
    head = [*table.head, "column", "published", "mean", "half", "seeds", "difference"]
    return laid_out(head, rows, "csv")
