"""A run in a directory: config, rows, checkpoints and models, from the first round to the last."""

import copy
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from torch import nn

from fedwsq.core.errors import ConfigError, RunError
from fedwsq.core.files import save_tensors, without_links, write_atomically
from fedwsq.core.text import printable
from fedwsq.core.types import Params
from fedwsq.federation.record import RoundRecord
from fedwsq.federation.server import Progress, Server, Snapshot, first_snapshot
from fedwsq.models import bake
from fedwsq.models.weights import baked_metadata
from fedwsq.plan import (
    PLACES,
    Plan,
    dump_plan,
    load_plan,
    locate,
    make_plan,
    plan_digest,
    plan_settings,
)
from fedwsq.runs.backend import (
    BackendFactory,
    Machine,
    Simulated,
    default_workers,
    resolve_device,
)
from fedwsq.runs.checkpoint import load_snapshot, require_fit, save_snapshot
from fedwsq.runs.directory import (
    CLASSES,
    CONFIG,
    MESSAGES,
    ROWS,
    STARTING,
    append_row,
    lacks_config,
    locked,
    lost_config,
    make_folder,
    model_before,
    require_free,
    rewind,
)
from fedwsq.runs.failures import LOG, Log, Watch, keeping_reason, stop_at_once
from fedwsq.runs.forecast import Forecast, foresee
from fedwsq.runs.manifest import (
    Manifest,
    machine_changes,
    make_manifest,
    read_manifest,
    require_the_same,
)
from fedwsq.runs.privacy import ASKED, UNREPEATABLE, Counting, Spent, spent
from fedwsq.runs.privacy import FILE as PRIVACY
from fedwsq.runs.receipt import RECEIPT, make_receipt
from fedwsq.runs.summary import Summary, summarize
from fedwsq.training.local import load
from fedwsq.training.precision import resolve_precision
from fedwsq.transports import Recorder, Transport

MAX_EMPTY_ROUNDS = 3  # without a single reply, in a row: then nobody will ever answer
Listener = Callable[[RoundRecord], None]


class Run:
    """A directory and the federation in it. `create` or `resume` it in a `with`, then `go`.

    `backend` says where the clients are; without one the plan is simulated on this machine.
    """

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        machine: Machine,
        snapshot: Snapshot | None = None,
        backend: BackendFactory = Simulated,
    ) -> None:
        self.folder = folder
        self.plan = plan
        self.machine = machine
        self.warnings: list[str] = [UNREPEATABLE] if plan.privacy is not None else []
        self.records: list[RoundRecord] = []
        self.digest = plan_digest(plan)
        self.backend = backend(plan, machine)
        self.charter = self.backend.charter
        self._start = snapshot or first_snapshot(self.charter)
        self._committed = self._start  # the last state whose row is written
        self._saved = self._start.round if snapshot else -1

    @classmethod
    @contextmanager
    def create(
        cls,
        plan: Plan,
        folder: Path,
        workers: int = 0,
        device: str = "auto",
        backend: BackendFactory = Simulated,
    ) -> Iterator["Run"]:
        """A new run in `folder`, which must hold neither one nor anything else."""
        plan, machine = settle_on(plan, workers, device)
        require_free(folder)
        run = cls(folder, plan, machine, backend=backend)
        run.backend.try_out()
        make_folder(folder)
        with locked(folder):
            require_free(folder)  # again: building takes a while, and another may have been quicker
            write_atomically(folder / STARTING, b"")
            # Of a start that came to nothing.
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
            manifest = json.dumps(run.manifest(), indent=2)
            write_atomically(folder / "manifest.json", manifest.encode())
            names = run.backend.census.class_names
            if names:
                write_atomically(folder / CLASSES, json.dumps(names).encode())
            run._save()
            # Last: from here on it can be resumed.
            write_atomically(folder / CONFIG, dump_plan(plan).encode())
            (folder / STARTING).unlink()
            with keeping_reason(folder):
                yield run

    @classmethod
    @contextmanager
    def resume(
        cls,
        folder: Path,
        changes: Mapping[str, Any] | None = None,
        workers: int = 0,
        device: str | None = None,
        backend: BackendFactory = Simulated,
    ) -> Iterator["Run"]:
        """Go on with the run in `folder` from its last whole checkpoint.

        `changes` may ask for more rounds, {"rounds": 80}, and say where files lie now,
        {"data.root": "/data"}; the latter for this time only.
        """
        moved = dict(changes or {})
        require_changeable(moved)
        rounds = moved.pop("rounds", None)
        manifest = read_manifest(folder)
        plan = read_plan(folder, manifest)
        if rounds is not None:
            plan = with_rounds(plan, rounds)
        with locked(folder):
            snapshot, damage = load_snapshot(folder / "checkpoints")
            if plan.rounds < snapshot.round:
                raise ConfigError(
                    f"rounds is {plan.rounds}, but {folder} has run {snapshot.round} rounds already"
                )
            chosen = resolve_device(device or str(manifest.get("device", "auto")))
            # Never decided again, but a run may come from a machine that had what this one lacks.
            resolve_precision(plan.training.precision, chosen)
            here = locate(make_plan(plan_settings(plan), moved)) if moved else plan
            machine = Machine(chosen, default_workers(workers, plan, chosen))
            run = cls(folder, here, machine, snapshot, backend)
            run.digest = plan_digest(plan)
            require_the_same(manifest, here, run.backend)
            require_fit(snapshot, first_snapshot(run.charter))
            write_atomically(folder / CONFIG, dump_plan(plan).encode())
            run.records, lost_rows = rewind(folder, snapshot.round)
            damage = damage and f"{damage}; going on from round {snapshot.round}"
            warnings = (damage, lost_rows, machine_changes(manifest, run.manifest()))
            run.warnings += [printable(warning) for warning in warnings if warning]
            with keeping_reason(folder):
                yield run

    def go(
        self,
        listeners: Sequence[Listener] = (),
        progress: Progress | None = None,
        keep_messages: bool = False,
        debug: bool = False,
    ) -> Summary:
        """Run the remaining rounds, telling the listeners of each.

        Ctrl-C saves what is complete and is passed on; so does the first failure with `debug`.
        """
        watches: list[Watch] = [Log(self.folder)]
        if debug:
            watches.append(stop_at_once)
        opened = self.backend.open(self.folder / "clients")
        transport, evaluator = opened.watched(watches)
        if self.plan.privacy is not None:
            transport = Counting(transport, self.folder / ASKED)
        with (
            closing(transport),
            open(self.folder / ROWS, "a", opener=without_links) as rows,
        ):
            server = Server(
                self.charter,
                self._recorded(transport, keep_messages),
                evaluator,
                self.backend.census,
                self._start,
                spill=self.folder,
            )
            try:
                while self._committed.round < self.plan.rounds and not self._reached():
                    self._keep_model()
                    record = replace(server.step(progress), config=self.digest)
                    self._commit(record, server.snapshot, rows)
                    for listen in listeners:
                        listen(record)
                    self._require_replies()
            finally:
                self._save()
        self._require_replies(whole=True)
        self._export("model.safetensors", self._committed)
        write_atomically(self.folder / "summary.json", self.summary().text().encode())
        receipt = make_receipt(self.plan, self.manifest(), self.records)
        if receipt is not None:
            write_atomically(self.folder / RECEIPT, receipt.text().encode())
        privacy = self.spent()
        if privacy is not None:
            write_atomically(self.folder / PRIVACY, privacy.text().encode())
        return self.summary()

    def spent(self) -> Spent | None:
        """The privacy that was spent so far; None where nothing is covered."""
        if self.plan.privacy is None:
            return None
        return spent(self.plan, self.plan.privacy, self.folder)

    @property
    def id(self) -> str:
        """Drawn when the run was created; no two have the same."""
        return self._start.run.hex()

    def summary(self) -> Summary:
        """The totals of all rows so far."""
        return summarize(self.records, self._committed, self.plan)

    def model(self) -> nn.Module:
        """The network as it now is, plain: standardization is folded into its weights.

        It takes what the run's data is normalized to, and is in evaluation mode on the CPU.
        """
        return bake(self._network(self._committed)).cpu().eval()

    def manifest(self) -> Manifest:
        made = make_manifest(self.plan, self.digest, self.backend, self.machine)
        return {**made, "run": self.id}

    def _recorded(self, transport: Transport, everything: bool) -> Transport:
        """The transport with files of what passes: of all rounds, or of those that are named."""
        if not everything and not self.plan.record.rounds:
            return transport
        return Recorder(
            transport, self.folder / MESSAGES, () if everything else self.plan.record.rounds
        )

    def _keep_model(self) -> None:
        """The model before the next round, if the plan wants that round kept."""
        number = self._committed.round + 1
        if number in self.plan.record.rounds:
            path = model_before(self.folder, number)
            save_tensors(path, self._committed.server["params"], {"round": str(number - 1)})

    def _commit(self, record: RoundRecord, snapshot: Snapshot, rows: TextIO) -> None:
        """A round is done: its row first, then the models and the checkpoint.

        Resuming drops rows past a checkpoint.
        """
        append_row(rows, record)
        earlier = [row.accuracy for row in self.records if row.accuracy is not None]
        self.records.append(record)
        self._committed = snapshot
        if record.accuracy is not None and all(record.accuracy > value for value in earlier):
            self._export("best.safetensors", snapshot)
        if record.round % self.plan.checkpoint_every == 0:
            self._save()

    def _require_replies(self, whole: bool = False) -> None:
        """Give up when nobody has replied for some rounds, or in the `whole` run."""
        recent = self.records if whole else self.records[-MAX_EMPTY_ROUNDS:]
        enough = len(recent) > 0 if whole else len(recent) == MAX_EMPTY_ROUNDS
        if not enough or any(row.replied for row in recent):
            return
        nobody = (
            "no client was asked: the bit policy let all sit out; give uplink.bits more time "
            "(deadline_seconds) or a smaller width (choices)"
        )
        reason = printable(next(iter(recent[-1].failures.values()), nobody))
        rounds = f"{len(recent)} rounds in a row" if len(recent) > 1 else "one round"
        where = self.folder / LOG
        more = f"; whole tracebacks are in {where}" if where.exists() else ""
        raise RunError(f"{rounds} without a reply; the last reason was: {reason}{more}")

    def _reached(self) -> bool:
        goal = self.plan.stop_at_accuracy
        accuracy = self.records[-1].accuracy if self.records else None
        return bool(goal) and accuracy is not None and accuracy >= goal

    def _save(self) -> None:
        if self._committed.round != self._saved:
            save_snapshot(self.folder / "checkpoints", self._committed)
            self._saved = self._committed.round

    def _export(self, name: str, snapshot: Snapshot) -> None:
        """Write the model as a plain `state_dict`: standardization is folded into the weights."""
        model = self._network(snapshot)
        metadata = {"round": str(snapshot.round), "config": self.digest, **baked_metadata(model)}
        plain: Params = dict(bake(model).state_dict())
        save_tensors(self.folder / name, plain, metadata)

    def _network(self, snapshot: Snapshot) -> nn.Module:
        model = copy.deepcopy(self.charter.model.network)
        load(model, snapshot.server["params"])
        return model


def settle_on(plan: Plan, workers: int, device: str) -> tuple[Plan, Machine]:
    """What `auto` means here, once and for all, and where this end computes."""
    chosen = resolve_device(device)
    precision = resolve_precision(plan.training.precision, chosen)
    plan = replace(plan, training=replace(plan.training, precision=precision))
    return locate(plan), Machine(chosen, default_workers(workers, plan, chosen))


def forecast(plan: Plan, workers: int = 0, device: str = "auto") -> tuple[Plan, Forecast]:
    """The plan as a run would have it, and what that would cost; nothing is written."""
    plan, machine = settle_on(plan, workers, device)
    simulated = Simulated(plan, machine)
    simulated.try_out()
    return plan, foresee(simulated.simulation, machine)


def read_plan(folder: Path, manifest: Manifest) -> Plan:
    """The plan of a run directory, as the run began with it."""
    path = folder / CONFIG
    if lacks_config(folder):
        raise RunError(f"{folder} cannot go on: {lost_config(folder)}")
    if not path.exists():
        raise RunError(
            f"{folder} was stopped before its run began; start it again: fedwsq run --out {folder}"
        )
    plan = load_plan(path)
    if plan_digest(plan) != manifest.get("config"):
        raise RunError(f"{path} was changed since the run began; put it back or start another run")
    return plan


def require_changeable(changes: Mapping[str, Any]) -> None:
    """Refuse to change what a run's weights depend on."""
    for key in changes:
        if key not in ("rounds", "patience", *PLACES):
            raise ConfigError(
                f"{key} cannot change on resume, only rounds, patience and where files lie "
                f"({', '.join(PLACES)}) can; start another run for that"
            )
    rounds = changes.get("rounds")
    if rounds is not None and (type(rounds) is not int or rounds < 1):
        raise ConfigError(f"rounds is {rounds!r}, must be a whole number of at least 1")


def with_rounds(plan: Plan, rounds: int) -> Plan:
    if plan.training.schedule == "published" and rounds != plan.rounds:
        raise ConfigError(
            'training.schedule = "published" depends on rounds, which cannot change on resume'
        )
    return replace(plan, rounds=rounds)
