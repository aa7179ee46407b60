"""Rounds for TensorBoard, Weights & Biases and MLflow, as they come (extras of those names).

Every number of a row goes out under its own name. Weights & Biases and MLflow go where their own
settings say (`WANDB_MODE`, `MLFLOW_TRACKING_URI`, ...); a run that is resumed goes on in the same
place.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fedwsq.core.errors import ConfigError
from fedwsq.federation.record import RoundRecord

PROJECT = "fedwsq"
NO_SCALARS = ("round", "seed")  # numbers that name a record rather than measure something


class Tracker(Protocol):
    """Takes rows; `add` is a listener of a run. What it has not written is written on `close`."""

    def add(self, record: RoundRecord) -> None: ...

    def close(self) -> None: ...


class Subject(NamedTuple):
    """The run that is tracked."""

    folder: Path
    id: str
    settings: Mapping[str, object]  # by dotted name


def scalars(record: RoundRecord) -> dict[str, float]:
    """What a record measures, by name."""
    found = asdict(record).items()
    return {k: x for k, x in found if isinstance(x, int | float) and k not in NO_SCALARS}


def require(tracker: str) -> Any:
    """The package that a tracker is made with, or an error that says how to get it."""
    module = {"tensorboard": "torch.utils.tensorboard"}.get(tracker, tracker)
    try:
        return import_module(module)
    except ImportError:
        raise ConfigError(f"--{tracker} needs an extra: pip install 'fedwsq[{tracker}]'") from None


class TensorBoard:
    """Writes event files, by default beside the run."""

    def __init__(self, run: Subject, folder: Path | None = None) -> None:
        place = folder or run.folder / "tensorboard"
        self._writer = require("tensorboard").SummaryWriter(str(place))

    def add(self, record: RoundRecord) -> None:
        for name, value in scalars(record).items():
            self._writer.add_scalar(name, value, record.round)

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """Its own files go beside the run; from there they are sent, or wait for `wandb sync`."""

    def __init__(self, run: Subject) -> None:
        self._run = require("wandb").init(
            project=PROJECT,
            name=run.folder.absolute().name,
            dir=str(run.folder),
            id=run.id,
            resume="allow",
            config=dict(run.settings),
        )

    def add(self, record: RoundRecord) -> None:
        self._run.log(scalars(record), step=record.round)

    def close(self) -> None:
        self._run.finish()


class Mlflow:
    """One MLflow run in the experiment `fedwsq`, found again by its tag."""

    def __init__(self, run: Subject) -> None:
        mlflow = require("mlflow")
        self._entities = mlflow.entities
        try:
            self._client = mlflow.MlflowClient()
            self._run = self._find(run)
        except mlflow.exceptions.MlflowException as error:
            raise ConfigError(
                f"--mlflow has no place to write to: {' '.join(str(error).split())}; "
                "name a server in MLFLOW_TRACKING_URI"
            ) from None

    def add(self, record: RoundRecord) -> None:
        now = int(1000 * time.time())
        metric = self._entities.Metric
        found = [metric(key, x, now, record.round) for key, x in scalars(record).items()]
        self._client.log_batch(self._run, metrics=found)

    def close(self) -> None:
        self._client.set_terminated(self._run)

    def _find(self, run: Subject) -> str:
        """The id that MLflow has given to this run, or gives now."""
        client = self._client
        known = client.get_experiment_by_name(PROJECT)
        experiment = known.experiment_id if known else client.create_experiment(PROJECT)
        tag = f"{PROJECT}.run"
        for found in client.search_runs([experiment], f"tags.`{tag}` = '{run.id}'"):
            return str(found.info.run_id)
        name = run.folder.absolute().name
        made = client.create_run(experiment, run_name=name, tags={tag: run.id})
        param = self._entities.Param
        told = [param(key, str(value)) for key, value in run.settings.items()]
        client.log_batch(made.info.run_id, params=told)
        return str(made.info.run_id)


TRACKERS: dict[str, Callable[[Subject], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "mlflow": Mlflow,
}
