"""Clipping, noise, and that nothing else leaves a client."""

import json
import math
from dataclasses import replace

import pytest
import torch

from fedwsq.core.errors import ConfigError, MessageError, UpdateError
from fedwsq.core.types import Key, Update
from fedwsq.federation.privacy import normal, privatize
from fedwsq.federation.server import first_snapshot
from fedwsq.federation.simulation import simulate
from fedwsq.plan import Privacy, make_plan, plan_digest
from fedwsq.transports import Order, Reply
from fedwsq.wire import Kind, Message, decode, encode
from harness import tiny

PRIVATE = {"aggregation": "uniform", "privacy.clip": 0.5, "privacy.noise": 0.01}


def norm(update: Update) -> float:
    squares = [x.double().square().sum() for p in update.vectors.values() for x in p.values()]
    return math.sqrt(sum(squares))


def update(scale: float) -> Update:
    """Of norm 5 times `scale`, over two vectors: (3, 0, 4)."""
    vectors = {
        "delta": {"a": torch.tensor([3.0 * scale]), "b": torch.tensor([[0.0]])},
        "control": {"a": torch.tensor([4.0 * scale]), "b": torch.tensor([[0.0]])},
    }
    return Update(vectors, weight=17.0, metrics={"loss": 2.0})


def test_all_vectors_are_clipped_together():
    found = privatize(update(1.0), Privacy(clip=1.0, noise=0.0))
    assert norm(found) <= 1.0
    assert float(found.vectors["delta"]["a"]) == pytest.approx(0.6, rel=1e-5)
    assert float(found.vectors["control"]["a"]) == pytest.approx(0.8, rel=1e-5)


def test_what_is_within_the_bound_stays_as_it_is():
    found = privatize(update(0.1), Privacy(clip=1.0, noise=0.0))
    assert float(found.vectors["delta"]["a"]) == pytest.approx(0.3, rel=1e-6)


def test_weight_and_metrics_are_the_same_for_everybody():
    found = privatize(update(1.0), Privacy())
    assert (found.weight, found.metrics) == (1.0, {})


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_update_that_is_not_finite_is_noise_alone(bad):
    found = privatize(update(bad), Privacy(clip=1.0, noise=0.0))
    assert norm(found) == 0.0


def test_no_norm_ends_above_the_bound():
    torch.manual_seed(0)
    for exponent in range(-3, 30):
        vectors = {"delta": {"w": torch.randn(1_000) * 10.0**exponent}}
        assert norm(privatize(Update(vectors, 1.0), Privacy(clip=1.0, noise=0.0))) <= 1.0


def test_the_noise_is_normal_and_of_the_stated_size():
    draws = normal(200_000)
    assert draws.isfinite().all()
    # Five standard errors of mean, variance and the share within one standard deviation.
    assert abs(float(draws.mean())) < 5 / math.sqrt(200_000)
    assert abs(float(draws.var()) - 1) < 5 * math.sqrt(2 / 200_000)
    share = float((draws.abs() < 1).double().mean())
    assert abs(share - 0.682689) < 5 * math.sqrt(0.6827 * 0.3173 / 200_000)

    zeros = Update({"delta": {"w": torch.zeros(200_000)}}, 1.0)
    found = privatize(zeros, Privacy(clip=0.5, noise=0.2)).vectors["delta"]["w"]
    assert float(found.std()) == pytest.approx(0.1, rel=0.01)


def test_no_seed_repeats_it():
    torch.manual_seed(0)
    first = normal(4)
    torch.manual_seed(0)
    assert not torch.equal(first, normal(4))


# Through a site: all that it answers.


@pytest.fixture(scope="module")
def simulation():
    return simulate(tiny(**PRIVATE))


def reply_of(simulation, client: int) -> Message:
    """What a client answers to an honest order of round 1."""
    charter = simulation.charter
    server = simulation.server(simulation.serial(torch.device("cpu")))
    before = first_snapshot(charter)
    sent = server.broadcast(before, 1)
    channels = {client: None}
    (assignment,) = server.assign(before, channels, sent).values()
    payload = simulation.site(torch.device("cpu")).answer(sent.body, assignment.order)
    return decode(payload, charter.schema, Kind.REPLY)


def test_a_reply_says_nothing_else(simulation):
    reply = reply_of(simulation, client=0)
    assert simulation.clients.size(0).examples == 143
    assert reply.weight == 1.0
    assert reply.metrics == {}
    assert reply.states == {}
    assert reply.text == ""


def test_side_values_and_error_follow_from_what_was_noised(simulation, monkeypatch):
    """Clients whose noised updates are equal send equal messages, whatever their data."""
    from fedwsq.federation import site

    same = {
        name: torch.full(shape, 0.01) for name, shape in simulation.charter.schema.shapes.items()
    }
    monkeypatch.setattr(site, "privatize", lambda update, privacy: Update({"delta": same}, 1.0))
    first, second = (reply_of(simulation, client) for client in (0, 1))
    assert first.packets == second.packets
    assert first.error == second.error


def test_a_welcome_says_what_everybody_says(simulation):
    charter = simulation.charter
    hello = Message(
        Kind.HELLO,
        Key(0, 0, 1),
        bytes(16),
        agreement=charter.digest,
        text=json.dumps(charter.settings),
    )
    order = Order(hello.key, encode(hello, charter.schema))
    answer = simulation.site(torch.device("cpu")).answer(b"", order)
    about = json.loads(decode(answer, charter.schema, Kind.WELCOME).text)
    assert (about["examples"], about["labels"]) == (1, [])


def test_a_client_does_not_score_its_own_examples(simulation):
    from fedwsq.federation.evaluator import model_to_score, score_order

    charter = simulation.charter
    key = Key(charter.plan.seed, 1, 0)
    body = model_to_score(charter, charter.model.initial_params(), key)
    with pytest.raises(MessageError, match="does not cover scores"):
        simulation.site(torch.device("cpu")).answer(body, score_order(charter, Kind.EVALUATE, key))


def test_an_error_does_not_quote_the_data():
    simulation = simulate(tiny(**PRIVATE, algorithm="user_code:Flaky", **{"algorithm.round": 1}))
    with pytest.raises(UpdateError, match="does not say why") as caught:
        reply_of(simulation, 1)
    assert caught.value.__suppress_context__


def test_every_answer_is_counted(simulation, tmp_path):
    store = simulation.site(torch.device("cpu"), tmp_path).store
    for _ in range(3):
        store.count_release(4)
    assert (tmp_path / "4" / "releases").stat().st_size == 3


def test_who_takes_part_is_drawn_anew(simulation):
    server = simulation.server(simulation.serial(torch.device("cpu")))
    assert len({tuple(server.sample(1)) for _ in range(50)}) > 5


# Plans.


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"aggregation": "examples"}, "use aggregation=uniform"),
        ({"eval_clients": True}, "leave them out"),
        ({"data.client_test": 0.2}, "leave them out"),
        ({"algorithm": "fedcm"}, "fedcm needs to know"),
        ({"privacy.clip": 0}, "clip is 0"),
        ({"privacy.noise": -1}, "noise is -1"),
        ({"privacy.delta": 1}, "delta is 1"),
        ({"privacy.epsilon": 1}, "unknown key privacy.epsilon"),
    ],
)
def test_what_would_leave_more_is_refused(more, text):
    with pytest.raises(ConfigError, match=text):
        make_plan({}, {**PRIVATE, **more})


def test_a_plan_without_privacy_has_the_digest_it_had():
    plan = make_plan({})
    assert plan.privacy is None
    private = make_plan({}, PRIVATE)
    assert plan_digest(private) != plan_digest(replace(private, privacy=None))


def test_both_ends_must_mean_the_same_noise(simulation):
    settings = simulation.charter.settings
    assert settings["privacy.noise"] == 0.01
    assert not any(name.startswith("privacy") for name in simulate(tiny()).charter.settings)


def test_answers_of_a_transport_pass_unchanged(tmp_path):
    from fedwsq.runs.privacy import Counting
    from fedwsq.transports import Serial

    counting = Counting(Serial(lambda body, order: b"done"), tmp_path / "rounds")
    message = Message(Kind.ORDER, Key(0, 1, 0), bytes(16), rates=(4.0,))
    from fedwsq.wire import Schema

    order = Order(message.key, encode(message, Schema({})))
    assert list(counting.dispatch(b"", [order])) == [Reply(message.key, b"done")]
    assert list(counting.dispatch(b"", [])) == []
    assert (tmp_path / "rounds").stat().st_size == 1
