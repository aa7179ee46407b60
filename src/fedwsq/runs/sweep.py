"""Many runs in one folder: what is finished is skipped, what was stopped goes on."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from fedwsq.core.errors import FedwsqError, disk_is_full
from fedwsq.core.text import printable
from fedwsq.federation.record import RoundRecord
from fedwsq.plan import Plan, load_plan, locate, places
from fedwsq.plan.grid import Cell
from fedwsq.runs.directory import CLAIM, CONFIG, FolderInUse, locked, make_folder, require_free
from fedwsq.runs.failures import keeping_reason
from fedwsq.runs.reading import Reading, is_run, read_run
from fedwsq.runs.run import Run
from fedwsq.runs.shared import Shared
from fedwsq.transports.blame import in_one_line

# `elsewhere`: another process is at it.
Standing: TypeAlias = Literal["new", "partial", "finished", "failed", "damaged", "elsewhere"]


@dataclass(frozen=True)
class Place:
    """A cell, its directory and how far it is."""

    cell: Cell
    folder: Path
    reading: Reading | None = None  # None: nothing there yet
    busy: bool = False

    @property
    def done(self) -> int:
        """The last round that has a row."""
        return self.reading.rows[-1].round if self.reading and self.reading.rows else 0

    @property
    def standing(self) -> Standing:
        if self.busy:
            return "elsewhere"
        if self.reading is None:
            return "new"
        state = self.reading.state
        # One that failed before it had a config has nothing to go on from.
        if state != "damaged" and not self.reading.settings:
            return "new"
        early = state == "finished" and self.reading.stopped_early
        if state in ("failed", "damaged") or early:
            return state
        # It may have been asked for fewer rounds before, or for more.
        rounds = self.cell.plan.rounds
        enough = state == "finished" or self.reading.rounds > rounds
        return "finished" if enough and self.done >= rounds else "partial"


class Witness(Protocol):
    """Is told how a sweep goes."""

    def on_begin(self, place: Place, run: Run) -> None: ...

    def on_client(self, finished: int, asked: int) -> None: ...

    def on_round(self, record: RoundRecord) -> None: ...

    def on_end(self, place: Place, error: str) -> None:
        """A cell is finished, has failed (`error` says why), or is done elsewhere."""
        ...


@dataclass(frozen=True)
class Sweep:
    """The cells of a grid in a folder, one after the other. `workers` and `device` as of a run.

    Another process, or several, may be at the same folder: each cell is one's alone.
    """

    cells: Sequence[Cell]
    out: Path
    workers: int = 0
    device: str = "auto"

    def places(self) -> list[Place]:
        """Where every cell is, by what its run directory says rather than by its name."""
        plans = dict(_plans_in(self.out))
        found = []
        taken: set[Path] = set(plans)
        for cell in self.cells:
            homes = [folder for folder, plan in plans.items() if cell.is_run_of(plan)]
            folder = homes[0] if homes else _free_name(self.out / cell.name, taken)
            taken.add(folder)
            found.append(_look(cell, folder))
        return found

    def go(self, witness: Witness, retry: bool = False) -> list[Place]:
        """Run what is not finished; `retry` also what failed. Says how all stands.

        Ctrl-C saves what is complete and is passed on.
        """
        wanted = {"new", "partial"}
        if retry:
            wanted |= {"failed", "damaged"}
        ended = []
        with closing(Shared()) as shared:
            for place in self.places():
                if place.standing in wanted:
                    place = self._attempt(place, shared, witness)
                ended.append(place)
        return ended

    def _attempt(self, place: Place, shared: Shared, witness: Witness) -> Place:
        """One cell to its end, or to the reason why not."""
        error = ""
        busy = False
        make_folder(place.folder)
        try:
            with locked(place.folder, CLAIM):
                place = _look(place.cell, place.folder)  # again: another may have finished it
                if place.standing != "finished":
                    self._run(place, shared, witness)
        except FolderInUse:
            busy = True
        except FedwsqError as failed:
            error = printable(str(failed))
        except Exception as failed:
            # With a full disk the next cell would fail as well.
            if isinstance(failed, OSError) and disk_is_full(failed):
                raise
            error = printable(in_one_line(failed))
        ended = _look(place.cell, place.folder, busy)
        witness.on_end(ended, error)
        return ended

    def _run(self, place: Place, shared: Shared, witness: Witness) -> None:
        if place.standing == "new":
            require_free(place.folder)  # before an error.txt is put into somebody else's
        with keeping_reason(place.folder), self._opened(place, shared) as run:
            witness.on_begin(place, run)
            run.go([witness.on_round], witness.on_client)

    @contextmanager
    def _opened(self, place: Place, shared: Shared) -> Iterator[Run]:
        plan = place.cell.plan
        if place.standing == "new":
            opening = Run.create(plan, place.folder, self.workers, self.device, shared)
        else:
            changes: dict[str, object] = {**places(locate(plan))}
            if plan.rounds > place.done:
                changes["rounds"] = plan.rounds
            device = None if self.device == "auto" else self.device
            opening = Run.resume(place.folder, changes, self.workers, device, shared)
        with opening as run:
            yield run


def _look(cell: Cell, folder: Path, busy: bool = False) -> Place:
    reading = read_run(folder) if is_run(folder) else None
    return Place(cell, folder, reading, busy)


def _plans_in(out: Path) -> Iterator[tuple[Path, Plan]]:
    """The runs of a folder that can be told from their configs."""
    for path in sorted(out.glob("*/config.toml")):
        try:
            yield path.parent, load_plan(path)
        except FedwsqError:
            continue  # damaged, or of another version


def _free_name(folder: Path, taken: set[Path]) -> Path:
    """The folder of this name, or one with a number behind it if another run has that."""
    number = 1
    free = folder
    while free in taken or (free / CONFIG).exists():
        number += 1
        free = folder.with_name(f"{folder.name}_{number}")
    return free
