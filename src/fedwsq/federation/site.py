"""A client, free of transport: the process pool and a deployed client both call `Site.serve`."""

import tempfile
import time
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch

from fedwsq.core.errors import MessageError, UpdateError
from fedwsq.core.tree import to_device
from fedwsq.core.types import Key, State, Vectors
from fedwsq.evaluation import Scores, score
from fedwsq.federation.store import ClientStore
from fedwsq.federation.workload import Workload
from fedwsq.training import LocalTask, learning_rates
from fedwsq.training.local import autocast, load
from fedwsq.wire import Kind, Link, Message, Packets, Shared, decode, encode
from fedwsq.wire.channels import Measured
from fedwsq.wire.downlink import Downlink, rebuild

PLAIN = Link()  # everything in float32: how the exact model travels to be evaluated


class Order(NamedTuple):
    """One client's work: an encoded message of kind ORDER, on top of the round's broadcast.

    `body` is another broadcast in its place, for a client that has nothing to build the round's on.
    """

    key: Key
    head: bytes
    body: bytes = b""
    cost: int = 0  # the client's examples: whoever takes longest is best begun first


class Reply(NamedTuple):
    """What came back: an encoded message of kind REPLY."""

    key: Key
    payload: bytes


class Failure(NamedTuple):
    """A client that could not answer, and why."""

    key: Key
    reason: str


class Received(NamedTuple):
    """A broadcast, decoded; `steps` are differences, which only a client's own copy of the model gives a meaning."""

    run: bytes
    round: int
    vectors: Vectors
    shared: Shared
    steps: Packets


# What a client remembers besides its algorithm's memory, by the prefix of the vectors' names.
RESIDUAL = "residual "  # what its code lost
PUBLIC = "public "  # the model it rebuilt


class Site:
    """Holds the model and the data once, and does the work of whichever client it is asked for."""

    def __init__(self, workload: Workload, device: torch.device, store: Path | None = None) -> None:
        self.workload, self.device = workload, device
        self.model = workload.model.to(device)
        if store is None:  # not a run in a directory: what clients remember ends with this site
            self._temporary = tempfile.TemporaryDirectory(prefix="fedwsq-clients-")
            store = Path(self._temporary.name)
        self.store = ClientStore(store, workload.plan.checkpoint_every)
        self._received: list[tuple[bytes | memoryview, Received]] = []  # the last broadcasts
        self.uploads: dict[
            int, float
        ] = {}  # client -> bytes a second of its last upload, if the transport measures it

    def serve(self, body: bytes | memoryview, order: Order) -> Reply:
        """Train for one client and answer with its coded update."""
        plan, schema = self.workload.plan, self.workload.schema
        received = self.receive(order.body or body, plan.downlink)
        asked = decode(order.head, schema, Kind.ORDER, received.run)
        if asked.key.round != received.round:
            raise MessageError(
                f"order for round {asked.key.round} on top of the broadcast of round {received.round}"
            )
        began = time.perf_counter()
        task = self._task(asked.key)
        memory = self._memory(asked)
        start = self._here(self._start(received, asked, memory))
        state = self._here(memory.get("", {})) or plan.algorithm.init_client(start["params"])
        update, state = plan.algorithm.client_update(start, state, task)
        trained = time.perf_counter()
        residuals = memory.get(RESIDUAL, {})
        sent = plan.uplink.send(
            update.vectors, received.shared, asked.key, asked.rates, schema, residuals
        )
        metrics = {"train_seconds": trained - began, "codec_seconds": time.perf_counter() - trained}
        if asked.key.client in self.uploads and isinstance(plan.channels, Measured):
            metrics["up_bytes_per_second"] = self.uploads[asked.key.client]
        state = dict(state)
        state |= {
            RESIDUAL + vector: tensors for vector, tensors in sent.residuals.items() if tensors
        }
        state |= (
            {PUBLIC + vector: params for vector, params in start.items()}
            if plan.downlink.chained
            else {}
        )
        if state:
            self.store.stage(asked.key.client, asked.key.round, asked.accepted, state)
        reply = Message(
            Kind.REPLY, asked.key, asked.run, asked.nonce,
            weight=update.weight, error=sent.error, metrics={**update.metrics, **metrics}, packets=sent.packets,
        )  # fmt: skip
        return Reply(asked.key, encode(reply, schema))

    def receive(self, body: bytes | memoryview, link: Link) -> Received:
        """Decode a broadcast; the last one is kept, as all clients of a round share it, or two of a chain."""
        for known, received in self._received:
            if known is body or known == body:  # comparing mapped memory with itself is not free
                return received
        schema, plan = self.workload.schema, self.workload.plan
        message = decode(body, schema, Kind.BROADCAST)
        if link is not PLAIN:
            plan.uplink.check_states(message.states, plan.algorithm.sends, schema)
            self._require_names(message.packets)
        chained = isinstance(link, Downlink) and link.chained
        vectors, steps = (
            (message.packets, {})
            if not chained or "params" in message.packets
            else ({}, message.packets)
        )
        carrier = PLAIN if chained else link  # a chain's whole model travels as it is
        carrier.check(vectors, tuple(vectors), plan.downlink.rate, schema)
        decoded = carrier.receive(vectors, {}, message.key, schema)
        received = Received(message.run, message.key.round, decoded, message.states, steps)
        self._received = [*self._received[-1:], (body, received)] if chained else [(body, received)]
        return received

    def evaluate(self, body: bytes | memoryview, start: int) -> Scores:
        """Score the broadcast model on the evaluation batch that starts there."""
        load(self.model, self.receive(body, PLAIN).vectors["params"])
        self.model.eval()
        x, y = self.workload.eval_batch(start)
        x, y = x.to(self.device), y.to(self.device)
        if x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        plan, classes = self.workload.plan, self.workload.dataset.classes
        with autocast(self.device, plan.training.precision):
            return score(self.model, x, y, classes, plan.training.criterion, plan.metric)

    def _require_names(self, packets: Packets) -> None:
        """Refuse a broadcast of other vectors than the algorithm sends down; a chain's first step has none."""
        names = {name.partition(" ")[2] or name for name in packets}
        if names != self._vectors and (names or not self.workload.plan.downlink.chained):
            raise MessageError(
                f"the broadcast carries {sorted(names)}, expected {sorted(self._vectors)}"
            )

    @cached_property
    def _vectors(self) -> set[str]:
        """The vectors that the algorithm sends down."""
        algorithm = self.workload.plan.algorithm
        return set(algorithm.broadcast(algorithm.init_server(self.workload.initial_params())))

    def _memory(self, asked: Message) -> dict[str, State]:
        """What the client remembers of the last round accepted from it: the algorithm's memory, residuals, model."""
        if asked.accepted >= asked.key.round:
            raise MessageError(
                f"order for round {asked.key.round} names round {asked.accepted} as accepted already"
            )
        memory: dict[str, State] = {}
        if asked.accepted and self._remembers:
            for name, params in self.store.load(asked.key.client, asked.accepted).items():
                kind = next(
                    (prefix for prefix in (RESIDUAL, PUBLIC) if name.startswith(prefix)), ""
                )
                memory.setdefault(kind, {})[name.removeprefix(kind)] = params
        return memory

    @cached_property
    def _remembers(self) -> bool:
        """Whether clients of this plan keep anything between rounds."""
        plan = self.workload.plan
        feedback = plan.uplink.error_feedback and plan.uplink.loses(self.workload.schema)
        return (
            feedback
            or plan.downlink.chained
            or bool(plan.algorithm.init_client(self.workload.initial_params()))
        )

    def _start(self, received: Received, asked: Message, memory: dict[str, State]) -> Vectors:
        """Where the client starts: what the broadcast carries, or what differences make of the client's own copy."""
        if received.vectors:
            return received.vectors
        if PUBLIC not in memory:
            raise MessageError(
                f"differences for client {asked.key.client}, which has no model to add them to"
            )
        steps = {**asked.packets, **received.steps}
        link, key = self.workload.plan.downlink, asked.key
        return rebuild(
            link, memory[PUBLIC], steps, asked.accepted, key.round, key.seed, self.workload.schema
        )

    def _here(self, vectors: Vectors) -> Vectors:
        """Vectors on the device that this site computes on."""
        return {name: to_device(params, self.device) for name, params in vectors.items()}

    def _task(self, key: Key) -> LocalTask:
        plan = self.workload.plan
        if not 0 <= key.client < len(self.workload.split):
            raise MessageError(
                f"order for client {key.client}, the split has {len(self.workload.split)}"
            )
        shard = self.workload.shard(key.client)
        if not len(shard.y):
            raise UpdateError(f"client {key.client} has no examples")
        rates = learning_rates(plan.training, key.round, plan.rounds)
        return LocalTask(
            self.model, shard, key, plan.training, rates, self.workload.dataset.classes, self.device
        )
