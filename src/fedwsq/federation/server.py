"""A round of federated learning, as in the paper's Algorithm 1."""

import math
import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedwsq.codecs.base import MAX_MAGNITUDE, flat_values, largest_magnitude
from fedwsq.core.errors import ConfigError
from fedwsq.core.seeds import derive
from fedwsq.core.threads import one_thread
from fedwsq.core.tree import axpy, fingerprint
from fedwsq.core.types import Channel, Cohort, Key, Params, Rate, State, Update
from fedwsq.evaluation import moving_average
from fedwsq.federation.asking import Asking
from fedwsq.federation.bounds import Usual, bounded_sides
from fedwsq.federation.charter import Charter
from fedwsq.federation.clock import slowest
from fedwsq.federation.downlink import Broadcast, Parcel, PublicModel, Way, way_down
from fedwsq.federation.evaluator import Evaluator, client_scores
from fedwsq.federation.fold import Assignment, Before, Fold, Folded
from fedwsq.federation.journal import Journal
from fedwsq.federation.learned import NEEDS_SECURE
from fedwsq.federation.owners import Census
from fedwsq.federation.record import Round, RoundRecord, Verdict, record
from fedwsq.federation.spool import Spool
from fedwsq.plan import Plan
from fedwsq.transports import Order, Transport, deadline_in
from fedwsq.wire import Kind, Message, Shared, encode
from fedwsq.wire.channels import compute_seconds, download_seconds
from fedwsq.wire.message import EVERYONE, order_bytes, vectors_bytes

LARGEST_WEIGHT = MAX_MAGNITUDE / 100
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
    public: PublicModel | None = None  # with a chained downlink: what clients can rebuild
    usual: Usual = Usual()  # of the last rounds' replies


def first_snapshot(charter: Charter) -> Snapshot:
    """Where a run starts: initial weights and starting scales.

    The run id is an identity, drawn and not derived.
    """
    plan = charter.plan
    server = plan.algorithm.init_server(charter.initial_params())
    shared = charter.uplink.init(plan.algorithm.sends)
    # Asked once, so that what cannot work is said before anything is written.
    key = Key(plan.seed, 1, 0)
    charter.uplink.grant(key, plan.channels(key), shared, plan.algorithm.sends)
    nobody = np.zeros(plan.data.clients, np.int32)
    return Snapshot(secrets.token_bytes(16), 0, server, shared, nobody)


@dataclass
class Server:
    """The server of a federation: `step` runs one round.

    It holds no training data. `census` is what it knows of its clients', `evaluator` its own test
    data, `spill` a folder for replies that wait. `snapshot` is the state between rounds, replaced
    as a whole.
    """

    charter: Charter
    transport: Transport
    evaluator: Evaluator | None
    census: Census
    snapshot: Snapshot
    spill: Path | None = None

    @property
    def plan(self) -> Plan:
        return self.charter.plan

    @property
    def params(self) -> Params:
        """The global model."""
        return self.snapshot.server["params"]

    def step(self, progress: Progress | None = None) -> RoundRecord:
        """Run the next round. Interrupted half-way it leaves no trace; run again it gives the same
        weights, except with privacy, where clients and noise are drawn anew.
        """
        began = time.perf_counter()
        before = self.snapshot
        number = before.round + 1

        channels = self.sample(number)
        sent = self.broadcast(before, number)
        assignments = self.assign(before, channels, sent)
        folded = self.gather(before, sent, assignments, progress)
        after = self.update(before, folded, len(channels))
        after = replace(after, public=sent.public)
        verdict = self.evaluate(after)

        self.snapshot = replace(after, accuracy_ema=verdict.ema)
        done = Round(
            number,
            self.plan.seed,
            channels,
            assignments,
            folded,
            verdict,
            slowest(assignments, folded),
            before.shared,
            fingerprint(self.params),
            seconds=time.perf_counter() - began,
        )
        return record(done, self.charter.uplink)

    def sample(self, number: int) -> dict[int, Channel | None]:
        """The clients of a round, in ascending order, each with its channel.

        Drawn from those that are there; if all are, it is the same draw as if nobody had asked.
        """
        seed = derive(self.plan.seed, "sample", number)
        if self.plan.privacy is not None:  # it counts on nobody's knowing who takes part
            seed = secrets.randbits(128)
        there = self.census.present()
        if there is None:
            there = range(self.plan.data.clients)
        clients = sample(there, min(self.plan.clients_per_round, len(there)), seed)
        return {c: self.channel(Key(self.plan.seed, number, c)) for c in clients}

    def channel(self, key: Key) -> Channel | None:
        """As measured, or else as the plan says."""
        return self.census.channel(key.client) or self.plan.channels(key)

    def broadcast(self, before: Snapshot, number: int) -> Broadcast:
        """What all clients of the round receive: the algorithm's vectors and the shared scales."""
        empty = Message(
            Kind.BROADCAST,
            Key(self.plan.seed, number, EVERYONE),
            before.run,
            agreement=self.charter.digest,
            states=before.shared,
        )
        vectors = self.plan.algorithm.broadcast(before.server)
        with one_thread():  # sums over a whole model depend on the number of threads
            return self.way.broadcast(vectors, empty, before.public)

    def assign(
        self, before: Snapshot, channels: Mapping[int, Channel | None], sent: Broadcast
    ) -> dict[int, Assignment]:
        """An order for each client, in client order; who is granted no bits sits the round out."""
        assignments: dict[int, Assignment] = {}
        for client, channel in channels.items():
            key = Key(self.plan.seed, before.round + 1, client)
            assignment = self._assign(before, key, channel, sent)
            if assignment is not None:
                assignments[client] = assignment
        return assignments

    def _assign(
        self, before: Snapshot, key: Key, channel: Channel | None, sent: Broadcast
    ) -> Assignment | None:
        """One client's order; None: it is granted no bits."""
        parcel = sent.parcel(key, int(before.accepted[key.client]))
        body_bytes = len(parcel.body or sent.body)
        examples = self.census.examples(key.client)
        steps = None if examples is None else self.plan.training.steps(examples)

        ready = self._seconds_before_upload(channel, body_bytes, parcel, steps)
        sends = self.plan.algorithm.sends
        granted = self.charter.uplink.grant(key, channel, before.shared, sends, ready)
        if granted is None:
            return None

        message = self._order(before, key, granted, parcel)
        head = encode(message, self.charter.schema)
        return Assignment(
            message=message,
            order=Order(key, head, parcel.body, cost=examples or 0),
            down_bytes=body_bytes + len(head),
            float32_bytes=sent.float32_bytes + order_bytes(len(granted)),
            channel=channel,
            steps=steps,
            examples=examples,
            certain=self.census.certain,
        )

    def _seconds_before_upload(
        self, channel: Channel | None, body_bytes: int, parcel: Parcel, steps: int | None
    ) -> float:
        """How long a client takes until it can begin to upload; 0 where nothing is simulated."""
        if channel is None:
            return 0.0
        # Bits are not granted yet: as long as an order with one rate for all.
        head_bytes = order_bytes(1) + vectors_bytes(parcel.packets, self.charter.schema)
        download = download_seconds(channel, body_bytes + head_bytes)
        return download + compute_seconds(channel, steps or 0)

    def _order(
        self, before: Snapshot, key: Key, granted: tuple[Rate, ...], parcel: Parcel
    ) -> Message:
        return Message(
            Kind.ORDER,
            key,
            before.run,
            # Random, not derived: a reply to an earlier attempt at this round must not pass for a
            # new one.
            nonce=secrets.token_bytes(16),
            agreement=self.charter.digest,
            accepted=int(before.accepted[key.client]),
            rates=granted,
            packets=parcel.packets,
        )

    def gather(
        self,
        before: Snapshot,
        sent: Broadcast,
        assignments: Mapping[int, Assignment],
        progress: Progress | None = None,
    ) -> Folded:
        """Send the orders out and fold the replies, in client order whatever order they come in."""
        if self.plan.uplink.counts:
            return self.count(before, sent, assignments, progress)
        spool = Spool(self.spill)
        known = Before(before.server["params"], before.shared, before.usual)
        fold = Fold(self.charter, assignments, known, spool)
        orders = [assignment.order for assignment in assignments.values()]
        deadline = deadline_in(self.plan.deadline)
        answers = Asking(self.transport, sent.body, orders, deadline)
        try:
            for done, answer in enumerate(answers, 1):
                fold.take(answer)
                if progress is not None:
                    progress(min(done, len(orders)), len(orders))
            folded = fold.finish()
        finally:
            spool.close()
        return replace(folded, asked_again=answers.again)

    def count(
        self,
        before: Snapshot,
        sent: Broadcast,
        assignments: Mapping[int, Assignment],
        progress: Progress | None = None,
    ) -> Folded:
        """Have clients agree on scales, then cast their updates; only sums are decoded."""
        try:
            from fedwsq.federation.counting import Counting
        except ImportError:
            raise ConfigError(NEEDS_SECURE) from None
        journal = Journal(self.spill, sent.body + b"%d" % before.round)
        known = Before(before.server["params"], before.shared, before.usual)
        counting = Counting(
            self.charter, self.transport, assignments, known, sent.body, journal, progress
        )
        return counting.gather()

    def update(self, before: Snapshot, folded: Folded, sampled: int) -> Snapshot:
        """The server's side of the round; without a reply only the round's number moves on."""
        number = before.round + 1
        accepted = before.accepted.copy()
        accepted[folded.forgot] = 0  # they start anew
        idle = replace(before, round=number, accepted=accepted)
        replies = len(folded.replies)
        needed = self.plan.min_replies
        if 0 < replies < needed:
            folded.refuse(f"of {needed} replies that a round needs it had {replies}; not used")
        if not folded.replies or not folded.weight > 0:
            return idle
        cohort = Cohort(number, sampled, len(folded.replies), self.plan.data.clients)
        with one_thread():
            mean = self.decay(before, folded)
            server = self.plan.algorithm.server_update(before.server, mean, cohort)
        if not all(sane(params) for params in server.values()):
            folded.refuse(
                f"the round's update made the model not finite or above {LARGEST_WEIGHT:g}; "
                "it was not used"
            )
            return idle
        accepted[folded.clients] = number
        sides = bounded_sides(before.shared, folded.sides, self.plan.bounds.scale)
        shared = self.charter.uplink.fold(before.shared, sides)
        return replace(idle, server=server, shared=shared, usual=before.usual.after(folded.seen))

    def decay(self, before: Snapshot, folded: Folded) -> Update:
        """The mean update with what weight decay would have added, if it is left to the server."""
        mean = folded.mean()
        shrinkage = self.plan.training.shrinkage(folded.lr_sum / folded.weight)
        if not shrinkage:
            return mean
        started = self.plan.algorithm.broadcast(before.server)["params"]
        delta = axpy(shrinkage, started, mean.vectors["delta"])
        return replace(mean, vectors={**mean.vectors, "delta": delta})

    def evaluate(self, after: Snapshot) -> Verdict:
        """Score the model in every `eval_every`-th round and in the last, and by client if asked.

        A server without data of its own knows what its clients report, and no more.
        """
        began = time.perf_counter()
        plan = self.plan
        verdict = Verdict(metric=plan.metric.name, ema=after.accuracy_ema)
        due = after.round % plan.eval_every == 0 or after.round == plan.rounds
        if not due:
            return verdict
        key = Key(plan.seed, after.round, EVERYONE)
        params = after.server["params"]
        if self.evaluator is not None:
            scores = self.evaluator.evaluate(params, key)
            verdict = replace(verdict, on=self.evaluator.test.name, scores=scores)
            if math.isfinite(scores.value):
                ema = moving_average(after.accuracy_ema, scores.value)
                verdict = replace(verdict, ema=ema)
        if plan.eval_clients:
            verdict = self._by_client(verdict, params, key)
        return replace(verdict, seconds=time.perf_counter() - began)

    def _by_client(self, verdict: Verdict, params: Params, key: Key) -> Verdict:
        """Each client's accuracy: on its own test data, or estimated from its mix of classes.

        A client that has neither is left out; None if none is left.
        """
        if self.plan.data.client_test or self.evaluator is None:
            found = client_scores(self.charter, self.transport, params, key)
            clients = found.values if found.scores else None
            return replace(verdict, clients=clients, client_bytes=found.bytes)
        counts: Tensor | None = self.census.label_counts()
        if counts is None or verdict.scores is None:
            return verdict
        clients = verdict.scores.per_client(counts)
        return replace(verdict, clients=clients if len(clients) else None)

    @cached_property
    def way(self) -> Way:
        charter = self.charter
        return way_down(self.plan.downlink, charter.schema, lambda: charter.start)


def sane(params: Params) -> bool:
    """Whether a model can be sent, and so can its difference to any other."""
    # NaN fails too.
    return all(largest_magnitude(flat_values(x)) <= LARGEST_WEIGHT for x in params.values())


def sample(population: Sequence[int], count: int, seed: int) -> list[int]:
    """Clients drawn uniformly without replacement, in ascending order; the cost does not depend on
    the population.
    """
    return sorted(random.Random(seed).sample(population, count))
