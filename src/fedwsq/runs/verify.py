"""Running a receipt again: the same packets and weights, round by round, or where they part."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedwsq.core.errors import ConfigError, RunError
from fedwsq.core.tree import fingerprint
from fedwsq.federation.record import RoundRecord
from fedwsq.plan import PLACES, Plan, make_plan
from fedwsq.plan.read import Settings, parse_toml
from fedwsq.runs.checkpoint import LAST, read_checkpoint
from fedwsq.runs.receipt import FILES, Receipt, environment_changes
from fedwsq.runs.run import Listener, Run


class Differs(RunError):
    """A repetition that is not one."""


class _Enough(Exception):
    """Everything that was asked for is compared."""


# What a row says of its round that the same packets and weights give again.
MEASURED = (
    "test_accuracy",
    "test_loss",
    "validation_accuracy",
    "validation_loss",
    "uplink_bytes",
    "downlink_bytes",
)


@dataclass(frozen=True)
class Verification:
    """How to repeat the run of a receipt. `places` say where its files lie here.

    With the run's own `rows` what they measured is compared too: accuracies, losses and bytes.
    """

    receipt: Receipt
    places: Mapping[str, Any]
    rounds: int | None = None  # only the first so many; None: all
    workers: int = 0
    device: str = "auto"
    rows: Sequence[RoundRecord] = ()

    def settings(self) -> Settings:
        """Of the plan, as the receipt has them."""
        try:
            return parse_toml(self.receipt.settings)
        except ValueError as error:
            raise RunError(f"the settings of the receipt cannot be read: {error}") from None

    def plan(self) -> Plan:
        for key in self.places:
            if key not in PLACES:
                raise ConfigError(
                    f"{key} cannot change, only where files lie ({', '.join(PLACES)}) can: "
                    "a receipt is of one plan"
                )
        known = len(self.receipt.weights)
        if self.rounds is not None and not 1 <= self.rounds <= known:
            raise ConfigError(
                f"--rounds is {self.rounds}, must be from 1 to the {known} of the receipt; left "
                "out, all are repeated"
            )
        plan = make_plan(self.settings(), self.places)
        if plan.rounds < known:
            raise RunError(f"the receipt has {known} rounds, and its plan {plan.rounds}")
        return plan

    @contextmanager
    def opened(self, folder: Path, checkpoint: Path | None = None) -> Iterator[Run]:
        """The run again in an empty folder, from its first round or from a checkpoint of it."""
        with Run.create(self.plan(), folder, self.workers, self.device) as run:
            self._require_files(run)
            if checkpoint is None:
                yield run
                return
        start(folder, checkpoint, self.receipt)
        with Run.resume(folder, workers=self.workers) as run:
            yield run

    def repeat(self, run: Run, listen: Listener) -> None:
        """Go on with the run until all is compared; `Differs` at the first round that does."""
        last = self.rounds or len(self.receipt.weights)
        rows = {row.round: row for row in self.rows}

        def check(record: RoundRecord) -> None:
            said = self.receipt.difference(record)
            if said is None and record.round in rows:
                said = measured_otherwise(rows[record.round], record)
            if said is not None:
                raise Differs(f"round {record.round} differs first: {said}")
            listen(record)
            # Not by fewer rounds in the plan: a schedule may depend on them.
            if record.round == last:
                raise _Enough

        with suppress(_Enough):
            run.go([check])

    def warnings(self, run: Run) -> list[str]:
        changed = environment_changes(self.receipt, run.manifest())
        if not changed:
            return []
        return [f"weights may differ in their last bits here: {', '.join(changed)}"]

    def _require_files(self, run: Run) -> None:
        manifest = run.manifest()
        for name in FILES:
            if str(manifest[name]) != self.receipt.files.get(name):
                raise Differs(
                    f"{name} is not what the receipt is of: its digest is {manifest[name]}, the "
                    f"receipt has {self.receipt.files.get(name)}; say where the right files lie, "
                    "for example data.root=DIR"
                )


def measured_otherwise(row: RoundRecord, record: RoundRecord) -> str | None:
    """What a row says of its round and the repetition does not; None if they agree."""
    for name in MEASURED:
        before, now = getattr(row, name), getattr(record, name)
        if before != now:
            return f"its {name} is {now}, the run's row has {before}"
    return None


def start(folder: Path, checkpoint: Path, receipt: Receipt) -> None:
    """Put a run that has not begun where a checkpoint of the receipt's run was."""
    snapshot = read_checkpoint(checkpoint)
    known = len(receipt.weights)
    if not 1 <= snapshot.round < known:
        raise ConfigError(
            f"{checkpoint} is of round {snapshot.round}; the receipt has rounds 1 to {known}, and "
            "one has to be left to repeat"
        )
    found = fingerprint(snapshot.server["params"])
    if found != receipt.weights[snapshot.round - 1]:
        raise Differs(
            f"{checkpoint}, of round {snapshot.round}, has weights {found}, the receipt has "
            f"{receipt.weights[snapshot.round - 1]}"
        )
    shutil.copyfile(checkpoint, folder / "checkpoints" / LAST)
    # What clients remember lies beside the checkpoints of a run; some methods go on from it.
    memory = checkpoint.absolute().parents[1] / "clients"
    if memory.is_dir():
        shutil.copytree(memory, folder / "clients", ignore=_all_but_files, dirs_exist_ok=True)


def _all_but_files(folder: str, names: list[str]) -> list[str]:
    """What is no memory of a client: links, which lead anywhere, and what may never end."""
    plain = []
    for entry in os.scandir(folder):
        if entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False):
            plain.append(entry.name)
    return [name for name in names if name not in plain]
