"""Who has what: a server without data, clients with their own, and what nobody knows is None."""

import json
from dataclasses import replace

import pytest
import torch

from fedwsq.core.errors import MessageError
from fedwsq.core.tree import fingerprint
from fedwsq.core.types import Key
from fedwsq.data import Dataset, Examples
from fedwsq.data.batches import normalize
from fedwsq.federation.evaluator import OwnEvaluator, Scorer, read_scores, score_order, write_scores
from fedwsq.federation.owners import Census, Size
from fedwsq.federation.server import Server, first_snapshot
from fedwsq.federation.simulation import simulate
from fedwsq.federation.site import own_site
from fedwsq.transports import Failure, Order, Reply, Serial, attempt
from fedwsq.wire import Kind, Message, decode, encode
from harness import greet, tiny

CPU = torch.device("cpu")
FLOAT32 = {"training.precision": "float32"}
LIVE = {"data.clients": 4, "clients_per_round": 4, **FLOAT32}
EVERYWHERE = {"channels": "lognormal", "eval_clients": True, **LIVE}


def blind(simulation, evaluator=None):
    """A server that knows its plan and its model, and nothing of its clients."""
    charter = simulation.charter
    transport = simulation.serial(CPU)
    return Server(charter, transport, evaluator, Census(), first_snapshot(charter))


def test_a_server_that_knows_nothing_says_so():
    simulation = simulate(tiny(**EVERYWHERE))
    row = blind(simulation).step()
    assert row.replied == 4
    assert (row.test_accuracy, row.test_accuracy_ema, row.test_loss) == (None, None, None)
    assert row.class_accuracy is None
    assert (row.compute_seconds, row.simulated_seconds) == (None, None)
    assert row.download_seconds > 0
    assert row.upload_seconds > 0


def test_what_a_server_knows_does_not_change_the_weights():
    simulation = simulate(tiny(**EVERYWHERE))
    knowing = simulation.server(simulation.serial(CPU))
    row = knowing.step()
    assert row.compute_seconds > 0
    assert row.simulated_seconds == row.download_seconds + row.compute_seconds + row.upload_seconds
    unknowing = blind(simulation)
    unknowing.step()
    assert fingerprint(unknowing.params) == fingerprint(knowing.params)


def test_an_evaluator_of_its_own_scores_as_the_workers_do():
    simulation = simulate(tiny(**LIVE))
    shared = simulation.server(simulation.serial(CPU)).step()
    evaluator = OwnEvaluator(Scorer(simulation.charter, CPU), simulation.test)
    own = blind(simulation, evaluator).step()
    assert own.test_accuracy == shared.test_accuracy
    assert own.test_loss == shared.test_loss
    assert own.class_accuracy == shared.class_accuracy


def test_clients_score_on_their_own_test_data_for_a_server_that_has_none():
    plan = tiny(**LIVE | {"eval_clients": True, "data.client_test": 0.25})
    simulation = simulate(plan)
    server = blind(simulation)
    row = server.step()

    scorer = Scorer(simulation.charter, CPU)
    scorer.load(server.params)
    values = []
    for client in range(4):
        shard = simulation.clients.test_shard(client)
        outputs = scorer.charter.model.network(normalize(shard.x, (), ()))
        values.append(float((outputs.argmax(1) == shard.y).double().mean()))
    assert row.client_accuracy == pytest.approx(sum(values) / 4, abs=1e-9)
    assert row.client_accuracy_worst_decile == min(values)
    assert row.test_accuracy is None
    # The model goes down to each of them in float32, and a short answer comes back.
    weights = 4 * sum(simulation.charter.schema.sizes.values())
    assert 4 * weights < row.evaluation_bytes < 4 * (weights + 3000)


def machine(simulation, client):
    """A site with one client's examples and nothing else."""
    shard = simulation.clients.shard(client)
    examples = Examples([shard.x], shard.y)
    return own_site(simulation.plan, client, Dataset(examples, examples, 10), CPU)


def test_a_site_serves_the_client_that_lives_there_and_no_other():
    simulation = simulate(tiny(**LIVE))
    site = machine(simulation, 1)
    own = simulation.clients.shard(1)
    assert torch.equal(site.data.shard(1).x, own.x)
    labels = tuple(int((own.y == digit).sum()) for digit in range(10))
    assert site.data.size(1) == Size(len(own.y), labels)
    with pytest.raises(MessageError, match="order for client 0, but client 1 lives here"):
        site.data.shard(0)


def test_a_site_without_the_servers_data_does_not_score_for_it():
    simulation = simulate(tiny(**LIVE))
    site = machine(simulation, 1)
    order = score_order(site.charter, Kind.SCORE, Key(0, 1, 0))
    answer = attempt(site.answer, b"", order)
    assert isinstance(answer, Failure)
    assert (answer.key, answer.lost) == (order.key, False)
    assert answer.reason == "MessageError: the server's test data is not here"


@pytest.mark.parametrize(
    "text",
    [
        "", "{}", "[1, 2]", '["a", 0, 0, [], []]', "[1, 0, 0, [1], [1]]", "[1, 0, 0, [[1]], [1]]",
        "[-1, 0, 0, [], []]", "[1e400, 0, 0, [], []]", "[" * 5000, "[1, null, 0, [], []]",
    ],
)  # fmt: skip
def test_scores_that_are_none_are_refused(text):
    charter = simulate(tiny(**LIVE)).charter
    key = Key(0, 1, 2)
    message = Message(Kind.SCORES, key, bytes(16), agreement=charter.digest, text=text)
    with pytest.raises(MessageError, match="scores that are none"):
        read_scores(charter, Reply(key, encode(message, charter.schema)), 1)


def test_scores_of_another_order_are_refused():
    simulation = simulate(tiny(**LIVE))
    charter = simulation.charter
    text = write_scores(OwnEvaluator(Scorer(charter, CPU), simulation.test).evaluate(
        charter.model.initial_params(), Key(0, 1, 0)))  # fmt: skip
    message = Message(Kind.SCORES, Key(0, 1, 2), bytes(16), agreement=charter.digest, text=text)
    payload = encode(message, charter.schema)
    assert read_scores(charter, Reply(Key(0, 1, 2), payload), 1).examples == len(
        simulation.test.chosen
    )
    for key, number in ((Key(0, 1, 3), 1), (Key(0, 1, 2), 2)):
        with pytest.raises(MessageError, match="scores for another order"):
            read_scores(charter, Reply(key, payload), number)


@pytest.mark.parametrize("text", ["", "[]", "[" * 5000, '{"seed": 0}'])
def test_a_hello_that_says_nothing_or_too_little_is_refused(text):
    simulation = simulate(tiny(**LIVE))
    charter = simulation.charter
    hello = Message(Kind.HELLO, Key(0, 0, 1), bytes(16), text=text)
    order = Order(hello.key, encode(hello, charter.schema))
    answer = attempt(simulation.site(CPU).answer, b"", order)
    assert isinstance(answer, Failure)
    assert "hello" in answer.reason or "at the other end" in answer.reason


@pytest.mark.parametrize(
    "about",
    [{}, {"examples": -1, "labels": [], "precision": "", "device": ""}, {"examples": "x"}, [], 3],
)
def test_a_welcome_that_says_nothing_is_refused(about):
    charter = simulate(tiny(**LIVE)).charter

    def serve(body: bytes, order: Order) -> bytes:
        hello = decode(order.head, None, Kind.HELLO)
        welcome = replace(hello, kind=Kind.WELCOME, text=json.dumps(about))
        return encode(welcome, charter.schema)

    found = greet(charter, Serial(serve), [0])
    assert isinstance(found[0], str)
    assert "welcome" in found[0]
