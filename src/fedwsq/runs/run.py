"""A run in a directory: config, rows, checkpoints and models on disk, from the first round to the last."""

import copy
import json
import math
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch

import fedwsq
from fedwsq.plan.build import dump_plan, load_plan, locate, make_plan, plan_digest, plan_settings
from fedwsq.core.errors import ConfigError, RunError
from fedwsq.core.files import save_tensors, try_lock, write_atomically
from fedwsq.core.tree import fingerprint
from fedwsq.core.types import Params
from fedwsq.wire.channels import Trace
from fedwsq.runs.checkpoint import load_snapshot, save_snapshot
from fedwsq.federation.server import Federation, Progress, Snapshot, first_snapshot
from fedwsq.transports.pool import Backend, Pool, Recorded, Serial
from fedwsq.plan.settings import Plan
from fedwsq.federation.record import RoundRecord
from fedwsq.federation.site import Site
from fedwsq.federation.workload import Workload, build_workload, resolve_device
from fedwsq.models import bake, weights_digest
from fedwsq.models.weights import baked_metadata
from fedwsq.training.local import load, resolve_precision

FORMAT = 1
MAX_EMPTY_ROUNDS = 3  # without a single reply, in a row: then nobody will ever answer


@dataclass(frozen=True)
class Summary:
    """What a run came to: its accuracy, its traffic, and how many times less than float32 that was."""

    rounds: int
    accuracy: float | None
    accuracy_ema: float | None
    best_accuracy: float | None
    best_round: int | None
    uplink_bytes: int
    downlink_bytes: int
    uplink_factor: float
    downlink_factor: float
    total_factor: float
    seconds: float
    weights: str

    @property
    def total_bytes(self) -> int:
        """Both directions."""
        return self.uplink_bytes + self.downlink_bytes


class Run:
    """A directory and the federation in it. Use `create` or `resume`, then `go`, inside a `with`."""

    def __init__(self, folder: Path, plan: Plan, snapshot: Snapshot | None, workers: int, device: torch.device) -> None:
        self.folder, self.plan, self.workers, self.device = folder, plan, workers, device
        self.warnings: list[str] = []
        self.records: list[RoundRecord] = []
        self.digest = plan_digest(plan)
        self.workload: Workload = build_workload(plan)
        self._start = snapshot or first_snapshot(self.workload)
        self._committed = self._start  # the last state whose row is written
        self._saved = self._start.round if snapshot else -1

    @classmethod
    @contextmanager
    def create(cls, plan: Plan, folder: Path, workers: int = 0, device: str = "auto") -> Iterator["Run"]:
        """A new run in `folder`, which must not hold one."""
        chosen = resolve_device(device)
        precision = resolve_precision(plan.training.precision, chosen)
        plan = replace(plan, training=replace(plan.training, precision=precision))
        plan = locate(plan)
        _require_free(folder)
        run = cls(folder, plan, None, default_workers(workers, plan, chosen), chosen)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot create {folder}: {error.strerror}") from None
        with locked(folder):
            _require_free(folder)  # again: building takes a while, and another process may have been quicker
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # of a start that came to nothing
            write_atomically(folder / "manifest.json", json.dumps(run.manifest(), indent=2).encode())
            run._save()
            write_atomically(folder / "config.toml", dump_plan(plan).encode())  # last: from here on it can be resumed
            yield run

    @classmethod
    @contextmanager
    def resume(
        cls,
        folder: Path,
        rounds: int | None = None,
        workers: int = 0,
        device: str | None = None,
        moved: Mapping[str, str] | None = None,
    ) -> Iterator["Run"]:
        """Go on with the run in `folder` from its last whole checkpoint, for more rounds if asked.

        `moved` says where files lie now: {"data.root": "/data"}, for this time only.
        """
        manifest = read_manifest(folder)
        if not (folder / "config.toml").exists():
            raise RunError(f"{folder} was stopped before its run began; start it again: fedwsq run --out {folder}")
        plan = load_plan(folder / "config.toml")
        if plan_digest(plan) != manifest.get("config"):
            raise RunError(
                f"{folder / 'config.toml'} was changed since the run began; put it back or start another run"
            )
        if rounds is not None:
            if plan.training.schedule == "published" and rounds != plan.rounds:
                raise ConfigError('training.schedule = "published" depends on rounds, which cannot change on resume')
            plan = replace(plan, rounds=rounds)
        with locked(folder):
            snapshot, warning = load_snapshot(folder / "checkpoints")
            if rounds is not None and rounds < snapshot.round:
                raise ConfigError(f"rounds is {rounds}, but {folder} has run {snapshot.round} rounds already")
            chosen = resolve_device(device or manifest.get("device", "auto"))
            here = locate(make_plan(plan_settings(plan), moved)) if moved else plan
            run = cls(folder, here, snapshot, default_workers(workers, plan, chosen), chosen)
            run.digest = plan_digest(plan)
            run._require_the_same(manifest)
            write_atomically(folder / "config.toml", dump_plan(plan).encode())
            run.records = run._rewind(snapshot.round)
            run.warnings += [f"{warning}; going on from round {snapshot.round}"] if warning else []
            run.warnings += _differences(manifest, run.manifest())
            yield run

    def go(
        self,
        listeners: Sequence[Callable[[RoundRecord], None]] = (),
        progress: Progress | None = None,
        keep_messages: bool = False,
    ) -> Summary:
        """Run the remaining rounds, telling the listeners of each. Ctrl-C saves what is complete and is passed on."""
        with closing(self._open_backend()) as backend, open(self.folder / "rounds.jsonl", "a") as rows:
            recorded = Recorded(backend, self.folder / "messages") if keep_messages else backend
            federation = Federation(self.workload, recorded, self._start, self.folder)
            try:
                while self._committed.round < self.plan.rounds and not self._reached():
                    self._commit(federation, replace(federation.step(progress), config=self.digest), rows)
                    for listen in listeners:
                        listen(self.records[-1])
                    self._require_replies()
            finally:
                self._save()
        self._require_replies(whole=True)
        self._export("model.safetensors", self._committed)
        return self.summary()

    def summary(self) -> Summary:
        """The totals of all rows so far."""
        rows = self.records
        scored = [row for row in rows if row.accuracy is not None]
        best = max(scored, key=lambda row: (row.accuracy, -row.round), default=None)
        up, down = sum(r.uplink_bytes for r in rows), sum(r.downlink_bytes for r in rows)
        up32, down32 = sum(r.uplink_bytes_float32 for r in rows), sum(r.downlink_bytes_float32 for r in rows)
        return Summary(
            rounds=self._committed.round,
            accuracy=scored[-1].accuracy if scored else None,
            accuracy_ema=self._committed.accuracy_ema,
            best_accuracy=best.accuracy if best else None,
            best_round=best.round if best else None,
            uplink_bytes=up,
            downlink_bytes=down,
            uplink_factor=up32 / max(1, up),
            downlink_factor=down32 / max(1, down),
            total_factor=(up32 + down32) / max(1, up + down),
            seconds=sum(r.seconds for r in rows),
            weights=fingerprint(self._committed.server["params"]),
        )

    def manifest(self) -> dict[str, Any]:
        """What a reader needs to judge whether another machine would give the same weights."""
        return {
            "format": FORMAT,
            "fedwsq": fedwsq.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "device": str(self.device),
            "workers": self.workers,
            "precision": self.plan.training.precision,
            "seed": self.plan.seed,
            "config": self.digest,
            "init": weights_digest(self.plan.model.init) if self.plan.model.init else "",
            "data": self.workload.data_digest,
            "trace": self.plan.channels.digest() if isinstance(self.plan.channels, Trace) else "",
            "frozen": self.workload.schema.frozen.hex(),
            "run": self._start.run.hex(),
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }

    def _open_backend(self) -> Backend:
        store = self.folder / "clients"
        if self.workers > 1:
            return Pool(dump_plan(self.plan), self.workers, self.device, store)
        return Serial(Site(self.workload, self.device, store))

    def _commit(self, federation: Federation, record: RoundRecord, rows: TextIO) -> None:
        """A round is done: its row first, then the models and the checkpoint. Resuming drops rows past a checkpoint."""
        rows.write(record.line())
        rows.flush()
        os.fsync(rows.fileno())
        before = max((row.accuracy for row in self.records if row.accuracy is not None), default=-math.inf)
        self.records.append(record)
        self._committed = federation.snapshot
        if record.accuracy is not None and record.accuracy > before:
            self._export("best.safetensors", self._committed)
        if record.round % self.plan.checkpoint_every == 0:
            self._save()

    def _require_the_same(self, manifest: Mapping[str, Any]) -> None:
        """Refuse to go on with other data, another file or other frozen weights than the run began with."""
        if self.workload.data_digest != manifest.get("data", self.workload.data_digest):  # older runs do not say
            raise RunError(
                "the data is not what the run began with: its training labels, or who holds which example, have "
                "changed; put the files and the settings of where they are back, or start another run"
            )
        channels, init = self.plan.channels, self.plan.model.init
        if isinstance(channels, Trace) and channels.digest() != manifest.get("trace"):
            raise RunError(f"trace {channels.path} was changed since the run began; put it back or start another run")
        if init and weights_digest(init) != manifest.get("init"):
            raise RunError(f"model.init = {init} was changed since the run began; put it back or start another run")
        if self.workload.schema.frozen.hex() != manifest.get("frozen", ""):
            raise RunError(
                "the frozen weights are not those that the run began with: the seed gives others in this version of "
                "torch or of the model; go back to that version, or start another run"
            )

    def _require_replies(self, whole: bool = False) -> None:
        """Give up when nobody has replied for some rounds, or in the `whole` run."""
        recent = self.records if whole else self.records[-MAX_EMPTY_ROUNDS:]
        if recent and (whole or len(recent) == MAX_EMPTY_ROUNDS) and not any(row.replied for row in recent):
            reason = next(iter(recent[-1].failures.values()), "no client was asked: the bit policy let all sit out")
            rounds = f"{len(recent)} rounds in a row" if len(recent) > 1 else "one round"
            raise RunError(f"{rounds} without a reply; the last reason was: {reason}")

    def _reached(self) -> bool:
        accuracy = self.records[-1].accuracy if self.records else None
        return bool(self.plan.stop_at_accuracy and accuracy is not None and accuracy >= self.plan.stop_at_accuracy)

    def _save(self) -> None:
        if self._committed.round != self._saved:
            save_snapshot(self.folder / "checkpoints", self._committed)
            self._saved = self._committed.round

    def _export(self, name: str, snapshot: Snapshot) -> None:
        """Write the model as a plain `state_dict`: weight standardization is folded into the weights."""
        model = copy.deepcopy(self.workload.model)
        load(model, snapshot.server["params"])
        metadata = {"round": str(snapshot.round), "config": self.digest, **baked_metadata(model)}
        plain: Params = dict(bake(model).state_dict())
        save_tensors(self.folder / name, plain, metadata)

    def _rewind(self, last: int) -> list[RoundRecord]:
        """Drop rows after the checkpoint, and a last line that was cut short."""
        path = self.folder / "rounds.jsonl"
        lines = path.read_text(errors="replace").splitlines(keepends=True) if path.exists() else []
        kept: list[RoundRecord] = []
        for number, line in enumerate(lines, 1):
            try:
                kept += [RoundRecord.parse(line)] if line.endswith("\n") else []
            except ValueError:
                raise RunError(
                    f"{path}, line {number}, is damaged; remove the line to go on without that row"
                ) from None
        kept = [record for record in kept if record.round <= last]
        if [record.round for record in kept] != list(range(1, last + 1)):
            self.warnings.append(f"{path} lacks rows of rounds 1 to {last}: totals of bytes and seconds will be short")
        write_atomically(path, "".join(record.line() for record in kept).encode())
        return kept


def default_workers(workers: int, plan: Plan, device: torch.device) -> int:
    """As many as asked, else as many as cores or GPUs; never more than there are clients in a round."""
    if workers < 0:
        raise ConfigError(f"workers is {workers}, must be at least 1 (0: as many as cores)")
    if not workers and device.type == "cpu":
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    elif not workers and device == torch.device("cuda"):
        workers = torch.cuda.device_count()
    return min(workers or 1, plan.clients_per_round)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run directory of this format."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
    except FileNotFoundError:
        raise RunError(f"{folder} is not a run directory: it has no manifest.json") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{folder / 'manifest.json'} cannot be read: {error}") from None
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != FORMAT:
        raise RunError(f"{folder} has run format {found}, this build (fedwsq {fedwsq.__version__}) reads {FORMAT}")
    return dict(manifest)


def _require_free(folder: Path) -> None:
    if (folder / "config.toml").exists():
        raise RunError(f"{folder} already holds a run; go on with it (fedwsq resume) or choose another --out")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the directory: two processes must not write to one run."""
    try:
        file = open(folder / ".lock", "a")  # noqa: SIM115
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {error.strerror}") from None
    with file:
        if not try_lock(file):
            raise RunError(f"{folder} is in use by another process; choose another --out or wait for it")
        yield


def cpu_name() -> str:
    """The processor's name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What makes bit-for-bit equality with an undisturbed run unlikely."""
    changed = [key for key in ("fedwsq", "torch", "numpy", "cpu", "device") if before.get(key) != now[key]]
    if not changed:
        return []
    said = ", ".join(f"{key} was {before.get(key)} and is {now[key]}" for key in changed)
    return [f"the machine has changed ({said}): weights may differ in the last bits from an undisturbed run"]


def run(
    config: Plan | str | Path = "quickstart",
    overrides: Mapping[str, Any] | Sequence[str] = (),
    *,
    out: str | Path,
    workers: int = 0,
    device: str = "auto",
) -> Summary:
    """Run a plan, a TOML file or a shipped config in the directory `out`, and return what it came to.

    `fedwsq.run("quickstart", {"uplink.bits": 1, "rounds": 20}, out="runs/one-bit")`
    """
    if isinstance(config, Plan) and overrides:
        raise ConfigError("overrides are for a config; a plan is changed with dataclasses.replace before it is run")
    plan = config if isinstance(config, Plan) else load_plan(config, overrides)
    with Run.create(plan, Path(out), workers, device) as opened:
        return opened.go()
