"""What is analysed: a run with its model and its data, opened for reading."""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn

from fedwsq.core.errors import ConfigError, RunError
from fedwsq.core.seeds import torch_rng
from fedwsq.core.types import Params
from fedwsq.data.batches import normalize
from fedwsq.federation.owners import Batch
from fedwsq.federation.record import RoundRecord
from fedwsq.federation.server import Snapshot, first_snapshot
from fedwsq.federation.simulation import Simulation, simulate
from fedwsq.plan import Plan, load_plan
from fedwsq.runs.checkpoint import newest_snapshot, require_fit
from fedwsq.runs.directory import ROWS
from fedwsq.runs.reading import read_run
from fedwsq.training.local import load

BATCH = 250  # examples differentiated at once

Found: TypeAlias = dict[str, Any]  # what an analysis found, as JSON has it
Note: TypeAlias = Callable[[str], None]  # is told what is being done, and how long it will take


def say_nothing(text: str) -> None:
    pass


@dataclass(frozen=True)
class Options:
    """How much of it; what was taken is in the results too."""

    examples: int = 1000  # of the training data for curvature, of the test data for landscapes
    eigenvalues: int = 1
    tolerance: float = 1e-3  # of an eigenvalue, relative to it
    points: int = 11  # along each direction of a landscape
    reach: float = 1.0  # of a landscape: 1 is as far as each filter is long
    clients: int = 10
    seed: int = 0  # of examples and directions; the same for all that is compared
    note: Note = say_nothing

    def __post_init__(self) -> None:
        counts = {"examples": self.examples, "eigenvalues": self.eigenvalues}
        counts["clients"] = self.clients
        for name, value in counts.items():
            if value < 1:
                raise ConfigError(f"{name} is {value}, must be at least 1")
        if self.points < 3 or self.points % 2 == 0:
            raise ConfigError(
                f"points is {self.points}, must be odd, since one of them is the centre, "
                "and at least 3"
            )
        # Not "out of range", which nan never is.
        if not 0 < self.tolerance < 1:
            raise ConfigError(f"tolerance is {self.tolerance}, must be above 0 and below 1")
        if not 0 < self.reach < math.inf:
            raise ConfigError(f"reach is {self.reach}, must be above 0 and finite")


@dataclass(frozen=True)
class Subject:
    """A run: its plan, its data and the model that it came to."""

    folder: Path
    simulation: Simulation
    snapshot: Snapshot

    @property
    def name(self) -> str:
        return self.folder.absolute().name

    @property
    def plan(self) -> Plan:
        return self.simulation.plan

    @property
    def params(self) -> Params:
        """The model's tensors, as they are exchanged."""
        return self.snapshot.server["params"]

    @cached_property
    def rows(self) -> tuple[RoundRecord, ...]:
        """The rounds so far, as far as they can be read."""
        rows = read_run(self.folder).rows
        if not rows:
            raise RunError(f"{self.folder / ROWS} has no rounds to look at")
        return rows

    def network(self) -> nn.Module:
        """The model at `params` as it is evaluated, to be changed at will."""
        network = copy.deepcopy(self.simulation.model.network)
        load(network, self.params)
        return network.eval()

    @property
    def training_examples(self) -> int:
        """All that clients may hold."""
        return len(self.simulation.clients.kept)

    def training_batches(self, options: Options) -> Iterator[Batch]:
        """Some training examples, the same for every run on this data; not augmented."""
        kept = self.simulation.clients.kept
        order = torch.randperm(len(kept), generator=torch_rng(options.seed, "analysis"))
        chosen = kept[order[: options.examples]]
        for start in range(0, len(chosen), BATCH):
            part = chosen[start : start + BATCH]
            x, y = self.simulation.clients.dataset.train.take(part)
            form = self.simulation.model.format
            yield Batch(normalize(x, form.mean, form.std), y)


Analysis: TypeAlias = Callable[[Subject, Options], Found]


def open_run(folder: Path, note: Note = say_nothing) -> Subject:
    """The run in a directory, with the model of its newest checkpoint that is whole."""
    # A run of another version has another digest of its config, and can be looked at all the same.
    plan = load_plan(folder / "config.toml")
    snapshot, damage = newest_snapshot(folder / "checkpoints")
    if damage:
        note(f"{folder}: {damage}; what is looked at is the model after round {snapshot.round}")
    simulation = simulate(plan)
    # A config that was changed, or a checkpoint put there by hand.
    require_fit(snapshot, first_snapshot(simulation.charter))
    return Subject(folder, simulation, snapshot)
