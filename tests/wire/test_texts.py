"""What travels as text: the settings of a hello, the client of a welcome, and scores.

It is JSON from elsewhere: whatever it says, it is understood or refused with a `MessageError`.
"""

import json
from contextlib import suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwsq.core.errors import MessageError
from fedwsq.core.types import Key
from fedwsq.evaluation import Scores
from fedwsq.federation.evaluator import model_to_score, read_scores, score_order, write_scores
from fedwsq.federation.hello import Introduction, read_introduction
from fedwsq.federation.simulation import simulate
from fedwsq.transports import Order, Reply
from fedwsq.wire import Kind, Message, decode, encode
from harness import tiny

SIMULATION = simulate(tiny(**{"data.client_test": 0.2}))
CHARTER = SIMULATION.charter
SITE = SIMULATION.site(torch.device("cpu"))
KEY = Key(0, 3, 2)


def written(kind, text, agreement=CHARTER.digest):
    """A message with this text, and all else as it should be."""
    message = Message(kind, KEY, bytes(16), agreement=agreement, text=text)
    return encode(message, CHARTER.schema)


def greeted(text):
    """What the site answers to a hello."""
    return SITE.answer(b"", Order(KEY, written(Kind.HELLO, text)))


def introduced(text):
    return read_introduction(CHARTER, Reply(KEY, written(Kind.WELCOME, text)), bytes(16))


def scored(text):
    return read_scores(CHARTER, Reply(KEY, written(Kind.SCORES, text)), KEY.round)


# As the two ends write them


def test_a_hello_is_answered_by_a_welcome():
    answer = greeted(json.dumps(CHARTER.settings))
    message = decode(answer, CHARTER.schema, Kind.WELCOME, bytes(16))
    assert message.key == KEY
    assert message.agreement == CHARTER.digest

    about = json.loads(message.text)
    assert list(about) == ["examples", "labels", "precision", "device", "torch", "processor"]
    size = SIMULATION.clients.size(2)
    labels = list(size.labels)
    assert sum(labels) == size.examples > 0
    expected = Introduction(size.examples, labels, about["precision"], "cpu")
    assert read_introduction(CHARTER, Reply(KEY, answer), bytes(16)) == expected


def test_a_hello_with_other_settings_is_refused_by_the_first_that_differs():
    theirs = {**CHARTER.settings, "training.lr": 0.2, "uplink.select": "all"}
    text = r"^training\.lr is 0\.2 at the other end and 0\.1 at this one$"
    with pytest.raises(MessageError, match=text):
        greeted(json.dumps(theirs))
    del theirs["training.lr"]
    with pytest.raises(MessageError, match=r"^training\.lr is not there at the other end"):
        greeted(json.dumps(theirs))
    with pytest.raises(MessageError, match=r"^more is 1 at the other end and not there at this"):
        greeted(json.dumps({**CHARTER.settings, "more": 1}))


def test_an_end_of_another_model_learns_what_differs():
    """Its messages have a foreign schema, but a hello is read for what it says."""
    other = simulate(tiny(**{"model.name": "resnet8"})).charter
    hello = Message(Kind.HELLO, KEY, bytes(16), text=json.dumps(other.settings))
    with pytest.raises(MessageError, match=r'^model\.name is "resnet8" at the other end and "cnn"'):
        SITE.answer(b"", Order(KEY, encode(hello, other.schema)))


@pytest.mark.parametrize(("kind", "client"), [(Kind.EVALUATE, 2), (Kind.SCORE, 100)])
def test_scores_come_back_as_they_were(kind, client):
    key = KEY._replace(client=client)
    body = model_to_score(CHARTER, CHARTER.model.initial_params(), key)
    answer = SITE.answer(body, score_order(CHARTER, kind, key))
    message = decode(answer, CHARTER.schema, Kind.SCORES)
    assert (message.key, message.run, message.agreement) == (key, bytes(16), CHARTER.digest)

    found = read_scores(CHARTER, Reply(key, answer), key.round)
    assert write_scores(found) == message.text
    plain = [found.examples, found.value_sum, found.loss_sum]
    assert json.loads(message.text) == [*plain, found.correct.tolist(), found.count.tolist()]
    assert found.count.sum() == found.examples > 0
    assert found.correct.sum() == found.value_sum


@pytest.mark.parametrize("kind", [Kind.EVALUATE, Kind.SCORE])
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"key": Key(0, 4, 2)}, "order for round 4 on top of the broadcast of round 3"),
        ({"run": bytes(range(16))}, "not of this run"),
        ({"agreement": bytes(16)}, "the other end works by other settings"),
    ],
)
def test_an_order_to_score_belongs_to_its_broadcast(kind, change, text):
    body = model_to_score(CHARTER, CHARTER.model.initial_params(), KEY)
    fields = {"key": KEY, "run": bytes(16), "agreement": CHARTER.digest, **change}
    head = encode(Message(kind, **fields), CHARTER.schema)
    with pytest.raises(MessageError, match=text):
        SITE.answer(body, Order(fields["key"], head))


def test_a_welcome_to_another_hello_is_refused():
    answer = greeted(json.dumps(CHARTER.settings))
    with pytest.raises(MessageError, match="welcome to another hello"):
        read_introduction(CHARTER, Reply(KEY._replace(client=3), answer), bytes(16))


@pytest.mark.parametrize("kind", [Kind.WELCOME, Kind.SCORES])
def test_answers_of_an_end_with_other_settings_are_refused(kind):
    read = {
        Kind.WELCOME: lambda data: read_introduction(CHARTER, Reply(KEY, data), bytes(16)),
        Kind.SCORES: lambda data: read_scores(CHARTER, Reply(KEY, data), KEY.round),
    }
    with pytest.raises(MessageError, match="the other end works by other settings"):
        read[kind](written(kind, "[]", agreement=bytes(16)))


# As anybody else might


DEEP = "[" * 100_000
BAD_HELLOS = ["", "{", "[]", "null", '"text"', "7", "{'a': 1}", DEEP, "9" * 5000]
BAD_WELCOMES = [
    *BAD_HELLOS,
    "{}",
    '{"examples": 1, "labels": [], "precision": "float32"}',
    '{"examples": 1e999, "labels": [], "precision": "float32", "device": "cpu"}',
    '{"examples": NaN, "labels": [], "precision": "float32", "device": "cpu"}',
    '{"examples": -1, "labels": [], "precision": "float32", "device": "cpu"}',
    f'{{"examples": 1{"0" * 400}, "labels": [], "precision": "float32", "device": "cpu"}}',
    '{"examples": 1, "labels": [-1], "precision": "float32", "device": "cpu"}',
    '{"examples": 1, "labels": [Infinity], "precision": "float32", "device": "cpu"}',
    '{"examples": 1, "labels": 7, "precision": "float32", "device": "cpu"}',
    '{"examples": [], "labels": [], "precision": "float32", "device": "cpu"}',
]
NONE = [0] * 10
BAD_SCORES = [
    *BAD_HELLOS,
    "[1, 1.0, 1.0, []]",
    "[1, 1.0, 1.0, [], [], []]",
    "[-1, 1.0, 1.0, [], []]",
    "[Infinity, 1.0, 1.0, [], []]",
    "[NaN, 1.0, 1.0, [], []]",
    "[1, null, 1.0, [], []]",
    "[1, 1.0, 1.0, 3, 3]",
    json.dumps([1, 1.0, 1.0, NONE, []]),
    json.dumps([1, 1.0, 1.0, NONE[1:], NONE[1:]]),
    json.dumps([1, 1.0, 1.0, [NONE], [NONE]]),
    json.dumps([1, 1.0, 1.0, [2**70, *NONE[1:]], NONE]),
    json.dumps([1, 1.0, 1.0, [None, *NONE[1:]], NONE]),
    json.dumps([1, 1.0, 1.0, ["a", *NONE[1:]], NONE]),
    json.dumps([10**400, 1.0, 1.0, [], []]),
    json.dumps([1, 10**400, 1.0, [], []]),
]


def short(text):
    return text[:60]


@pytest.mark.parametrize("text", BAD_HELLOS, ids=short)
def test_hellos_that_are_none(text):
    with pytest.raises(MessageError, match="a hello carries the sender's settings as a JSON"):
        greeted(text)


@pytest.mark.parametrize("text", BAD_WELCOMES, ids=short)
def test_welcomes_that_are_none(text):
    with pytest.raises(MessageError, match="a welcome"):
        introduced(text)


@pytest.mark.parametrize("text", BAD_SCORES, ids=short)
def test_scores_that_are_none(text):
    with pytest.raises(MessageError, match="scores that are none"):
        scored(text)


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
nested = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=10) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)
counts = st.lists(st.integers(0, 2**64) | plain, max_size=11) | nested
welcomes = st.fixed_dictionaries(
    {"examples": nested, "labels": counts, "precision": nested, "device": nested}
)
scores = st.tuples(nested, nested, nested, counts, counts)
changes = st.dictionaries(st.sampled_from(sorted(CHARTER.settings)) | st.text(max_size=8), nested)
hellos = changes.map(lambda some: CHARTER.settings | some)
texts = st.text(max_size=40) | (nested | welcomes | scores | hellos).map(json.dumps)


@settings(deadline=None, max_examples=300)
@given(text=texts)
def test_any_text_is_understood_or_refused(text):
    for read in (greeted, introduced, scored):
        with suppress(MessageError):
            found = read(text)
            if isinstance(found, Scores):
                assert isinstance(found.value, float)
