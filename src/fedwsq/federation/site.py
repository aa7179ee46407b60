"""A client, free of transport: the process pool and a deployed client both call `Site.serve`."""

import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch

from fedwsq.core.errors import MessageError, UpdateError
from fedwsq.core.types import Key, State, Vectors
from fedwsq.evaluation import Scores, score
from fedwsq.federation.store import ClientStore
from fedwsq.federation.workload import Workload
from fedwsq.training import LocalTask, learning_rates
from fedwsq.training.local import autocast, load
from fedwsq.wire import Kind, Link, Message, Shared, decode, encode

PLAIN = Link()  # everything in float32: how the exact model travels to be evaluated


class Order(NamedTuple):
    """One client's work: an encoded message of kind ORDER, on top of the round's broadcast."""

    key: Key
    head: bytes


class Reply(NamedTuple):
    """What came back: an encoded message of kind REPLY."""

    key: Key
    payload: bytes


class Failure(NamedTuple):
    """A client that could not answer, and why."""

    key: Key
    reason: str


class Received(NamedTuple):
    """A broadcast, decoded."""

    run: bytes
    round: int
    vectors: Vectors
    shared: Shared


class Site:
    """Holds the model and the data once, and does the work of whichever client it is asked for."""

    def __init__(self, workload: Workload, device: torch.device, store: Path | None = None) -> None:
        self.workload, self.device = workload, device
        self.model = workload.model.to(device)
        if store is None:  # not a run in a directory: what clients remember ends with this site
            self._temporary = tempfile.TemporaryDirectory(prefix="fedwsq-clients-")
            store = Path(self._temporary.name)
        self.store = ClientStore(store, workload.plan.checkpoint_every)
        self._body: bytes = b""
        self._received: Received | None = None

    def serve(self, body: bytes, order: Order) -> Reply:
        """Train for one client and answer with its coded update."""
        plan, schema = self.workload.plan, self.workload.schema
        received = self.receive(body, plan.downlink)
        asked = decode(order.head, schema, Kind.ORDER, received.run)
        if asked.key.round != received.round:
            raise MessageError(f"order for round {asked.key.round} on top of the broadcast of round {received.round}")
        began = time.perf_counter()
        task = self._task(asked.key)
        memory = self._memory(asked, received)
        update, memory = plan.algorithm.client_update(received.vectors, memory, task)
        trained = time.perf_counter()
        sent = plan.uplink.send(update.vectors, received.shared, asked.key, asked.rates, schema)
        seconds = {"train_seconds": trained - began, "codec_seconds": time.perf_counter() - trained}
        if memory:
            self.store.stage(asked.key.client, asked.key.round, asked.accepted, memory)
        reply = Message(
            Kind.REPLY, asked.key, asked.run, asked.nonce,
            weight=update.weight, error=sent.error, metrics={**update.metrics, **seconds}, packets=sent.packets,
        )  # fmt: skip
        return Reply(asked.key, encode(reply, schema))

    def receive(self, body: bytes, link: Link) -> Received:
        """Decode a broadcast; the last one is kept, as all clients of a round share it."""
        if self._received is None or body != self._body:
            schema = self.workload.schema
            message = decode(body, schema, Kind.BROADCAST)
            link.check(message.packets, tuple(message.packets), (32.0,), schema)
            if link is not PLAIN:
                self.workload.plan.uplink.check_states(message.states, self.workload.plan.algorithm.sends, schema)
            vectors = link.receive(message.packets, {}, message.key, schema)
            self._received = Received(message.run, message.key.round, vectors, message.states)
            self._body = body
        return self._received

    def evaluate(self, body: bytes, start: int) -> Scores:
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

    def _memory(self, asked: Message, received: Received) -> State:
        """What the client remembers of the last round the server accepted from it."""
        if asked.accepted >= asked.key.round:
            raise MessageError(f"order for round {asked.key.round} names round {asked.accepted} as accepted already")
        fresh = self.workload.plan.algorithm.init_client(received.vectors["params"])
        return self.store.load(asked.key.client, asked.accepted) if fresh and asked.accepted else fresh

    def _task(self, key: Key) -> LocalTask:
        plan = self.workload.plan
        if not 0 <= key.client < len(self.workload.split):
            raise MessageError(f"order for client {key.client}, the split has {len(self.workload.split)}")
        shard = self.workload.shard(key.client)
        if not len(shard.y):
            raise UpdateError(f"client {key.client} has no examples")
        rates = learning_rates(plan.training, key.round, plan.rounds)
        return LocalTask(self.model, shard, key, plan.training, rates, self.workload.dataset.classes, self.device)
