"""`fedwsq sweep`: every combination of some settings, each in a run directory of its own."""

import argparse
import re
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from fedwsq.cli.bar import columns, fitted, room
from fedwsq.cli.progress import plain_console, sigterm_interrupts
from fedwsq.cli.run import config_and_overrides
from fedwsq.cli.start import INTERRUPTED
from fedwsq.cli.trust import vouching
from fedwsq.federation.record import RoundRecord
from fedwsq.plan.grid import read_grid
from fedwsq.plan.read import read_toml, shipped, shipped_configs
from fedwsq.runs import Run
from fedwsq.runs.directory import require_named
from fedwsq.runs.lines import human_bytes, short
from fedwsq.runs.sweep import Place, Sweep

LINES_A_CELL = 10  # in a file: enough to see that it moves


def main(args: argparse.Namespace) -> int:
    require_named(args.out)
    name, words = config_and_overrides(args.words)
    settings = read_toml(name, {**shipped_configs(), **shipped("grids")}, "grid")
    typed = [value for word in words for value in re.split("[=,]", word)]
    with vouching(name, settings, typed, args.trust):
        return sweep(args)


def sweep(args: argparse.Namespace) -> int:
    cells = read_grid(args.words).cells()
    name, _ = config_and_overrides(args.words)
    out = Path(args.out or f"runs/{Path(name).stem}-sweep")
    found = Sweep(cells, out, args.workers, args.device)
    console = plain_console()
    if args.list:
        places = found.places()
        console.print(overview(places, out))
        return 0

    # A bar that redraws itself is noise in a file.
    bar = Progress(*columns(console), console=console) if console.is_terminal else None
    witness = Overview(console, found.places(), bar)
    try:
        with sigterm_interrupts(), bar or nullcontext():
            places = found.go(witness, args.retry)
    except KeyboardInterrupt:
        done = sum(place.standing == "finished" for place in found.places())
        console.print(
            f"stopped; {done} of {len(cells)} cells are finished, and complete rounds are saved. "
            "Go on with the same command"
        )
        return INTERRUPTED
    console.print(overview(places, out))
    return conclude(console, places)


def conclude(console: Console, places: Sequence[Place]) -> int:
    """What is left to do, in words and as an exit code."""
    failed = [place for place in places if place.standing in ("new", "failed", "damaged")]
    for place in failed:
        console.print(f"{place.folder}: {reason(place)}")
    if failed:
        console.print(f"{len(failed)} cells failed; the same command with --retry tries them again")
    elsewhere = [place for place in places if place.standing == "elsewhere"]
    if elsewhere:
        console.print(f"{len(elsewhere)} cells are being run by another process")
    return 1 if failed else 0


def reason(place: Place) -> str:
    if place.reading is None:
        return "not begun"
    return place.reading.error or "; ".join(place.reading.problems)


class Overview:
    """Tells how a sweep goes: bars on a terminal, a few lines a cell in a file."""

    def __init__(self, console: Console, places: Sequence[Place], bar: Progress | None) -> None:
        self._console = console
        self._bar = bar
        self._tasks: tuple[TaskID, TaskID] | None = None
        self._cells = len(places)
        # Rounds to go, by cell; one that will not be run has none.
        self._left = {place.cell.name: _to_go(place) for place in places}
        self._ended = sum(place.standing == "finished" for place in places)
        self._began = time.perf_counter()
        self._run_here = 0  # rounds
        self._name = ""
        self._rounds = 0
        self._done = 0
        if self._ended:
            console.print(f"{self._ended} of {self._cells} cells are finished already")

    def on_begin(self, place: Place, run: Run) -> None:
        self._name = place.cell.name
        self._rounds = run.plan.rounds
        self._done = len(run.records)
        for warning in run.warnings:
            self._console.print(f"warning: {self._name}: {warning}", style="yellow")
        if self._bar is None:
            self._say(f"rounds {self._done + 1} to {self._rounds}")
        self._show(self._done, f"{self._name}")

    def on_client(self, finished: int, asked: int) -> None:
        # Not quite full before the round is over: the server has work of its own.
        self._show(self._done + finished / asked * 0.99)

    def on_round(self, record: RoundRecord) -> None:
        before = self._done * LINES_A_CELL // self._rounds
        self._done = record.round
        self._run_here += 1
        self._left[self._name] = self._rounds - self._done
        text = short(record)
        self._show(self._done, f"{self._name}, {text}")
        if self._bar is None and self._done * LINES_A_CELL // self._rounds > before:
            self._say(f"round {self._done}/{self._rounds}: {text}; {self.time_left()}")

    def on_end(self, place: Place, error: str) -> None:
        self._left[place.cell.name] = 0
        self._ended += place.standing == "finished"
        self._name = place.cell.name
        what = f"failed: {error}" if error else place.standing
        self._say(f"{what}{_figures(place)}")

    def time_left(self) -> str:
        """A guess: all rounds to go take as long as those so far did in the mean."""
        left = sum(self._left.values())
        if not self._run_here:
            return f"{left} rounds left"
        seconds = left * (time.perf_counter() - self._began) / self._run_here
        minutes = round(seconds / 60)
        if minutes < 1:
            return "less than a minute left"
        if minutes < 60:
            return f"about {minutes} min left"
        return f"about {minutes // 60}:{minutes % 60:02} h left"

    def _say(self, text: str) -> None:
        self._console.print(f"[{self._ended}/{self._cells}] {self._name}: {text}")

    def _show(self, done: float, text: str = "") -> None:
        """The bar of all cells, and the bar of the one at work."""
        if self._bar is None:
            return
        if self._tasks is None:
            all_cells = self._bar.add_task("", total=self._cells)
            self._tasks = (all_cells, self._bar.add_task("", total=self._rounds))
        both, one = self._tasks
        self._bar.update(both, completed=self._ended, description=f"cells, {self.time_left()}")
        self._bar.update(one, completed=done, total=self._rounds)
        if text:
            shown = fitted(text, "", room(self._console, self._rounds))
            self._bar.update(one, description=shown, refresh=True)


def overview(places: Sequence[Place], out: Path) -> Table:
    """How every cell stands."""
    table = Table(title=str(out), title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("cell", overflow="fold")
    table.add_column("state")
    for head in ("round", "accuracy", "smoothed", "bytes", "seconds"):
        table.add_column(head, justify="right", no_wrap=True)
    for place in places:
        table.add_row(*_row(place))
    return table


def _row(place: Place) -> list[str]:
    rows = place.reading.rows if place.reading else ()
    scored = [row for row in rows if row.accuracy is not None]
    last = scored[-1] if scored else None
    accuracy = "" if last is None else f"{last.accuracy:.4f}"
    smoothed = "" if last is None else f"{last.accuracy_ema:.4f}"
    sent = sum(row.uplink_bytes + row.downlink_bytes for row in rows)
    seconds = sum(row.seconds for row in rows)
    return [
        place.cell.name,
        place.standing,
        f"{place.done}/{place.cell.plan.rounds}",
        accuracy,
        smoothed,
        human_bytes(sent) if rows else "",
        f"{seconds:.0f}" if rows else "",
    ]


def _figures(place: Place) -> str:
    """`, accuracy 0.9123, 3.2 MB, 41 s` of a run that has rows."""
    _, _, _, accuracy, _, sent, seconds = _row(place)
    if not accuracy:
        return ""
    return f", accuracy {accuracy}, {sent}, {seconds} s"


def _to_go(place: Place) -> int:
    if place.standing not in ("new", "partial"):
        return 0
    return max(0, place.cell.plan.rounds - place.done)
