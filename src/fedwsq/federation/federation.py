"""A round of federated learning, as in the paper's Algorithm 1: sample, broadcast, dispatch, fold, update, evaluate."""

import math
import random
import secrets
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedwsq.core.errors import MessageError
from fedwsq.core.seeds import derive
from fedwsq.core.tree import zeros_like
from fedwsq.core.types import Cohort, Key, Params, State, Update
from fedwsq.evaluation import Scores, moving_average, worst_decile
from fedwsq.federation.inprocess import Backend, one_thread
from fedwsq.federation.plan import WEIGH
from fedwsq.federation.records import RoundRecord
from fedwsq.federation.site import PLAIN, Failure, Order
from fedwsq.federation.spool import Spool
from fedwsq.federation.workload import Workload
from fedwsq.wire import Kind, Message, Shared, decode, encode
from fedwsq.wire.link import Sides
from fedwsq.wire.message import EVERYONE, float32_bytes

MIN_WEIGHT = 1e-6  # a client has at least one example; far less would make the mean overflow
Progress = Callable[[int, int], None]  # clients done, clients asked


@dataclass(frozen=True)
class Snapshot:
    """Everything the next round depends on, and nothing else: enough to go on from."""

    run: bytes
    round: int
    server: State
    shared: Shared
    accepted: dict[int, int] = field(default_factory=dict)  # client -> the last round accepted from it
    accuracy_ema: float | None = None


class Body(NamedTuple):
    """A broadcast, and how long it would be with every tensor in float32."""

    data: bytes
    float32_bytes: int


class Asked(NamedTuple):
    """An order as sent, with what the reply will be held against."""

    message: Message
    order: Order


@dataclass
class Gathered:
    """What a round's replies add up to: sum(p x) and sum(p), divided once by `mean`."""

    vectors: State
    weight: float = 0.0
    sides: Sides = field(default_factory=dict)
    replies: list[Message] = field(default_factory=list)  # without their packets
    failures: dict[int, str] = field(default_factory=dict)  # client -> why
    uplink_bytes: int = 0
    uplink_bytes_float32: int = 0
    seconds: float = 0.0

    def refuse(self, reason: str) -> None:
        """Count every reply as a failure."""
        self.failures |= {message.key.client: reason for message in self.replies}
        self.replies, self.sides = [], {}

    def mean(self, divide: bool = True) -> Update:
        """The weighted mean update and the plain means of its metrics; the sums are divided in place."""
        for params in self.vectors.values():
            for x in params.values():
                x.div_(self.weight if divide else 1.0)
        names = set.intersection(*(set(message.metrics) for message in self.replies))
        metrics = {name: statistics.fmean(message.metrics[name] for message in self.replies) for name in names}
        return Update(self.vectors, self.weight, metrics)


def first_snapshot(workload: Workload) -> Snapshot:
    """Where a run starts: initial weights and starting scales. The run id is an identity, drawn and not derived."""
    plan = workload.plan
    server = plan.algorithm.init_server(workload.initial_params())
    shared = plan.uplink.init(workload.schema, plan.algorithm.sends)
    return Snapshot(secrets.token_bytes(16), 0, server, shared)


def sample(population: int, count: int, seed: int) -> list[int]:
    """Clients drawn uniformly without replacement, in ascending order; the cost does not depend on the population."""
    return sorted(random.Random(seed).sample(range(population), count))


class Federation:
    """The server of a run. `step` runs one round; `snapshot` is the state between rounds, replaced as a whole."""

    def __init__(
        self, workload: Workload, backend: Backend, snapshot: Snapshot | None = None, spill: Path | None = None
    ) -> None:
        self.workload, self.backend, self.spill = workload, backend, spill
        self.plan, self.schema = workload.plan, workload.schema
        self.snapshot = snapshot or first_snapshot(workload)

    @property
    def params(self) -> Params:
        """The global model."""
        return self.snapshot.server["params"]

    def step(self, progress: Progress | None = None) -> RoundRecord:
        """Run the next round. Interrupted half-way it leaves no trace; run again it gives the same weights."""
        began = time.perf_counter()
        before = self.snapshot
        number = before.round + 1
        clients = sample(self.plan.data.clients, self.plan.clients_per_round, derive(self.plan.seed, "sample", number))
        with one_thread():  # sums over a whole model depend on the number of threads
            body = self._broadcast(before, number)
        asked = self._orders(before, number, clients)
        gathered = self._gather(before, body, asked, progress)
        with one_thread():
            after = self._update(before, number, gathered, len(clients))
        scored = time.perf_counter()
        scores = self._evaluate(after)
        if scores is not None and math.isfinite(scores.value):
            after = replace(after, accuracy_ema=moving_average(before.accuracy_ema, scores.value))
        self.snapshot = after
        return RoundRecord(
            number,
            sampled=len(clients),
            downlink_bytes=sum(len(body.data) + len(each.order.head) for each in asked.values()),
            downlink_bytes_float32=sum(body.float32_bytes + len(each.order.head) for each in asked.values()),
            scale_ratio=scale_ratio(before.shared, gathered.sides),
            bits=self._bits(asked, gathered),
            seed=self.plan.seed,
            eval_seconds=time.perf_counter() - scored,
            seconds=time.perf_counter() - began,
            **self._replies(gathered, len(asked)),
            **self._scores(scores, after.accuracy_ema),
        )

    def _broadcast(self, before: Snapshot, number: int) -> Body:
        """What all clients of the round receive: the algorithm's vectors and the uplink codec's shared state."""
        key = Key(self.plan.seed, number, EVERYONE)
        sent = self.plan.downlink.send(self.plan.algorithm.broadcast(before.server), {}, key, (32.0,), self.schema)
        message = Message(Kind.BROADCAST, key, before.run, states=before.shared, packets=sent.packets)
        return Body(encode(message, self.schema), float32_bytes(message, self.schema))

    def _orders(self, before: Snapshot, number: int, clients: Sequence[int]) -> dict[int, Asked]:
        """The head for each client, in client order; a client that the bit policy grants nothing sits out."""
        asked: dict[int, Asked] = {}
        for client in clients:
            key = Key(self.plan.seed, number, client)
            rates = self.plan.uplink.rates(key, None, self.schema, before.shared)
            if rates is None:
                continue
            accepted = before.accepted.get(client, 0)
            # Random, not derived: a reply to an earlier attempt at this round must not pass for a new one.
            nonce = secrets.token_bytes(16)
            message = Message(Kind.ORDER, key, before.run, nonce, accepted=accepted, rates=rates)
            asked[client] = Asked(message, Order(key, encode(message, self.schema)))
        return asked

    def _gather(self, before: Snapshot, body: Body, asked: Mapping[int, Asked], progress: Progress | None) -> Gathered:
        """Fold the replies in client order, whatever order they come in; early ones wait packed."""
        gathered = Gathered({vector: zeros_like(self.params) for vector in self.plan.algorithm.sends})
        spool, turn = Spool(self.spill), deque(asked)
        try:
            answers = self.backend.dispatch(body.data, [each.order for each in asked.values()])
            for done, answer in enumerate(answers, 1):
                client = answer.key.client
                if client not in turn or client in spool:
                    pass  # nobody asked, or it has answered already
                elif isinstance(answer, Failure):
                    gathered.failures[client] = answer.reason
                else:
                    spool.put(client, answer.payload)
                while turn and (turn[0] in spool or turn[0] in gathered.failures):
                    self._fold(gathered, before, asked[turn[0]], spool, turn.popleft())
                if progress is not None:
                    progress(done, len(asked))
            for client in turn:  # someone before them never answered
                self._fold(gathered, before, asked[client], spool, client)
        finally:
            spool.close()
        return gathered

    def _fold(self, gathered: Gathered, before: Snapshot, asked: Asked, spool: Spool, client: int) -> None:
        """Add one client's reply to the sums, or note why not. A reply is checked whole before any of it counts."""
        if client not in spool:
            gathered.failures.setdefault(client, "no reply")
            return
        began, payload, uplink = time.perf_counter(), spool.pop(client), self.plan.uplink
        try:
            message = decode(payload, self.schema, Kind.REPLY, before.run)
            if message.key != asked.message.key or message.nonce != asked.message.nonce:
                raise MessageError(f"reply to another order: {message.key}, expected {asked.message.key}")
            if not message.weight >= MIN_WEIGHT:
                raise MessageError(f"aggregation weight is {message.weight}, must be at least {MIN_WEIGHT:g}")
            uplink.check(message.packets, self.plan.algorithm.sends, asked.message.rates, self.schema)
        except MessageError as error:
            gathered.failures[client] = f"MessageError: {error}"
            return
        weight = WEIGH[self.plan.aggregation](message.weight, message.error)
        uplink.accumulate(message.packets, before.shared, message.key, gathered.vectors, weight, self.schema)
        gathered.weight += weight
        gathered.uplink_bytes += len(payload)
        gathered.uplink_bytes_float32 += float32_bytes(message, self.schema)
        for vector, packets in message.packets.items():
            for name, packet in packets.items():
                gathered.sides.setdefault(vector, {}).setdefault(name, []).append(packet.side)
        gathered.replies.append(replace(message, packets={}))
        gathered.seconds += time.perf_counter() - began

    def _update(self, before: Snapshot, number: int, gathered: Gathered, sampled: int) -> Snapshot:
        """The server's side of the round; without a reply only the round's number moves on."""
        if not gathered.weight > 0:
            return replace(before, round=number)
        mean = gathered.mean(divide=self.plan.aggregation != "sum")
        cohort = Cohort(number, sampled, len(gathered.replies), self.plan.data.clients)
        server = self.plan.algorithm.server_update(before.server, mean, cohort)
        if not all(torch.isfinite(x).all() for params in server.values() for x in params.values()):
            gathered.refuse("the round's update made the model not finite; it was not used")
            return replace(before, round=number)
        return replace(
            before,
            round=number,
            server=server,
            shared=self.plan.uplink.fold(before.shared, gathered.sides),
            accepted=before.accepted | {message.key.client: number for message in gathered.replies},
        )

    def _evaluate(self, after: Snapshot) -> Scores | None:
        """Score the server's model, in every `eval_every`-th round and in the last."""
        if after.round % self.plan.eval_every and after.round != self.plan.rounds:
            return None
        key = Key(self.plan.seed, after.round, EVERYONE)
        sent = PLAIN.send({"params": after.server["params"]}, {}, key, (32.0,), self.schema)
        body = encode(Message(Kind.BROADCAST, key, after.run, packets=sent.packets), self.schema)
        return self.backend.evaluate(body, self.workload.eval_batches())

    def _bits(self, asked: Mapping[int, Asked], gathered: Gathered) -> float | None:
        """Mean bits a coded parameter, over the clients that replied."""
        granted = [asked[message.key.client].message.rates for message in gathered.replies]
        return (
            statistics.fmean(self.plan.uplink.mean_bits(rates, self.schema) for rates in granted) if granted else None
        )

    def _replies(self, gathered: Gathered, asked: int) -> dict[str, Any]:
        """The part of a record that comes from the replies."""
        replies = gathered.replies

        def metric(name: str) -> list[float]:
            return [message.metrics[name] for message in replies if name in message.metrics]

        return {
            "replied": len(replies),
            "failed": asked - len(replies),
            "failures": {str(client): why for client, why in sorted(gathered.failures.items())},
            "train_loss": statistics.fmean(metric("loss")) if metric("loss") else None,
            "quantization_error": statistics.fmean(m.error for m in replies) if replies else None,
            "uplink_bytes": gathered.uplink_bytes,
            "uplink_bytes_float32": gathered.uplink_bytes_float32,
            "train_seconds": sum(metric("train_seconds")),
            "codec_seconds": sum(metric("codec_seconds")) + gathered.seconds,
        }

    def _scores(self, scores: Scores | None, ema: float | None) -> dict[str, Any]:
        """The part of a record that comes from evaluation."""
        if scores is None:
            return {}
        on = self.workload.evaluated[0]
        # JSON has no number for a model that diverged.
        value, loss = (x if math.isfinite(x) else None for x in (scores.value, scores.loss))
        what = "accuracy" if self.plan.metric.name == "accuracy" else "metric"
        fields = {f"{on}_{what}": value, f"{on}_{what}_ema": ema, f"{on}_loss": loss}
        if self.plan.eval_clients:
            clients = scores.per_client(self.workload.label_counts)
            fields |= {
                "client_accuracy": float(clients.mean()),
                "client_accuracy_worst_decile": worst_decile(clients),
            }
        return {**fields, "class_accuracy": scores.per_class or None}


def scale_ratio(shared: Shared, sides: Sides) -> float | None:
    """How far local scales are from the shared ones: the median over tensors of (mean local / shared)."""
    ratios = []
    for vector, tensors in shared.items():
        for name, state in tensors.items():
            local = [side[0] for side in sides.get(vector, {}).get(name, []) if side and side[0] > 0]
            if local and state.numel() == 1:
                ratios.append(statistics.fmean(local) / float(state))
    return statistics.median(ratios) if ratios else None
