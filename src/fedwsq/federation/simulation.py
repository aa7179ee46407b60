"""Everything in one place, rebuilt from the plan alone and the same in every process."""

import json
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from fedwsq.core.errors import ConfigError, DataError
from fedwsq.data import Dataset, Split
from fedwsq.data.partition import hold_back, hold_out
from fedwsq.data.split import split_of
from fedwsq.data.split_files import check_range
from fedwsq.federation.charter import Charter
from fedwsq.federation.evaluator import SharedEvaluator
from fedwsq.federation.learned import NO_KEYS, SumKeys
from fedwsq.federation.owners import Census, ModelSpec, SplitClients, TestData, format_of
from fedwsq.federation.server import Server, Snapshot, first_snapshot
from fedwsq.federation.site import Site
from fedwsq.plan import LoadData, Plan, dump_plan, make_plan
from fedwsq.transports import Pool, Serial, Serve, Setup, Transport

Loader: TypeAlias = Callable[[LoadData], Dataset]


@dataclass(frozen=True)
class Simulation:
    """A plan with the model, all clients' data and the server's test data."""

    plan: Plan
    model: ModelSpec
    clients: SplitClients
    test: TestData

    @cached_property
    def charter(self) -> Charter:
        return Charter(self.plan, self.model)

    @property
    def census(self) -> Census:
        """What a server that split the data itself knows of it."""
        sizes = self.clients.split.sizes
        return Census(
            lambda client: int(sizes[client]),
            certain=True,
            label_counts=lambda: self.clients.label_counts,
            class_names=self.clients.dataset.class_names,
        )

    def server(
        self, transport: Transport, snapshot: Snapshot | None = None, spill: Path | None = None
    ) -> Server:
        """The server of the simulation; the sites behind `transport` score for it too."""
        start = snapshot or first_snapshot(self.charter)
        evaluator = SharedEvaluator(self.charter, transport, self.test)
        return Server(self.charter, transport, evaluator, self.census, start, spill)

    def serial(self, device: torch.device, store: Path | None = None) -> Serial:
        """All clients in this process."""
        return Serial(self.site(device, store).answer)

    def site(
        self, device: torch.device, store: Path | None = None, keys: SumKeys = NO_KEYS
    ) -> Site:
        """Where every client of the simulation lives; `store` keeps what they remember."""
        return Site(self.charter, self.clients, device, store, self.test, keys)


class LastLoaded:
    """Loads data sets, and keeps the last one: plans in a row often have the same."""

    def __init__(self) -> None:
        self._last: tuple[LoadData, Dataset] | None = None

    def __call__(self, load: LoadData) -> Dataset:
        if self._last is None or self._last[0] != load:
            self._last = None  # two at a time might be too many
            self._last = (load, load())
        return self._last[1]


def load_data(plan: Plan, load: Loader | None = None) -> tuple[Dataset, Tensor, Tensor]:
    """The data set, the training examples that clients may hold and those held out."""
    dataset = load(plan.data.load) if load else plan.data.load()
    if not isinstance(dataset, Dataset):
        found = type(dataset).__name__
        raise ConfigError(f"data {plan.data.load.name!r} gave {found}, not a fedwsq Dataset")
    count = len(dataset.train)
    if not plan.data.validation:
        return dataset, torch.arange(count), torch.arange(0)
    kept, held_out = hold_out(count, plan.data.validation, plan.seed)
    if not len(held_out):
        raise ConfigError(
            f"data.validation = {plan.data.validation} of {count} examples holds none out; "
            "ask for more"
        )
    return dataset, kept, held_out


def split_data(plan: Plan, dataset: Dataset, kept: Tensor) -> Split:
    """Who holds which of the kept examples, before anyone keeps some back."""
    clients = plan.data.clients
    if plan.data.validation and len(kept) < clients:
        raise ConfigError(
            f"data.validation = {plan.data.validation} leaves {len(kept)} of "
            f"{len(dataset.train)} examples for {clients} clients, and each needs one; use a "
            "smaller data.validation"
        )
    groups = None if dataset.groups is None else dataset.groups[kept]
    split = plan.data.partition(
        labels=dataset.train.labels[kept],
        clients=clients,
        seed=plan.seed,
        groups=groups,
    )
    name = plan.data.partition.name
    if isinstance(split, list | tuple) and len(split):
        split = split_of(split)
        check_range(split, None, len(kept), f"split {name!r}")
        if len(split) != clients:
            raise ConfigError(
                f"split {name!r} gave {len(split)} lists of indices, and data.clients is "
                f"{clients}; it takes one for each client"
            )
    if not isinstance(split, Split):
        found = type(split).__name__
        raise ConfigError(
            f"split {name!r} gave {found}, not a fedwsq Split or a list with the indices of each "
            "client"
        )
    return split


def simulate(plan: Plan, load: Loader | None = None) -> Simulation:
    """Load the data and split it; a pure function of the plan and the files it names."""
    dataset, kept, held_out = load_data(plan, load)
    require_labels(plan, dataset)
    form = format_of(dataset, plan)
    if len(held_out):
        test = TestData("validation", dataset.train, held_out, form)
    else:
        test = TestData("test", dataset.test, torch.arange(len(dataset.test)), form)

    split = split_data(plan, dataset, kept)
    tests = None
    if plan.data.client_test:
        split, tests = hold_back(split, plan.data.client_test, plan.seed)
        if not len(tests.indices):
            raise ConfigError(
                "data.client_test needs clients with at least 2 examples; use fewer clients"
            )
    clients = SplitClients(dataset, form, kept, split, tests)
    return Simulation(plan, ModelSpec(plan, form), clients, test)


def require_labels(plan: Plan, dataset: Dataset) -> None:
    """Refuse labels that the criterion or the number of classes cannot be meant for."""
    labels = dataset.train.labels
    if labels.dtype.is_floating_point:
        if plan.training.criterion.name == "cross_entropy":
            raise ConfigError(
                "training.criterion = cross_entropy needs integer labels, and these are "
                f"{labels.dtype}; store classes as integers, or use "
                "training.criterion=squared_error with metric=minus_squared_error for a regression"
            )
        return
    if len(labels) and int(labels.max()) >= dataset.classes > 0:
        raise DataError(
            f"a training label is {int(labels.max())}, but the data set says that it has "
            f"{dataset.classes} classes, 0 to {dataset.classes - 1}"
        )


class SitePool(Pool):
    """A pool whose workers each rebuild the simulation of a plan."""

    def __init__(
        self, plan: Plan, workers: int, device: torch.device, store: Path | None = None
    ) -> None:
        # Any worker may be asked for any client, so they share one store.
        self._temporary = None
        if store is None:  # not a run in a directory
            self._temporary = tempfile.TemporaryDirectory(prefix="fedwsq-clients-")
            store = Path(self._temporary.name)
        super().__init__(site_setup(plan, device, store), workers, device, plan.patience)

    def close(self) -> None:
        super().close()
        if self._temporary is not None:
            self._temporary.cleanup()


def site_setup(plan: Plan, device: torch.device, store: Path) -> Setup:
    """What makes a worker the home of all clients of a plan."""
    settings = {"plan": dump_plan(plan), "device": str(device), "store": str(store)}
    return Setup(f"{__name__}:serve_plan", json.dumps(settings).encode())


_load_in_worker = LastLoaded()


def serve_plan(setup: bytes) -> Serve:
    """A worker's end: the whole simulation, ready for orders to any of its clients."""
    settings = json.loads(setup)
    simulation = simulate(make_plan(tomllib.loads(settings["plan"])), _load_in_worker)
    return simulation.site(torch.device(settings["device"]), Path(settings["store"])).answer
