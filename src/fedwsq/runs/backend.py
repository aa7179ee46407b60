"""Where a run's clients live: in this process, in worker processes, or elsewhere."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

import torch

from fedwsq.core.errors import ConfigError
from fedwsq.federation.charter import Charter
from fedwsq.federation.evaluator import Evaluator, SharedEvaluator
from fedwsq.federation.owners import Census
from fedwsq.federation.simulation import Loader, SitePool, simulate
from fedwsq.plan import Plan
from fedwsq.runs.failures import Watch, Watched
from fedwsq.runs.trial import try_out
from fedwsq.transports import Transport


class Machine(NamedTuple):
    """Where this end computes; it never decides what is computed."""

    device: torch.device
    workers: int = 1


class Opened(NamedTuple):
    """What is there as long as a run is going; closing the transport ends it."""

    transport: Transport
    evaluator: Evaluator | None

    def watched(self, watches: Sequence[Watch]) -> "Opened":
        """The same, with somebody told of every failure of a client or of the evaluation."""
        transport = Watched(self.transport, watches)
        evaluator = self.evaluator
        if isinstance(evaluator, SharedEvaluator):
            evaluator = replace(evaluator, transport=transport)
        return Opened(transport, evaluator)


class Backend(Protocol):
    """What a run needs to know of its clients, and the way to them."""

    @property
    def charter(self) -> Charter: ...

    @property
    def census(self) -> Census: ...

    @property
    def data_digest(self) -> str:
        """Of who holds what; "": unknown. A resumed run must find the same."""
        ...

    @property
    def evaluated_on(self) -> str:
        """What accuracy is measured on."""
        ...

    def try_out(self) -> None:
        """Find out what cannot work, as far as that can be told here; `ConfigError` if so."""
        ...

    def open(self, store: Path) -> Opened:
        """Set out. `store` is where clients of this machine keep what they remember."""
        ...


BackendFactory: TypeAlias = Callable[[Plan, Machine], Backend]


class Simulated:
    """All clients on this machine, with the data of the plan."""

    def __init__(self, plan: Plan, machine: Machine, load: Loader | None = None) -> None:
        self.machine = machine
        self.simulation = simulate(plan, load)
        self.charter = self.simulation.charter
        self.census = self.simulation.census
        self.data_digest = self.simulation.clients.digest
        self.evaluated_on = self.simulation.test.name

    def try_out(self) -> None:
        try_out(self.simulation, self.machine.device)

    def open(self, store: Path) -> Opened:
        transport = self.transport(store)
        evaluator = SharedEvaluator(self.charter, transport, self.simulation.test)
        return Opened(transport, evaluator)

    def transport(self, store: Path) -> Transport:
        if self.machine.workers == 1:
            return self.simulation.serial(self.machine.device, store)
        return SitePool(self.charter.plan, self.machine.workers, self.machine.device, store)


def resolve_device(device: str | torch.device) -> torch.device:
    """`auto` is the GPU where there is one."""
    if not isinstance(device, str | torch.device):
        raise ConfigError(f"device is {device!r}, must be a name: auto, cpu, cuda, cuda:1, mps")
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        # For a device that this build does not have, PyTorch goes on for thousands of characters.
        why = str(error).splitlines()[0].partition(". ")[0].rstrip(".")
        raise ConfigError(
            f"device '{device}' cannot be used here: {why}; auto takes what there is"
        ) from None
    return chosen


def default_workers(workers: int, plan: Plan, device: torch.device) -> int:
    """As many as asked, else as many as cores or GPUs; never more than a round has clients."""
    if workers < 0:
        raise ConfigError(f"workers is {workers}, must be at least 1 (0: as many as cores)")
    if not workers and device.type == "cpu":
        workers = _cores()
    elif not workers and device == torch.device("cuda"):
        workers = torch.cuda.device_count()
    return min(workers or 1, plan.clients_per_round)


def _cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
