"""Who scores the server's model, on whose data."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from fedwsq.core.errors import MessageError, RunError
from fedwsq.core.threads import one_thread
from fedwsq.core.types import Key, Params
from fedwsq.evaluation import Scores, Scoring, score, total
from fedwsq.federation.asking import Asking
from fedwsq.federation.charter import Charter
from fedwsq.federation.downlink import plain_model
from fedwsq.federation.owners import Batch, TestData
from fedwsq.training.local import load
from fedwsq.training.precision import autocast
from fedwsq.transports import Failure, Order, Reply, Transport, deadline_in
from fedwsq.wire import Kind, Message, decode, encode
from fedwsq.wire.message import EVERYONE, MAX_WEIGHT

MAX_ATTEMPTS = 3  # at a batch whose worker died or was stuck


class Evaluator(Protocol):
    """The server's own judgement of a model, on data that no client holds."""

    @property
    def test(self) -> TestData: ...

    def evaluate(self, params: Params, key: Key) -> Scores:
        """Score the model after a round; `key` says which."""
        ...


@dataclass(frozen=True)
class Scorer:
    """Scores batches with the network of a charter, in the plan's precision."""

    charter: Charter
    device: torch.device

    def load(self, params: Params) -> None:
        """What the following batches are scored with."""
        network = self.charter.model.network.to(self.device)
        load(network, params)
        network.eval()

    def score(self, batch: Batch) -> Scores:
        plan = self.charter.plan
        network = self.charter.model.network
        x = batch.x.to(self.device)
        y = batch.y.to(self.device)
        if x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        classes = self.charter.model.format.classes
        scoring = Scoring(classes, plan.training.criterion, plan.metric)
        with autocast(self.device, plan.training.precision):
            return score(network, x, y, scoring)


@dataclass(frozen=True)
class OwnEvaluator:
    """In this process, batch after batch: for a server whose clients are elsewhere."""

    scorer: Scorer
    test: TestData

    def evaluate(self, params: Params, key: Key) -> Scores:
        with one_thread():
            self.scorer.load(params)
            return total(self.scorer.score(self.test.batch(start)) for start in self.test.starts)


@dataclass(frozen=True)
class SharedEvaluator:
    """Through a transport whose sites hold the server's data too: the workers of a simulation."""

    charter: Charter
    transport: Transport
    test: TestData

    def evaluate(self, params: Params, key: Key) -> Scores:
        body = model_to_score(self.charter, params, key)
        pieces: dict[int, Scores] = {}
        for _ in range(MAX_ATTEMPTS):
            missing = [start for start in self.test.starts if start not in pieces]
            pieces |= self._ask(body, key, missing)
            if len(pieces) == len(self.test.starts):
                return total(pieces[start] for start in self.test.starts)
        raise RunError(
            f"evaluation failed: workers died or were stuck {MAX_ATTEMPTS} times; "
            "try fewer with --workers 1"
        )

    def _ask(self, body: bytes, key: Key, starts: Sequence[int]) -> dict[int, Scores]:
        """The scores of those batches that were not lost with their worker."""
        orders = [score_order(self.charter, Kind.SCORE, key._replace(client=s)) for s in starts]
        found: dict[int, Scores] = {}
        for answer in self.transport.dispatch(body, orders):
            if isinstance(answer, Reply):
                found[answer.key.client] = read_scores(self.charter, answer, key.round)
            elif not answer.lost:
                raise RunError(f"evaluation failed: {answer.reason}")
        return found


def client_scores(
    charter: Charter, transport: Transport, params: Params, key: Key
) -> "ClientScores":
    """Every client's score on its own test data; those that have none, or fail, are left out."""
    body = model_to_score(charter, params, key)
    clients = range(charter.plan.data.clients)
    orders = [score_order(charter, Kind.EVALUATE, key._replace(client=c)) for c in clients]
    scores: dict[int, Scores] = {}
    sent = sum(len(body) + len(order.head) for order in orders)
    deadline = deadline_in(charter.plan.deadline)
    for answer in Asking(transport, body, orders, deadline):
        if isinstance(answer, Failure) or answer.key.client not in clients:
            continue
        sent += len(answer.payload)
        try:
            found = read_scores(charter, answer, key.round)
        except MessageError:
            continue
        # A client may say anything; an accuracy is from 0 to 1, and NaN fails too.
        if found.examples and 0 <= found.value <= 1:
            scores.setdefault(answer.key.client, found)
    return ClientScores(scores, sent)


@dataclass(frozen=True)
class ClientScores:
    """What clients measured on their own data, and the bytes that it took, both ways."""

    scores: dict[int, Scores]
    bytes: int

    @property
    def values(self) -> torch.Tensor:
        """Each client's mean, in client order."""
        found = [self.scores[client].value for client in sorted(self.scores)]
        return torch.tensor(found, dtype=torch.float64)


def model_to_score(charter: Charter, params: Params, key: Key) -> bytes:
    """The exact model, as a broadcast to whoever scores it."""
    empty = Message(
        Kind.BROADCAST, key._replace(client=EVERYONE), bytes(16), agreement=charter.digest
    )
    return plain_model(charter.schema).broadcast({"params": params}, empty).body


def score_order(charter: Charter, kind: Kind, key: Key) -> Order:
    message = Message(kind, key, bytes(16), agreement=charter.digest)
    return Order(key, encode(message, charter.schema))


def write_scores(scores: Scores) -> str:
    """Scores as the text of a message."""
    plain = [
        scores.examples,
        scores.value_sum,
        scores.loss_sum,
        scores.correct.tolist(),
        scores.count.tolist(),
    ]
    return json.dumps(plain)


def read_scores(charter: Charter, reply: Reply, number: int) -> Scores:
    """The scores of a round that a reply carries, or `MessageError`."""
    message = decode(reply.payload, charter.schema, Kind.SCORES)
    charter.require(message)
    if message.key != reply.key or message.key.round != number:
        raise MessageError(f"scores for another order: {message.key}, expected {reply.key}")
    try:
        examples, value_sum, loss_sum, correct, count = json.loads(message.text)
        scores = Scores(
            int(examples),
            float(value_sum),
            float(loss_sum),
            torch.tensor(correct, dtype=torch.int64),
            torch.tensor(count, dtype=torch.int64),
        )
    except (ValueError, TypeError, RuntimeError, OverflowError, RecursionError):
        raise MessageError(f"scores that are none: {message.text[:80]!r}") from None
    classes = charter.model.format.classes
    shapes = {tuple(scores.correct.shape), tuple(scores.count.shape)}
    if not 0 <= scores.examples <= MAX_WEIGHT or shapes not in ({(classes,)}, {(0,)}):
        raise MessageError(f"scores that are none: {message.text[:80]!r}")
    return scores
