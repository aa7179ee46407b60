"""Before the first round: who is there, and in what the two ends differ."""

import json
import time
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedwsq.core.errors import MessageError
from fedwsq.core.types import Key
from fedwsq.federation.hello import Introduction, read_introduction
from fedwsq.federation.simulation import simulate
from fedwsq.transports import Failure, Order, Reply
from fedwsq.transports.deadlines import NOT_BEGUN
from fedwsq.wire import Kind, Message, decode, encode
from harness import greet, tiny

CPU = torch.device("cpu")
RUN = bytes(range(16))


@pytest.fixture(scope="module")
def simulation():
    return simulate(tiny())


class Network:
    """A real serial transport behind a network of which the test decides what arrives."""

    def __init__(self, inner, weather):
        self.inner = inner
        self.weather = weather

    def dispatch(self, body, orders, deadline=None):
        yield from self.weather(list(self.inner.dispatch(body, orders, deadline)))


def test_clients_say_what_they_hold(simulation):
    found = greet(simulation.charter, simulation.serial(CPU), range(10), RUN)
    assert list(found) == list(range(10))
    for client, introduction in found.items():
        labels = simulation.clients.shard(client).y
        assert introduction.examples == len(labels)
        assert introduction.labels == torch.bincount(labels, minlength=10).tolist()
        assert introduction.precision == simulation.plan.training.precision
        assert introduction.device == "cpu"


def lost_once(answers):
    """With the first of them, where there are several: its worker was stuck."""
    if len(answers) == 1:
        return answers
    return [Failure(answers[0].key, "its worker was stuck for 600 s", lost=True), *answers[1:]]


def test_a_hello_that_was_lost_is_said_again(simulation):
    found = greet(simulation.charter, Network(simulation.serial(CPU), lost_once), range(4), RUN)
    assert found == greet(simulation.charter, simulation.serial(CPU), range(4), RUN)


def test_a_hello_that_nobody_has_time_for_says_so(simulation):
    over = time.monotonic()
    found = greet(simulation.charter, simulation.serial(CPU), [0, 1], RUN, over)
    why = f"{NOT_BEGUN}; raise deadline to wait longer"
    assert found == {0: why, 1: why}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"training.lr": 0.2}, "training.lr is 0.1 at the other end and 0.2 at this one"),
        ({"uplink.bits": 2}, "uplink.bits.bits is 4"),
        ({"algorithm": "fedprox"}, 'algorithm.name is "fedavg" at the other end and "fedprox"'),
        ({"model.name": "resnet8"}, 'model.name is "cnn" at the other end and "resnet8"'),
    ],
)
def test_an_end_that_differs_says_in_what(simulation, settings, why):
    """Also where not even the tensors are the same: a hello is read without a schema."""
    other = simulate(tiny(**settings))
    found = greet(simulation.charter, other.serial(CPU), [3], RUN)
    assert why in found[3]


def test_who_does_not_live_here_is_refused(simulation):
    found = greet(simulation.charter, simulation.serial(CPU), [4, 77], RUN)
    assert isinstance(found[4], Introduction)
    assert "order for client 77, the split has 10" in found[77]


def test_what_goes_wrong_is_told_of_each_client(simulation):
    """Client 0 is lost, 1 fails, 2's is damaged, 3 sends 4's, 5 answers twice; 88 was not asked."""

    def weather(answers):
        damaged = bytearray(answers[2].payload)
        damaged[-20] ^= 1
        stranger = Reply(answers[4].key._replace(client=88), answers[4].payload)
        return [
            Failure(answers[1].key, "battery"),
            Reply(answers[2].key, bytes(damaged)),
            Reply(answers[3].key, answers[4].payload),
            *answers[4:6],
            Failure(answers[5].key, "too late"),
            stranger,
        ]

    network = Network(simulation.serial(CPU), weather)
    found = greet(simulation.charter, network, range(6), RUN)
    assert list(found) == list(range(6))
    assert (found[0], found[1]) == ("no reply", "battery")
    assert "bad checksum" in found[2]
    assert "welcome to another hello" in found[3]
    assert isinstance(found[4], Introduction)
    assert isinstance(found[5], Introduction)


def welcome(simulation, **changes):
    message = Message(
        Kind.WELCOME,
        Key(0, 0, 1),
        RUN,
        agreement=simulation.charter.digest,
        text='{"examples": 3, "labels": [1, 2], "precision": "float32", "device": "cpu"}',
    )
    return Reply(Key(0, 0, 1), encode(replace(message, **changes), simulation.charter.schema))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"run": bytes(16)}, "not of this run"),
        ({"agreement": bytes(16)}, "works by other settings"),
        ({"kind": Kind.REPLY}, "kind reply, expected welcome"),
        ({"key": Key(0, 0, 2)}, "welcome to another hello"),
        ({"text": ""}, "a welcome that says nothing"),
        ({"text": "[]"}, "a welcome that says nothing"),
        ({"text": "{}"}, "a welcome that says nothing"),
        ({"text": "null"}, "a welcome that says nothing"),
        ({"text": "[" * 100_000}, "a welcome that says nothing"),
        ({"text": '{"examples": 1, "labels": 5}'}, "a welcome that says nothing"),
        ({"text": '{"examples": Infinity, "labels": []}'}, "a welcome that says nothing"),
        ({"text": '{"examples": NaN, "labels": []}'}, "a welcome that says nothing"),
        (
            {"text": '{"examples": -1, "labels": [], "precision": "", "device": ""}'},
            "number of examples in a welcome is -1",
        ),
        (
            {"text": '{"examples": 1, "labels": [2, -1], "precision": "", "device": ""}'},
            "number of examples in a welcome is -1",
        ),
    ],
    ids=range(14),
)
def test_a_welcome_that_makes_no_sense_is_refused(simulation, changes, why):
    assert read_introduction(simulation.charter, welcome(simulation), RUN).examples == 3
    with pytest.raises(MessageError) as raised:
        read_introduction(simulation.charter, welcome(simulation, **changes), RUN)
    assert why in str(raised.value)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@given(about=PLAIN, examples=PLAIN, labels=PLAIN)
def test_whatever_a_welcome_says_it_is_read_or_refused(simulation, about, examples, labels):
    full = {"examples": examples, "labels": labels, "precision": "", "device": ""}
    for said in (about, full):
        try:
            found = read_introduction(
                simulation.charter, welcome(simulation, text=json.dumps(said)), RUN
            )
        except MessageError:
            continue
        assert found.examples >= 0


@pytest.mark.parametrize("text", ["", "[]", "{", "3", "[" * 100_000])
def test_a_hello_that_says_nothing_is_refused(simulation, text):
    key = Key(0, 0, 1)
    hello = Message(Kind.HELLO, key, RUN, text=text)
    order = Order(key, encode(hello, simulation.charter.schema))
    (answer,) = simulation.serial(CPU).dispatch(b"", [order])
    assert isinstance(answer, Failure)
    assert "a hello carries the sender's settings as a JSON object" in answer.reason


def test_a_hello_carries_no_examples(simulation):
    """What a client tells are counts and names; nothing that it holds."""
    site = simulation.site(CPU)
    key = Key(0, 0, 1)
    text = json.dumps(simulation.charter.settings)
    hello = Message(Kind.HELLO, key, RUN, agreement=simulation.charter.digest, text=text)
    order = Order(key, encode(hello, simulation.charter.schema))
    said = decode(site.answer(b"", order), simulation.charter.schema, Kind.WELCOME, RUN)
    assert (said.packets, said.states, said.metrics) == ({}, {}, {})
    assert set(json.loads(said.text)) == {
        "examples",
        "labels",
        "precision",
        "device",
        "torch",
        "processor",
    }
