"""Who scores the server's model: in this process, through workers, or clients on their own data."""

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedwsq.core.errors import MessageError, RunError
from fedwsq.core.types import Key
from fedwsq.evaluation import Scores
from fedwsq.federation import owners
from fedwsq.federation.evaluator import (
    OwnEvaluator,
    Scorer,
    SharedEvaluator,
    client_scores,
    read_scores,
    write_scores,
)
from fedwsq.federation.simulation import simulate
from fedwsq.transports import Failure, Reply
from fedwsq.wire import Kind, Message, encode
from fedwsq.wire.message import EVERYONE
from harness import tiny

CPU = torch.device("cpu")
KEY = Key(0, 1, EVERYONE)
OWN = {"data.client_test": 0.2, "eval_clients": True}


@pytest.fixture(scope="module")
def simulation():
    return simulate(tiny(**OWN))


class Network:
    """A real serial transport behind a network of which the test decides what arrives."""

    def __init__(self, inner, weather):
        self.inner = inner
        self.weather = weather
        self.asked = []

    def dispatch(self, body, orders, deadline=None):
        self.asked.append([order.key.client for order in orders])
        yield from self.weather(list(self.inner.dispatch(body, orders, deadline)))


def same(a, b):
    assert (a.examples, a.value_sum, a.loss_sum) == (b.examples, b.value_sum, b.loss_sum)
    assert a.correct.tolist() == b.correct.tolist()
    assert a.count.tolist() == b.count.tolist()


def test_scores_are_the_same_whoever_computes_them(simulation, monkeypatch):
    monkeypatch.setattr(owners, "EVAL_BATCH", 64)
    params = simulation.model.initial_params()
    own = OwnEvaluator(Scorer(simulation.charter, CPU), simulation.test).evaluate(params, KEY)
    transport = simulation.serial(CPU)
    shared = SharedEvaluator(simulation.charter, transport, simulation.test).evaluate(params, KEY)
    same(own, shared)
    test = simulation.clients.dataset.test
    assert own.examples == len(test)
    assert own.count.tolist() == torch.bincount(test.labels, minlength=10).tolist()


def test_batches_are_added_in_their_own_order(simulation, monkeypatch):
    monkeypatch.setattr(owners, "EVAL_BATCH", 64)
    params = simulation.model.initial_params()
    own = OwnEvaluator(Scorer(simulation.charter, CPU), simulation.test).evaluate(params, KEY)
    turned = Network(simulation.serial(CPU), lambda answers: reversed(answers))
    same(SharedEvaluator(simulation.charter, turned, simulation.test).evaluate(params, KEY), own)


def test_batches_that_were_lost_are_asked_for_again(simulation, monkeypatch):
    monkeypatch.setattr(owners, "EVAL_BATCH", 64)
    params = simulation.model.initial_params()
    own = OwnEvaluator(Scorer(simulation.charter, CPU), simulation.test).evaluate(params, KEY)

    def weather(answers):
        """One is missing and the worker of another died, as often as there is more than one."""
        if len(answers) == 1:
            return answers
        return [*answers[2:], Failure(answers[0].key, "its worker process died", lost=True)]

    network = Network(simulation.serial(CPU), weather)
    evaluator = SharedEvaluator(simulation.charter, network, simulation.test)
    with pytest.raises(RunError, match=r"died or were stuck 3 times; try fewer with --workers 1"):
        evaluator.evaluate(params, KEY)
    starts = list(simulation.test.starts)
    assert network.asked == [starts, starts[:2], starts[:2]]

    once = iter([weather, lambda answers: answers])
    network = Network(simulation.serial(CPU), lambda answers: next(once)(answers))
    again = SharedEvaluator(simulation.charter, network, simulation.test).evaluate(params, KEY)
    same(again, own)


def test_a_batch_that_cannot_be_scored_ends_the_evaluation(simulation):
    weather = lambda answers: [Failure(answers[0].key, "ValueError: no"), *answers[1:]]
    network = Network(simulation.serial(CPU), weather)
    evaluator = SharedEvaluator(simulation.charter, network, simulation.test)
    with pytest.raises(RunError, match=r"^evaluation failed: ValueError: no$"):
        evaluator.evaluate(simulation.model.initial_params(), KEY)


def test_a_batch_that_does_not_exist_is_refused(simulation):
    for start in (1, 99, 100_000, -100):
        with pytest.raises(MessageError, match=f"no evaluation batch starts at example {start}"):
            simulation.test.batch(start)


# What clients report


def reply(simulation, text, client=3, number=1):
    key = Key(0, number, client)
    message = Message(Kind.SCORES, key, bytes(16), agreement=simulation.charter.digest, text=text)
    return Reply(key, encode(message, simulation.charter.schema))


def scores(examples=4, value_sum=3.0, loss_sum=5.0, correct=(1,) * 10, count=(2,) * 10):
    return json.dumps([examples, value_sum, loss_sum, list(correct), list(count)])


def test_scores_come_back_as_they_were(simulation):
    counts = torch.arange(10)
    sent = Scores(45, 0.1 + 0.2, 1e-300, counts // 2, counts)
    same(read_scores(simulation.charter, reply(simulation, write_scores(sent)), 1), sent)
    diverged = Scores(45, math.nan, math.inf, counts // 2, counts)
    found = read_scores(simulation.charter, reply(simulation, write_scores(diverged)), 1)
    assert math.isnan(found.value)
    assert found.loss == math.inf


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        "[1, 2, 3]",
        '"12345"',
        "[" * 100_000,
        scores(examples=-1),
        scores(examples=10**400),
        scores(examples=2**60),
        scores(examples="many"),
        scores(value_sum=None),
        scores(value_sum=[1.0]),
        scores(correct=(1,) * 9),
        scores(correct=(1,) * 9, count=(1,) * 9),
        scores(correct=()),
        scores(correct=[[1] * 10], count=[[1] * 10]),
        scores(count=(2**63,) * 10),
        scores(count=("a",) * 10),
        json.dumps([1, 1.0, 1.0, 5, 5]),
    ],
    ids=range(20),
)
def test_scores_that_are_none_are_refused(simulation, text):
    with pytest.raises(MessageError, match="scores that are none"):
        read_scores(simulation.charter, reply(simulation, text), 1)


def test_scores_of_another_order_are_refused(simulation):
    with pytest.raises(MessageError, match="scores for another order"):
        read_scores(simulation.charter, reply(simulation, scores(), number=2), 1)
    stale = reply(simulation, scores(), client=4)._replace(key=Key(0, 1, 3))
    with pytest.raises(MessageError, match="scores for another order"):
        read_scores(simulation.charter, stale, 1)


@pytest.mark.parametrize(
    "text",
    [
        scores(examples=0, value_sum=0.0),
        scores(value_sum=math.nan),
        scores(value_sum=math.inf),
        scores(value_sum=1e308),
        scores(value_sum=-1.0),
        scores(examples=4, value_sum=4.5),
        "nonsense",
    ],
    ids=range(7),
)
def test_a_client_that_reports_nonsense_is_left_out(simulation, text):
    def weather(answers):
        lie = reply(simulation, text, client=answers[0].key.client)
        return [lie, *answers[1:]]

    params = simulation.model.initial_params()
    honest = client_scores(simulation.charter, simulation.serial(CPU), params, KEY)
    network = Network(simulation.serial(CPU), weather)
    found = client_scores(simulation.charter, network, params, KEY)
    assert list(honest.scores) == list(range(10))
    assert list(found.scores) == list(range(1, 10))
    assert torch.equal(found.values, honest.values[1:])


def test_of_two_reports_the_first_counts_and_strangers_do_not(simulation):
    def weather(answers):
        second = reply(simulation, scores(1, 1.0), client=0)
        stranger = reply(simulation, scores(1, 1.0), client=10)
        return [*answers, second, stranger]

    params = simulation.model.initial_params()
    honest = client_scores(simulation.charter, simulation.serial(CPU), params, KEY)
    network = Network(simulation.serial(CPU), weather)
    found = client_scores(simulation.charter, network, params, KEY)
    assert list(found.scores) == list(range(10))
    assert torch.equal(found.values, honest.values)


NUMBERS = st.none() | st.integers() | st.floats() | st.text(max_size=3)


@given(
    text=st.tuples(
        NUMBERS, NUMBERS, NUMBERS, st.lists(NUMBERS, max_size=11), st.lists(NUMBERS, max_size=11)
    )
)
def test_whatever_clients_report_a_row_can_be_written(simulation, text):
    """The means of what is let in are numbers, and JSON has a word for them."""

    def weather(answers):
        return [reply(simulation, json.dumps(text), client=a.key.client) for a in answers]

    class Silent:
        def dispatch(self, body, orders, deadline=None):
            return [Reply(order.key, b"") for order in orders]

    params = simulation.model.initial_params()
    found = client_scores(simulation.charter, Network(Silent(), weather), params, KEY)
    if found.scores:
        json.dumps(float(found.values.mean()), allow_nan=False)
        assert 0 <= float(found.values.mean()) <= 1
