"""Run directories as others read them: what a run is, how far it got, and what of it is damaged.

Nothing in a directory is trusted: sizes are bounded, every value is checked, no name in a config is
imported. Text comes out as it stands there; whoever shows it has to escape it.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

from fedwsq.core.checked import checked, fits
from fedwsq.core.errors import RunError
from fedwsq.core.text import open_file, read_text
from fedwsq.federation.record import RoundRecord
from fedwsq.plan.read import Settings, dotted, parse_toml
from fedwsq.runs.directory import CLASSES, CONFIG, MAX_ROWS_BYTES, ROWS, lacks_config
from fedwsq.runs.failures import ERROR
from fedwsq.runs.summary import Summary

MAX_FILE_BYTES = 2**24  # of a config, a manifest, a summary
MAX_ROW_BYTES = 2**24
MAX_ROWS = 1_000_000
SIGNS = (CONFIG, "manifest.json", ERROR)  # a directory with one of them is a run's
DEPTH = 3  # folders below one that was named: runs/PROJECT/SWEEP/CELL

State: TypeAlias = Literal["finished", "partial", "failed", "damaged"]


@dataclass(frozen=True)
class Facts:
    """Where a run was made and of what, as its manifest tells; "" where it does not."""

    fedwsq: str = ""
    commit: str = ""
    python: str = ""
    torch: str = ""
    numpy: str = ""
    cpu: str = ""
    device: str = ""
    precision: str = ""
    data: str = ""  # digest of labels and who holds which example
    config: str = ""  # digest of the plan
    run: str = ""
    started: str = ""


@dataclass(frozen=True)
class Reading:
    """A run as its directory tells it.

    In any state rows may be lost: lines that are no rows are left out and counted.
    """

    folder: Path
    settings: Settings  # by dotted name, every default spelled out; empty if it cannot be read
    rows: tuple[RoundRecord, ...]
    facts: Facts
    summary: Summary | None  # as it was last at its end; more rounds may have been asked for since
    damaged_rows: int = 0
    error: str = ""  # why it gave up
    problems: tuple[str, ...] = ()  # what cannot be read, and why
    classes: tuple[str, ...] = ()  # their names, in the order of the labels; empty: unknown
    title: str = ""  # what it is called where another run has the name of its folder

    @cached_property
    def state(self) -> State:
        """`partial` is going, or was stopped, and can go on; `failed` gave up."""
        if self.problems:
            return "damaged"
        if self.error:
            return "failed"
        done = self.rows[-1].round if self.rows else 0
        ended = self.summary is not None and self.summary.rounds == done
        if ended and (done >= self.rounds or self.stopped_early):
            return "finished"
        return "partial"

    @property
    def name(self) -> str:
        return self.title or self.folder.absolute().name

    @property
    def seed(self) -> int:
        """As its config has it; where that is lost, as its rows have it."""
        told = self.rows[0].seed if self.rows else 0
        return int(self.settings.get("seed", told))

    @property
    def rounds(self) -> int:
        """How many are planned; `rows` are those there are."""
        return int(self.settings.get("rounds", 0))

    @property
    def metric(self) -> str:
        """The name of what a row calls `accuracy`."""
        return str(self.settings.get("metric.name", "accuracy"))

    @property
    def missing_rows(self) -> int:
        """Rounds before the last row that have none."""
        return self.rows[-1].round - len(self.rows) if self.rows else 0

    @property
    def lost_rows(self) -> int:
        """Rounds that were run, and whose numbers are gone."""
        # A damaged line among others is the row that is missing there: it is lost once.
        return max(self.damaged_rows, self.missing_rows)

    @property
    def stopped_early(self) -> bool:
        """Whether it was good enough to stop."""
        goal = float(self.settings.get("stop_at_accuracy", 0))
        accuracy = self.rows[-1].accuracy if self.rows else None
        return goal > 0 and accuracy is not None and accuracy >= goal


def read_runs(paths: Iterable[Path]) -> list[Reading]:
    """The runs in these directories: a run's own, or one that holds runs, as a sweep's does.

    Each has a name that no other one has.
    """
    given = list(paths)
    return told_apart([read_run(folder) for folder in all_run_folders(given)], given)


def all_run_folders(paths: Iterable[Path]) -> list[Path]:
    """Those of every path, each once: somebody may name a run and the folder that holds it."""
    found: dict[Path, Path] = {}
    for path in paths:
        for folder in run_folders(path):
            found.setdefault(folder.resolve(), folder)
    return list(found.values())


def run_folders(path: Path) -> list[Path]:
    """`path` itself if it is a run's, else the runs in it and in its folders, by name."""
    if is_run(path):
        return [path]
    found = list(_runs_below(path, DEPTH))
    if not found:
        raise RunError(
            f"{path} is not a run directory and holds none, {DEPTH} folders down at most; "
            "name a directory that fedwsq run or fedwsq sweep made"
        )
    return found


def _runs_below(folder: Path, depth: int) -> Iterator[Path]:
    """Never what is in a run, such as the repetitions of an analysis."""
    for each in _folders_in(folder):
        if is_run(each):
            yield each
        # A link may lead anywhere, back here too.
        elif depth > 1 and not each.is_symlink():
            yield from _runs_below(each, depth - 1)


def _folders_in(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = [each.name for each in entries if each.is_dir()]
    except (FileNotFoundError, NotADirectoryError):  # or gone while somebody follows it
        return []
    return [folder / name for name in sorted(names) if not name.startswith(".")]


def told_apart(readings: Sequence[Reading], given: Sequence[Path]) -> list[Reading]:
    """The same; those that would have one name are called by where they are.

    That is their path from what was `given`, or as long a path as it takes.
    """
    named = list(readings)
    for longer in (_from_given, _as_given, _in_full):
        times = Counter(run.name for run in named)
        for place, run in enumerate(named):
            if times[run.name] > 1:
                named[place] = replace(run, title=longer(run.folder, given))
    return named


def _from_given(folder: Path, given: Sequence[Path]) -> str:
    above = [path for path in given if path in folder.parents]
    return str(folder.relative_to(above[0]) if above else folder)


def _as_given(folder: Path, given: Sequence[Path]) -> str:
    return str(folder)


def _in_full(folder: Path, given: Sequence[Path]) -> str:
    return str(folder.absolute())


def is_run(folder: Path) -> bool:
    """Whether this is the directory of a run, whatever its state."""
    return any((folder / name).exists() for name in SIGNS)


def read_run(folder: Path) -> Reading:
    """What is there, as far as it can be read."""
    problems: list[str] = []

    def read(name: str, parse: Callable[[str], Any], check: Callable[[Any], Any]) -> Any:
        """A file's contents, parsed and checked; None, and a problem, if that cannot be."""
        try:
            return check(parse(read_text(folder / name, MAX_FILE_BYTES)))
        except (OSError, ValueError, RecursionError) as error:
            problems.append(f"{name} cannot be read: {error}")
            return None

    error = ""
    if (folder / ERROR).exists():
        error = read(ERROR, str.strip, str)
    settings: Settings | None = None
    facts: Facts | None = None
    # One that failed before it began has neither; one that was stopped there has no config.
    if (folder / CONFIG).exists():
        settings = read(CONFIG, parse_toml, _settings)
        facts = read("manifest.json", json.loads, _facts)
    elif lacks_config(folder):
        problems.append(f"{CONFIG} is missing; put it back")
    summary: Summary | None = None
    if (folder / "summary.json").exists():
        summary = read("summary.json", json.loads, lambda found: checked(Summary, found))
    classes: tuple[str, ...] | None = None
    if (folder / CLASSES).exists():
        classes = read(CLASSES, json.loads, _classes)
    rows: list[RoundRecord] = []
    damaged = 0
    if (folder / ROWS).exists():
        try:
            rows, damaged = _rows(folder / ROWS)
        except (OSError, ValueError) as failed:
            problems.append(f"{ROWS} cannot be read: {failed}")
    return Reading(
        folder,
        settings or {},
        tuple(rows),
        facts or Facts(),
        summary,
        damaged,
        error or "",
        tuple(problems),
        classes or (),
    )


def _settings(found: Mapping[str, Any]) -> Settings:
    """The settings of a config; those that this module itself looks at are checked."""
    settings = dotted(found)
    for key, kind in (("seed", int), ("rounds", int), ("stop_at_accuracy", float)):
        value = settings.get(key, kind())
        if type(value) not in (int, kind):
            raise ValueError(f"{key} is {value!r}, must be a number")
    return settings


def _facts(found: object) -> Facts:
    """Whatever a manifest of any version says in words."""
    if not isinstance(found, dict):
        raise ValueError("it is not a table")
    known = {f.name: found.get(f.name) for f in fields(Facts)}
    return Facts(**{name: text for name, text in known.items() if isinstance(text, str)})


def _classes(found: object) -> tuple[str, ...]:
    if not isinstance(found, list) or not fits(list[str], found):
        raise ValueError("it is not a list of names")
    return tuple(found)


def _rows(path: Path) -> tuple[list[RoundRecord], int]:
    """The rows of a run in ascending order, and how many lines are none."""
    rows: list[RoundRecord] = []
    damaged = 0
    last = 0
    with open_file(path) as file:
        if os.fstat(file.fileno()).st_size > MAX_ROWS_BYTES:
            raise ValueError(f"it has more than {MAX_ROWS_BYTES:,} bytes")
        while (line := file.readline(MAX_ROW_BYTES)) and len(rows) + damaged < MAX_ROWS:
            try:
                row = checked(RoundRecord, json.loads(line))
            except (ValueError, RecursionError):
                # The last line of a run that goes on, or was killed, may be cut short.
                damaged += line.endswith(b"\n")
                continue
            if row.round <= last:
                damaged += 1
                continue
            last = row.round
            rows.append(row)
    return rows, damaged
