"""The ServerApp: a run like any other, whose clients are on Flower's nodes.

app = server_app()
"""

import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from signal import SIGINT, SIGTERM
from threading import current_thread, main_thread
from types import FrameType

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedwsq.core.errors import ConfigError, RunError
from fedwsq.federation.charter import comparable, difference
from fedwsq.flower.backend import OnFlower
from fedwsq.flower.plain import Config
from fedwsq.flower.settings import OWN, plan_of
from fedwsq.plan import Plan, plan_settings
from fedwsq.runs import Machine, Run
from fedwsq.runs.manifest import read_manifest
from fedwsq.runs.program import follow
from fedwsq.runs.run import read_plan, settle_on


def server_app() -> ServerApp:
    app = ServerApp()
    app.main()(main)
    return app


def main(grid: Grid, context: Context) -> None:
    """Begin the run that the run config spells out, or go on with it where it is already."""
    config = context.run_config
    folder = Path(str(config.get("out") or f"runs/flower-{context.run_id}")).expanduser()
    try:
        with interruptible(), opened(plan_for(config), folder, grid, config) as run:
            notes = [f"{run.folder.absolute()}: rounds {len(run.records) + 1} to {run.plan.rounds}"]
            result = follow(run, [*notes, *run.warnings], [], progress=True, debug=False)
    except KeyboardInterrupt:
        raise RunError(f"stopped; run it again with out='{folder}' to go on") from None
    print(f"{folder}: weights {result.summary.weights}", flush=True)


def plan_for(config: Config) -> Plan:
    """The plan of a run config; who has no data to test on asks the clients that have."""
    plan = plan_of(config)
    blind = plan.data.partition.name == OWN and not config.get("test-data")
    if blind and plan.metric.name == "accuracy":
        return replace(plan, eval_clients=True)
    return plan


def opened(plan: Plan, folder: Path, grid: Grid, config: Config) -> AbstractContextManager[Run]:
    """A new run in `folder`, or the one that is there, which must be of the same plan."""

    def backend(plan: Plan, machine: Machine) -> OnFlower:
        return OnFlower(plan, machine, grid, config)

    if not (folder / "config.toml").exists():
        return Run.create(plan, folder, workers=1, backend=backend)
    settled, _ = settle_on(plan, 1, "auto")
    there = read_plan(folder, read_manifest(folder))
    asked, begun = (
        comparable({"plan": plan_settings(replace(each, rounds=1))}) for each in (settled, there)
    )
    different = difference(asked, begun)
    if different is not None:
        raise ConfigError(
            f"{folder} holds a run of another plan ({different}); choose another out, or ask for "
            "what it was begun with"
        )
    return Run.resume(folder, {"rounds": plan.rounds}, workers=1, backend=backend)


@contextmanager
def interruptible() -> Iterator[None]:
    """Whatever Flower ends a ServerApp with saves and stops as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if current_thread() is not main_thread():  # a simulation's; it alone may say what signals do
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in (SIGINT, SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
