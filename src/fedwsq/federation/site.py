"""A client, free of transport: a worker of a pool and a deployed client both call `Site.answer`."""

import json
import platform
import tempfile
import time
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from fedwsq.core.errors import ConfigError, MessageError, UpdateError
from fedwsq.core.threads import one_thread
from fedwsq.core.tree import fingerprint, sub, to_device
from fedwsq.core.types import Key, Params, State, Update, Vectors
from fedwsq.data import Dataset
from fedwsq.evaluation import total
from fedwsq.federation.charter import Charter, difference
from fedwsq.federation.downlink import plain_model, way_down
from fedwsq.federation.evaluator import Scorer, write_scores
from fedwsq.federation.learned import NEEDS_SECURE, NO_KEYS, Learned, SumKeys, Work
from fedwsq.federation.memory import ClientMemory, ClientStore, MemoryLost
from fedwsq.federation.owners import (
    ClientData,
    ModelSpec,
    OwnData,
    Size,
    TestData,
    batches_of,
    format_of,
)
from fedwsq.federation.privacy import privatize
from fedwsq.plan import Plan
from fedwsq.training import LocalTask, learning_rates
from fedwsq.transports import Order
from fedwsq.wire import (
    Kind,
    Message,
    Opened,
    Packets,
    Sent,
    Shared,
    decode,
    encode,
    open_message,
)

if TYPE_CHECKING:  # an extra
    from fedwsq.federation.voter import Voter


class Received(NamedTuple):
    """A broadcast, decoded."""

    run: bytes
    round: int
    shared: Shared
    # On this site's device; {} when it carries differences, which only a client's own copy gives
    # meaning.
    vectors: Vectors
    differences: Packets


class Site:
    """Holds the model and some clients' data, and does the work of whichever client it is asked
    for.

    `store` is a folder for what clients remember; without one it ends with the site. `test` is the
    server's data, which only the workers of a simulation hold. `keys` are those of secure sums.
    """

    def __init__(
        self,
        charter: Charter,
        data: ClientData,
        device: torch.device,
        store: Path | None = None,
        test: TestData | None = None,
        keys: SumKeys = NO_KEYS,
    ) -> None:
        self.charter = charter
        self.data = data
        self.device = device
        self.test = test
        self.keys = keys
        self.model = charter.model.network.to(device)
        self.way = way_down(charter.plan.downlink, charter.schema, lambda: charter.start)
        self.scorer = Scorer(charter, device)
        if store is not None:
            self.store = ClientStore(store, charter.plan.checkpoint_every)
        self._training = Cache(2)  # a chain has two broadcasts a round
        self._scoring = Cache(1)

    @cached_property
    def store(self) -> ClientStore:
        """Where none was given: not made before it is asked for, since a node sets one by run."""
        self._temporary = tempfile.TemporaryDirectory(prefix="fedwsq-clients-")
        return ClientStore(Path(self._temporary.name), self.charter.plan.checkpoint_every)

    def answer(self, body: bytes | memoryview, order: Order) -> bytes:
        """Do what an order says, on top of a broadcast, and encode the answer.

        On one thread, whatever the transport: sums depend on how many there are.
        """
        kinds = {
            Kind.ORDER: self._train,
            Kind.EVALUATE: self._evaluate,
            Kind.SCORE: self._score,
            Kind.HELLO: self._greet,
            Kind.PHASE: self._vote,
        }
        head = open_message(order.head)
        if head.kind not in kinds:
            raise MessageError(f"message is of kind {head.kind.name.lower()}, expected order")
        with one_thread():
            reply = kinds[head.kind](order.body or body, head)
        return encode(reply, self.charter.schema)

    # Training.

    def _train(self, body: bytes | memoryview, head: Opened) -> Message:
        """Train for one client and answer with its coded update."""
        if self.charter.plan.uplink.secure:
            raise MessageError("asked for an update of its own, but uplink.secure is on here")
        received = self.receive(body)
        order = self._read_order(head, Kind.ORDER, received)
        began = time.perf_counter()
        try:
            memory = self._recall(order)
        except MemoryLost:
            return self._forgot(order)
        start = self._start(received, order, memory)
        update, state = self._learn(start, order.key, memory)
        trained = time.perf_counter()

        uplink = self.charter.uplink
        sent = uplink.send(
            update.vectors, received.shared, order.key, order.rates, memory.residuals
        )
        coded = time.perf_counter()
        if state:
            decoded = uplink.receive(sent.packets, received.shared, order.key)
            state = self.charter.plan.algorithm.settle(state, self._here(decoded))
        self._remember(order, ClientMemory(state, _kept(sent), start))
        metrics = {"train_seconds": trained - began, "codec_seconds": coded - trained}
        if self.charter.plan.privacy is not None:
            metrics = {}  # how long it took tells how much there was to do
        return Message(
            Kind.REPLY,
            order.key,
            order.run,
            order.nonce,
            order.agreement,
            weight=update.weight,
            error=sent.error,
            metrics={**update.metrics, **metrics},
            packets=sent.packets,
        )

    def _learn(self, start: Vectors, key: Key, memory: ClientMemory) -> tuple[Update, State]:
        """What the client learns from what it received and remembers, as it may leave."""
        algorithm = self.charter.plan.algorithm
        privacy = self.charter.plan.privacy
        try:
            task = self.task(key)
            state = self._here(memory.algorithm) or algorithm.init_client(start["params"])
            update, state = algorithm.client_update(start, state, task)
        except Exception:
            if not self._reserved:
                raise
            # An error may quote the data.
            what = "uplink.secure" if privacy is None else "privacy"
            raise UpdateError(
                f"the client could not train; with {what} it does not say why"
            ) from None
        if privacy is None:
            return update, state
        self.store.count_release(key.client)
        return privatize(update, privacy), state

    def _forgot(self, order: Message) -> Message:
        return replace(_answer_to(order, Kind.FORGOT), agreement=self.charter.digest)

    def _vote(self, body: bytes | memoryview, head: Opened) -> Message:
        """Answer one phase of a round that counts."""
        order = decode(head, self.charter.schema, Kind.PHASE)
        self.charter.require(order)

        def learn() -> Learned:
            received = self.receive(body)
            self._read_order(head, Kind.PHASE, received)
            memory = self._recall(order)
            start = self._start(received, order, memory)
            update, state = self._learn(start, order.key, memory)
            before = memory.residuals.get("delta", {})
            delta = {
                name: x.detach().float().cpu() + before.get(name, 0.0)
                for name, x in update.vectors["delta"].items()
            }
            kept = start if self.way.keeps_model else {}
            loss = update.metrics.get("loss", 0.0)
            return Learned(delta, loss, state, kept, fingerprint(_flat(start)))

        def remember(learned: Learned, decoded: Params) -> None:
            state = learned.state
            if state:
                sent = self._here({"delta": decoded})
                state = self.charter.plan.algorithm.settle(self._here(state), sent)
            lost: Vectors = {}
            if self.charter.plan.uplink.error_feedback:
                lost = {"delta": sub(learned.delta, decoded)}
            self._remember(order, ClientMemory(state, lost, learned.start))

        try:
            return self._voter.answer(order, Work(learn, remember))
        except MemoryLost:
            return self._forgot(order)

    @property
    def _voter(self) -> "Voter":
        if not self.charter.plan.uplink.counts:
            raise MessageError("asked for a ballot, but uplink.counts is off here")
        try:
            from fedwsq.federation.voter import open_voter
        except ImportError:
            raise ConfigError(NEEDS_SECURE) from None
        folder = self.store.folder / "votes"
        return open_voter(self.charter, folder, self.keys)

    def _read_order(self, head: Opened, kind: Kind, received: Received) -> Message:
        """An order that belongs to the broadcast that came with it."""
        order = decode(head, self.charter.schema, kind, received.run)
        self.charter.require(order)
        if order.key.round != received.round:
            raise MessageError(
                f"order for round {order.key.round} on top of the broadcast of round "
                f"{received.round}"
            )
        return order

    def receive(self, body: bytes | memoryview) -> Received:
        """Decode a broadcast; the last ones are kept, as all clients of a round share them."""
        known = self._training.get(body)
        if known is not None:
            return known
        charter = self.charter
        message = decode(body, charter.schema, Kind.BROADCAST)
        charter.require(message)
        charter.uplink.check_states(message.states, charter.plan.algorithm.sends)
        vectors = self._here(self.way.read(message, self._sent_down))
        differences = {} if vectors else message.packets
        received = Received(message.run, message.key.round, message.states, vectors, differences)
        self._training.put(body, received)
        return received

    @cached_property
    def _sent_down(self) -> frozenset[str]:
        """The vectors that the algorithm sends down."""
        algorithm = self.charter.plan.algorithm
        server = algorithm.init_server(self.charter.schema.zeros())
        return frozenset(algorithm.broadcast(server))

    def task(self, key: Key) -> LocalTask:
        """What a client of this site works on in a round."""
        plan = self.charter.plan
        shard = self.data.shard(key.client)
        if not len(shard.y):
            raise UpdateError(f"client {key.client} has no examples")
        rates = learning_rates(plan.training, key.round, plan.rounds)
        classes = self.charter.model.format.classes
        return LocalTask(self.model, shard, key, plan.training, rates, classes, self.device)

    def _start(self, received: Received, order: Message, memory: ClientMemory) -> Vectors:
        """Where the client starts: what the broadcast carries, or what differences make of the
        client's own copy.
        """
        if received.vectors:
            return received.vectors
        return self._here(self.way.rebuild(order, received.differences, memory.model))

    def _here(self, vectors: Vectors) -> Vectors:
        """Vectors on the device that this site computes on."""
        return {name: to_device(params, self.device) for name, params in vectors.items()}

    # Memory.

    @cached_property
    def _keeps_anything(self) -> bool:
        """Whether clients of this plan keep anything between rounds."""
        charter = self.charter
        feedback = charter.plan.uplink.error_feedback and charter.uplink.lossy
        stateful = charter.plan.algorithm.init_client(charter.schema.zeros())
        return feedback or self.way.keeps_model or bool(stateful)

    def _recall(self, order: Message) -> ClientMemory:
        """What the client remembers of the last round accepted from it."""
        if order.accepted >= order.key.round:
            raise MessageError(
                f"order for round {order.key.round} names round {order.accepted} as accepted "
                "already"
            )
        if not order.accepted or not self._keeps_anything:
            return ClientMemory()
        return self.store.load(order.key.client, order.accepted)

    def _remember(self, order: Message, memory: ClientMemory) -> None:
        """Stage the memory after this round; the next order says whether it came to count."""
        if not self.way.keeps_model:
            memory = memory._replace(model={})
        if any(memory):
            self.store.stage(order.key.client, order.key.round, order.accepted, memory)

    # Other work.

    def _evaluate(self, body: bytes | memoryview, head: Opened) -> Message:
        """Score the broadcast model on the client's own test examples."""
        if self._reserved:
            raise MessageError(
                "this plan's privacy does not cover scores of a client's own examples"
            )
        order = self._load_to_score(body, head, Kind.EVALUATE)
        batches = batches_of(self.data.test_shard(order.key.client))
        scores = [self.scorer.score(batch) for batch in batches]
        text = write_scores(total(scores)) if scores else "[0, 0.0, 0.0, [], []]"
        return replace(_answer_to(order, Kind.SCORES), text=text)

    def _score(self, body: bytes | memoryview, head: Opened) -> Message:
        """Score the broadcast model on one batch of the server's data."""
        if self.test is None:
            raise MessageError("the server's test data is not here")
        order = self._load_to_score(body, head, Kind.SCORE)
        scores = self.scorer.score(self.test.batch(order.key.client))
        return replace(_answer_to(order, Kind.SCORES), text=write_scores(scores))

    @property
    def _reserved(self) -> bool:
        """Whether a client tells of itself no more than its part in a round."""
        plan = self.charter.plan
        return plan.privacy is not None or plan.uplink.secure

    def _load_to_score(self, body: bytes | memoryview, head: Opened, kind: Kind) -> Message:
        charter = self.charter
        received = self._scoring.get(body)
        if received is None:
            message = decode(body, charter.schema, Kind.BROADCAST)
            charter.require(message)
            vectors = plain_model(charter.schema).read(message, frozenset({"params"}))
            received = Received(message.run, message.key.round, {}, vectors, {})
            self._scoring.put(body, received)
        order = self._read_order(head, kind, received)
        self.scorer.load(received.vectors["params"])
        return order

    def _greet(self, body: bytes | memoryview, head: Opened) -> Message:
        """Compare the server's settings with ours, and introduce the client."""
        hello = decode(head, None, Kind.HELLO)
        try:
            theirs = json.loads(hello.text)
        except (ValueError, RecursionError):
            theirs = None
        if not isinstance(theirs, dict):
            raise MessageError("a hello carries the sender's settings as a JSON object")
        different = difference(self.charter.settings, theirs)
        if different is not None:
            raise MessageError(different)
        size = self.data.size(hello.key.client)
        if self._reserved:
            size = Size(1)  # as everybody says then
        about = {
            "examples": size.examples,
            "labels": list(size.labels),
            "precision": self.charter.plan.training.precision,
            "device": str(self.device),
            "torch": torch.__version__,
            "processor": platform.machine(),
        }
        text = json.dumps(about)
        answer = _answer_to(hello, Kind.WELCOME)
        return replace(answer, text=text, agreement=self.charter.digest)


def own_site(
    plan: Plan, client: int, dataset: Dataset, device: torch.device, store: Path | None = None
) -> Site:
    """A site made of a plan and one client's own examples, with nothing else in reach."""
    form = format_of(dataset, plan)
    charter = Charter(plan, ModelSpec(plan, form))
    return Site(charter, OwnData(client, dataset, form), device, store)


class Cache:
    """The last few broadcasts, decoded."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._held: list[tuple[bytes | memoryview, Received]] = []

    def get(self, body: bytes | memoryview) -> Received | None:
        for known, received in self._held:
            # Identity first: comparing mapped memory with itself is not free.
            if known is body or known == body:
                return received
        return None

    def put(self, body: bytes | memoryview, received: Received) -> None:
        kept = self._held[-(self.most - 1) :] if self.most > 1 else []
        self._held = [*kept, (body, received)]


def _flat(vectors: Vectors) -> Params:
    return {
        f"{vector}/{name}": x for vector, params in vectors.items() for name, x in params.items()
    }


def _answer_to(order: Message, kind: Kind) -> Message:
    return Message(kind, order.key, order.run, order.nonce, order.agreement)


def _kept(sent: Sent) -> Vectors:
    """The residuals of those vectors that have any."""
    return {vector: tensors for vector, tensors in sent.residuals.items() if tensors}
