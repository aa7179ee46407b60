"""A run whose clients live on Flower's nodes, and what the server of it has."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from flwr.serverapp import Grid

from fedwsq.federation.charter import Charter
from fedwsq.federation.evaluator import OwnEvaluator, Scorer
from fedwsq.federation.owners import Census, ExampleFormat, ModelSpec, TestData, format_of
from fedwsq.federation.simulation import load_data, simulate
from fedwsq.flower.plain import Config
from fedwsq.flower.roster import Roster
from fedwsq.flower.settings import OWN, format_of_config, names_of_config, with_data
from fedwsq.flower.transport import FlowerTransport
from fedwsq.plan import Plan
from fedwsq.runs import Machine, Opened

PLAN = "plan"  # test-data=plan: the test examples of the data set that the plan names


class ServerData(NamedTuple):
    """What the server itself has: the form of an example, and examples to test on, if any."""

    format: ExampleFormat
    test: TestData | None
    digest: str = ""  # of who holds what; "": that is not the server's to know
    census: Census | None = None  # of a server that split the data itself
    names: tuple[str, ...] = ()  # of the classes, where nodes number them by their folders


class OnFlower:
    """A `Backend` over a grid."""

    def __init__(self, plan: Plan, machine: Machine, grid: Grid, run: Config) -> None:
        self.machine = machine
        self.data = server_data(plan, run)
        self.charter = Charter(plan, ModelSpec(plan, self.data.format))
        self.roster = Roster(grid, self.charter, print, self.data.names)
        self.data_digest = self.data.digest
        self.evaluated_on = "test" if self.data.test is None else self.data.test.name

    @property
    def census(self) -> Census:
        roster = self.roster
        own = self.data.census
        told = Census(roster.examples, label_counts=roster.label_counts)
        return replace(own or told, present=roster.present, channel=roster.channel)

    def try_out(self) -> None:
        """The examples are elsewhere; what can be told here is whether there is a model."""
        _ = self.charter.schema

    def open(self, store: Path) -> Opened:
        evaluator = None
        if self.data.test is not None:
            evaluator = OwnEvaluator(Scorer(self.charter, self.machine.device), self.data.test)
        return Opened(FlowerTransport(self.roster), evaluator)


def server_data(plan: Plan, run: Config) -> ServerData:
    """What the server tests on, and the form of an example, which it may have to be told."""
    if plan.data.partition.name != OWN:
        simulation = simulate(plan)
        return ServerData(
            simulation.model.format,
            simulation.test,
            simulation.clients.digest,
            simulation.census,
        )
    place = str(run.get("test-data") or "")
    if not place:
        return ServerData(format_of_config(run), None, names=names_of_config(run))
    here = plan if place == PLAN else with_data(plan, place)
    dataset, _, _ = load_data(here)
    form = format_of(dataset, plan)
    test = TestData("test", dataset.test, torch.arange(len(dataset.test)), form)
    return ServerData(form, test, names=dataset.class_names)
