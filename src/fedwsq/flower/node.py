"""What lives on one node: its clients, with their data and what they remember."""

import functools
import json
import os
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch

from fedwsq.core.errors import ConfigError, DataError
from fedwsq.core.types import Key
from fedwsq.data import Dataset
from fedwsq.federation.charter import Charter
from fedwsq.federation.learned import NO_KEYS, SumKeys
from fedwsq.federation.memory import ClientStore
from fedwsq.federation.owners import ExampleFormat, ModelSpec, OwnData
from fedwsq.federation.simulation import Simulation, simulate
from fedwsq.federation.site import Site
from fedwsq.flower.plain import Config, Request, Response, refusal
from fedwsq.flower.settings import OWN, Home, plan_of, read_format, read_names, with_data
from fedwsq.plan import dump_plan, load_plan, make_plan
from fedwsq.runs.backend import resolve_device
from fedwsq.training.precision import resolve_precision
from fedwsq.transports import Answer, Failure, Order, attempt
from fedwsq.transports.blame import in_one_line
from fedwsq.wire import Kind, decode, encode, kind_of, open_message

NOBODY = Key(0, 0, 0)  # the server's end knows whose answer it is; the head says whose work


class Node:
    """Answers requests with what Flower told the node and what is on its disk, and nothing else."""

    def __init__(self, run: Config, node: Config, format: str) -> None:
        self.home = Home.of(node)
        self.agreed = read_format(format)
        self.class_names = read_names(format)
        self.device = resolve_device(self.home.device)
        plan = load_plan(self.home.plan) if self.home.plan else plan_of(run)
        precision = resolve_precision(plan.training.precision, self.device)
        self.plan = replace(plan, training=replace(plan.training, precision=precision))
        self.memory = Path(self.home.memory or default_memory()).expanduser()

    def answer(self, request: Request) -> Response:
        clients: Sequence[int] = ()
        if any(kind_of(head) is Kind.HELLO for head in request.heads):
            clients = self.clients
            answers = [self._introduce(client, request.heads[0]) for client in clients]
        else:
            pairs = zip(request.heads, request.on, strict=True)
            answers = [self._work(request.bodies[number], head) for head, number in pairs]
        payloads = [b"" if isinstance(answer, Failure) else answer.payload for answer in answers]
        reasons = [answer.reason if isinstance(answer, Failure) else "" for answer in answers]
        return Response(payloads, reasons, clients)

    @cached_property
    def clients(self) -> Sequence[int]:
        """Those that live here."""
        count = self.plan.data.clients
        home = self.home
        if self.owns_data:
            if home.client is None or home.client >= count:
                raise ConfigError(
                    f"client is {home.client} in the node config, must be a number below "
                    f"data.clients = {count}"
                )
            return [home.client]
        if home.partition is None or not home.partitions:
            raise ConfigError(
                "the node config must say which clients of the simulation live here, such as "
                "partition-id=0 num-partitions=3"
            )
        return range(home.partition, count, home.partitions)

    @property
    def owns_data(self) -> bool:
        return self.plan.data.partition.name == OWN

    @cached_property
    def site(self) -> Site:
        self._require_secure()
        if self.owns_data:
            return self._own_site()
        if self.home.data:
            raise ConfigError(
                "the node has data of its own, but the plan splits a data set over its clients; "
                "run it with data.partition=own"
            )
        return simulated_site(dump_plan(self.plan), str(self.device), self._keys())

    def _require_secure(self) -> None:
        """The plan may come from the server, which must not turn off what keys are there for."""
        if self.home.keys and not self.plan.uplink.secure:
            raise ConfigError(
                "this node has keys for secure sums, and the run's plan does without "
                "uplink.secure: nothing is sent; start the node without keys if it may be"
            )

    def _keys(self) -> SumKeys:
        if not self.plan.uplink.secure:
            return NO_KEYS
        if not self.home.keys:
            raise ConfigError(
                "uplink.secure needs keys that do not come from the server: say where they are in "
                "the node config, such as keys='/keys/client-0'; fedwsq deploy keys makes them"
            )
        from fedwsq.secure.keys import FileKeys

        keyring = FileKeys(Path(self.home.keys).expanduser())
        return SumKeys(keyring, self.memory / "promises")

    def _own_site(self) -> Site:
        if not self.home.data:
            raise ConfigError(
                "data.partition = own: the node config must say where this node's examples are, "
                "such as client=0 data='/data/mine.npz'"
            )
        found = with_data(self.plan, self.home.data, self.agreed.classes).data.load()
        dataset = numbered_alike(found, self.class_names, self.agreed.classes)
        form = own_format(dataset, self.agreed)
        charter = Charter(self.plan, ModelSpec(self.plan, form))
        (client,) = self.clients
        data = OwnData(client, dataset, form)
        return Site(charter, data, self.device, keys=self._keys())

    def _introduce(self, client: int, head: bytes) -> Answer:
        """Answer a hello to everyone for one client."""
        hello = decode(head, None, Kind.HELLO)
        own = replace(hello, key=hello.key._replace(client=client))
        order = Order(NOBODY, encode(own, self.site.charter.schema))
        return attempt(self.site.answer, b"", order)

    def _work(self, body: bytes, head: bytes) -> Answer:
        return attempt(self._serve, body, Order(NOBODY, head))

    def _serve(self, body: bytes | memoryview, order: Order) -> bytes:
        # Runs come and go on a node, and what clients remember of one is nothing to another.
        run = open_message(order.head).header.run
        self.memory.mkdir(parents=True, exist_ok=True)
        self.site.store = ClientStore(self.memory / run.hex(), self.plan.checkpoint_every)
        return self.site.answer(body, order)


def numbered_alike(dataset: Dataset, names: Sequence[str], classes: int) -> Dataset:
    """The data set with its classes numbered as everywhere in the federation.

    A folder of images numbers the classes that it has; one that lacks a class would number those
    after it otherwise than others do.
    """
    own = dataset.class_names
    if not own or own == tuple(names):
        return dataset
    if not names:
        if len(own) == classes:
            return dataset
        raise DataError(
            f"there are folders for {len(own)} of {classes} classes ({_some(own)}), and the "
            "server does not say what they are called; it can: class-names='cats, dogs' in the "
            "run config"
        )
    for name in own:
        if name not in names:
            raise DataError(f"class {name} is not one of the federation's: {_some(names)}")
    numbers = torch.tensor([names.index(name) for name in own])
    return replace(
        dataset,
        train=dataset.train.relabelled(numbers[dataset.train.labels]),
        test=dataset.test.relabelled(numbers[dataset.test.labels]),
        classes=len(names),
        class_names=tuple(names),
    )


def _some(names: Sequence[str]) -> str:
    """The first names, for a message."""
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")


def own_format(dataset: Dataset, agreed: ExampleFormat) -> ExampleFormat:
    """The agreed format with the shape of the examples that are here, which a hello compares."""
    labels = dataset.train.labels
    if labels.is_floating_point() or not len(labels) or int(labels.max()) < agreed.classes:
        return agreed._replace(shape=dataset.shape)
    raise DataError(
        f"a training label is {int(labels.max())}, but the federation has {agreed.classes} "
        f"classes, 0 to {agreed.classes - 1}"
    )


def default_memory() -> Path:
    return Path(os.environ.get("FLWR_HOME") or "~/.flwr") / "fedwsq"


@functools.lru_cache(maxsize=1)
def simulation_of(plan: str) -> Simulation:
    """Flower's simulation has many nodes in one process, which share the data."""
    return simulate(make_plan(tomllib.loads(plan)))


@functools.lru_cache(maxsize=1)
def simulated_site(plan: str, device: str, keys: SumKeys) -> Site:
    """All clients of a simulation, for the nodes of this process that have the same keys."""
    return simulation_of(plan).site(torch.device(device), keys=keys)


@functools.lru_cache(maxsize=1)
def node_of(settings: str) -> Node:
    """The node of these settings, as long as this process lives."""
    run, node, format = json.loads(settings)
    return Node(run, node, format)


def serve(run: Config, node: Config, request: Request) -> Response:
    """Answer a request; what is wrong with the node as a whole is the answer to every order."""
    try:
        return node_of(json.dumps([dict(run), dict(node), request.format])).answer(request)
    except Exception as error:
        return refusal(request, in_one_line(error))
