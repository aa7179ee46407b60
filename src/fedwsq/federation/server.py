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

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwsq.core.errors import MessageError
from fedwsq.core.seeds import derive
from fedwsq.core.threads import one_thread
from fedwsq.core.tree import zeros_like
from fedwsq.core.types import Channel, Cohort, Key, Params, State, Update
from fedwsq.evaluation import Scores, by_client, moving_average, total, worst_decile
from fedwsq.federation.record import RoundRecord
from fedwsq.federation.site import PLAIN, Failure, Order
from fedwsq.federation.spool import Spool
from fedwsq.federation.workload import Workload
from fedwsq.plan.settings import WEIGH
from fedwsq.transports.pool import Backend
from fedwsq.wire import Kind, Message, Packets, Public, Shared, decode, encode
from fedwsq.wire.channels import (
    Measured,
    compute_seconds,
    download_seconds,
    observed,
    upload_seconds,
)
from fedwsq.wire.downlink import keep_steps, missed, read_steps, step_forward
from fedwsq.wire.link import Sides
from fedwsq.wire.message import EVERYONE, REPLY_METRICS, float32_bytes

MIN_WEIGHT = 1e-6  # a client has at least one example; far less would make the mean overflow
Progress = Callable[[int, int], None]  # clients done, clients asked


@dataclass(frozen=True)
class Snapshot:
    """Everything the next round depends on, and nothing else: enough to go on from."""

    run: bytes
    round: int
    server: State
    shared: Shared
    accepted: NDArray[np.int32]  # the last round accepted from each client, 0 for none
    accuracy_ema: float | None = None
    public: Public | None = None  # with a chained downlink: the model that clients can rebuild
    channels: dict[int, Channel] = field(
        default_factory=dict
    )  # what clients measured, if the plan goes by that


@dataclass(frozen=True)
class Broadcast:
    """What all clients of a round receive, how long it would be in float32, and the chain's state after it."""

    body: bytes
    float32_bytes: int
    public: Public | None = None
    whole: bytes = b""  # a chain's model in one piece, for those who cannot use the differences
    steps: Mapping[int, Packets] = field(
        default_factory=dict
    )  # the differences of the rounds before


class Asked(NamedTuple):
    """An order as sent, with what the reply will be held against."""

    message: Message
    order: Order
    down_bytes: int
    float32_bytes: int
    channel: Channel | None
    steps: int


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
    lengths: dict[int, int] = field(default_factory=dict)  # client -> bytes of its reply
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
        metrics = {
            name: statistics.fmean(message.metrics[name] for message in self.replies)
            for name in names
        }
        return Update(self.vectors, self.weight, metrics)


def first_snapshot(workload: Workload) -> Snapshot:
    """Where a run starts: initial weights and starting scales. The run id is an identity, drawn and not derived."""
    plan = workload.plan
    server = plan.algorithm.init_server(workload.initial_params())
    shared = plan.uplink.init(workload.schema, plan.algorithm.sends)
    key = Key(
        plan.seed, 1, 0
    )  # asked once, so that what cannot work is said before anything is written
    plan.uplink.rates(key, plan.channels(key), workload.schema, shared, plan.algorithm.sends)
    return Snapshot(
        secrets.token_bytes(16), 0, server, shared, np.zeros(plan.data.clients, np.int32)
    )


def sample(population: int, count: int, seed: int) -> list[int]:
    """Clients drawn uniformly without replacement, in ascending order; the cost does not depend on the population."""
    return sorted(random.Random(seed).sample(range(population), count))


class Federation:
    """The server of a run. `step` runs one round; `snapshot` is the state between rounds, replaced as a whole."""

    def __init__(
        self,
        workload: Workload,
        backend: Backend,
        snapshot: Snapshot | None = None,
        spill: Path | None = None,
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
        clients = sample(
            self.plan.data.clients,
            self.plan.clients_per_round,
            derive(self.plan.seed, "sample", number),
        )
        with one_thread():  # sums over a whole model depend on the number of threads
            sent = self._broadcast(before, number)
        channels = self._channels(before, number, clients)
        asked = self._orders(before, number, channels, sent)
        gathered = self._gather(before, sent.body, asked, progress)
        with one_thread():
            after = self._update(before, number, gathered, len(clients))
        after = replace(
            after, public=sent.public, channels=self._measured(before, channels, gathered)
        )
        scored = time.perf_counter()
        scores, client_values = self._evaluate(after)
        if scores is not None and math.isfinite(scores.value):
            after = replace(after, accuracy_ema=moving_average(before.accuracy_ema, scores.value))
        self.snapshot = after
        return RoundRecord(
            number,
            sampled=len(clients),
            sat_out=len(clients) - len(asked),
            downlink_bytes=sum(each.down_bytes for each in asked.values()),
            downlink_bytes_float32=sum(each.float32_bytes for each in asked.values()),
            bits=self._bits(asked, gathered),
            seed=self.plan.seed,
            eval_seconds=time.perf_counter() - scored,
            seconds=time.perf_counter() - began,
            **self._replies(gathered, len(asked)),
            **self._times(asked, gathered),
            channels={
                str(client): list(channel)
                for client, channel in channels.items()
                if channel is not None
            },
            **mismatch(before.shared, gathered.sides),
            **self._scores(scores, client_values, after.accuracy_ema),
        )

    def _broadcast(self, before: Snapshot, number: int) -> Broadcast:
        """What all clients of the round receive: the algorithm's vectors and the uplink codec's shared state."""
        link, schema, key = self.plan.downlink, self.schema, Key(self.plan.seed, number, EVERYONE)
        vectors = self.plan.algorithm.broadcast(before.server)
        empty = Message(Kind.BROADCAST, key, before.run, states=before.shared)
        if not link.chained:
            message = replace(empty, packets=link.send(vectors, {}, key, link.rate, schema).packets)
            return Broadcast(encode(message, schema), float32_bytes(message, schema))
        public, packets = step_forward(link, before.public, vectors, key, schema)
        body = encode(replace(empty, packets=packets), schema)
        message = replace(empty, packets=PLAIN.send(public, {}, key, (32.0,), schema).packets)
        whole = encode(message, schema)
        steps = keep_steps(before.public, number, body, len(whole))
        earlier = read_steps(before.public, schema)
        return Broadcast(
            body, float32_bytes(message, schema), Public(public, steps), whole, earlier
        )

    def _channels(
        self, before: Snapshot, number: int, clients: Sequence[int]
    ) -> dict[int, Channel | None]:
        """Each client's channel: what it measured, if the plan goes by that, or what the plan says."""
        keys = {client: Key(self.plan.seed, number, client) for client in clients}
        return {
            client: before.channels.get(client) or self.plan.channels(key)
            for client, key in keys.items()
        }

    def _orders(
        self, before: Snapshot, number: int, channels: Mapping[int, Channel | None], sent: Broadcast
    ) -> dict[int, Asked]:
        """The head for each client, in client order; a client that the bit policy grants nothing sits out."""
        asked: dict[int, Asked] = {}
        metrics = (
            (*REPLY_METRICS, "up_bytes_per_second")
            if isinstance(self.plan.channels, Measured)
            else REPLY_METRICS
        )
        for client, channel in channels.items():
            key, accepted = Key(self.plan.seed, number, client), int(before.accepted[client])
            # Random, not derived: a reply to an earlier attempt at this round must not pass for a new one.
            nonce = secrets.token_bytes(16)
            message = Message(Kind.ORDER, key, before.run, nonce, accepted=accepted, rates=(1.0,))
            chained = sent.public is not None
            missing = missed(sent.steps, accepted, number) if chained else {}
            head, instead = encode(replace(message, packets=missing or {}), self.schema), b""
            if missing is None or (chained and len(head) + len(sent.body) >= len(sent.whole)):
                missing, head, instead = {}, encode(message, self.schema), sent.whole
            body = len(instead or sent.body)
            examples = len(self.workload.split[client])
            steps = self.plan.training.steps(examples)
            ready = 0.0
            if channel is not None:
                ready = download_seconds(channel, body + len(head)) + compute_seconds(
                    channel, steps
                )
            sends = self.plan.algorithm.sends
            rates = self.plan.uplink.rates(
                key, channel, self.schema, before.shared, sends, ready, metrics
            )
            if rates is None:
                continue
            message = replace(message, rates=rates)
            head = encode(replace(message, packets=missing), self.schema)
            plain = sent.float32_bytes + float32_bytes(message, self.schema)
            order = Order(key, head, instead, examples)
            asked[client] = Asked(message, order, body + len(head), plain, channel, steps)
        return asked

    def _gather(
        self, before: Snapshot, body: bytes, asked: Mapping[int, Asked], progress: Progress | None
    ) -> Gathered:
        """Fold the replies in client order, whatever order they come in; early ones wait packed."""
        gathered = Gathered(
            {vector: zeros_like(self.params) for vector in self.plan.algorithm.sends}
        )
        spool, turn = Spool(self.spill), deque(asked)
        try:
            answers = self.backend.dispatch(body, [each.order for each in asked.values()])
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

    def _fold(
        self, gathered: Gathered, before: Snapshot, asked: Asked, spool: Spool, client: int
    ) -> None:
        """Add one client's reply to the sums, or note why not. A reply is checked whole before any of it counts."""
        if client not in spool:
            gathered.failures.setdefault(client, "no reply")
            return
        began, payload, uplink = time.perf_counter(), spool.pop(client), self.plan.uplink
        try:
            message = decode(payload, self.schema, Kind.REPLY, before.run)
            if message.key != asked.message.key or message.nonce != asked.message.nonce:
                raise MessageError(
                    f"reply to another order: {message.key}, expected {asked.message.key}"
                )
            if not message.weight >= MIN_WEIGHT:
                raise MessageError(
                    f"aggregation weight is {message.weight}, must be at least {MIN_WEIGHT:g}"
                )
            uplink.check(
                message.packets, self.plan.algorithm.sends, asked.message.rates, self.schema
            )
        except MessageError as error:
            gathered.failures[client] = f"MessageError: {error}"
            return
        weight = WEIGH[self.plan.aggregation](message.weight, message.error)
        uplink.accumulate(
            message.packets, before.shared, message.key, gathered.vectors, weight, self.schema
        )
        gathered.weight += weight
        gathered.uplink_bytes += len(payload)
        gathered.lengths[client] = len(payload)
        gathered.uplink_bytes_float32 += float32_bytes(message, self.schema)
        for vector, states in before.shared.items():  # other side values have done their work
            for name in states:
                gathered.sides.setdefault(vector, {}).setdefault(name, []).append(
                    message.packets[vector][name].side
                )
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
        shared = self.plan.uplink.fold(before.shared, gathered.sides)
        accepted = before.accepted.copy()
        accepted[[message.key.client for message in gathered.replies]] = number
        return replace(before, round=number, server=server, shared=shared, accepted=accepted)

    def _evaluate(self, after: Snapshot) -> tuple[Scores | None, Tensor | None]:
        """Score the server's model, and for each client if asked, in every `eval_every`-th round and in the last."""
        if after.round % self.plan.eval_every and after.round != self.plan.rounds:
            return None, None
        key = Key(self.plan.seed, after.round, EVERYONE)
        sent = PLAIN.send({"params": after.server["params"]}, {}, key, (32.0,), self.schema)
        body = encode(Message(Kind.BROADCAST, key, after.run, packets=sent.packets), self.schema)
        starts = self.workload.eval_batches()
        own, owners = self.workload.client_batches if self.plan.eval_clients else ([], None)
        pieces = self.backend.evaluate(body, [*starts, *own])
        scores = total(pieces[: len(starts)])
        if own and owners is not None:
            return scores, by_client(pieces[len(starts) :], owners)
        return scores, scores.per_client(
            self.workload.label_counts
        ) if self.plan.eval_clients else None

    def _bits(self, asked: Mapping[int, Asked], gathered: Gathered) -> float | None:
        """Mean bits a coded parameter, over the clients that replied."""
        granted = [asked[message.key.client].message.rates for message in gathered.replies]
        return (
            statistics.fmean(self.plan.uplink.mean_bits(rates, self.schema) for rates in granted)
            if granted
            else None
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

    def _measured(
        self, before: Snapshot, channels: Mapping[int, Channel | None], gathered: Gathered
    ) -> dict[int, Channel]:
        """What clients said of their own links, if the plan goes by that. Who did not reply is guessed again."""
        if not isinstance(self.plan.channels, Measured):
            return before.channels
        # Else a client that once was too slow would sit out, never upload, and so never be found faster.
        kept = {
            client: channel for client, channel in before.channels.items() if client not in channels
        }
        for message in gathered.replies:
            known = channels[message.key.client]
            assert known is not None  # the plan has channels
            kept[message.key.client] = observed(known, message.metrics)
        return kept

    def _times(self, asked: Mapping[int, Asked], gathered: Gathered) -> dict[str, Any]:
        """The part of a record that comes from the channels: how long the slowest client took."""
        times = {}
        for message in gathered.replies:
            client = message.key.client
            each = asked[client]
            if each.channel is not None:
                down, up = (
                    download_seconds(each.channel, each.down_bytes),
                    upload_seconds(each.channel, gathered.lengths[client]),
                )
                times[client] = (down, compute_seconds(each.channel, each.steps), up)
        if not times:
            return {}
        slowest = max(times.values(), key=sum)
        parts = dict(
            zip(("download_seconds", "compute_seconds", "upload_seconds"), slowest, strict=True)
        )
        return {"simulated_seconds": sum(slowest), **parts}

    def _scores(
        self, scores: Scores | None, clients: Tensor | None, ema: float | None
    ) -> dict[str, Any]:
        """The part of a record that comes from evaluation."""
        if scores is None:
            return {}
        on = self.workload.evaluated[0]
        # JSON has no number for a model that diverged.
        value, loss = (x if math.isfinite(x) else None for x in (scores.value, scores.loss))
        what = "accuracy" if self.plan.metric.name == "accuracy" else "metric"
        fields = {f"{on}_{what}": value, f"{on}_{what}_ema": ema, f"{on}_loss": loss}
        if clients is not None:
            fields |= {
                "client_accuracy": float(clients.mean()),
                "client_accuracy_worst_decile": worst_decile(clients),
            }
        return {**fields, "class_accuracy": scores.per_class or None}


def mismatch(shared: Shared, sides: Sides) -> dict[str, Any]:
    """How far local scales are from the shared ones: mean local / shared of each tensor, and the median of these."""
    ratios = {}
    for vector, tensors in shared.items():
        for name, state in tensors.items():
            local = [side for side in sides.get(vector, {}).get(name, []) if any(side)]
            if local and state.numel() == len(local[0]) and (state > 0).all():
                mean = torch.tensor(local, dtype=torch.float64).mean(0) / state
                ratios[name if vector == "delta" else f"{vector}/{name}"] = float(mean.mean())
    return {
        "scale_ratio": statistics.median(ratios.values()) if ratios else None,
        "scale_ratios": ratios,
    }
