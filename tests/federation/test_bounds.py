"""What one reply can do to a round: refused, cut back, or counted as the server knows it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_round import fine, play, reframed, under

from fedwsq.core.errors import ConfigError
from fedwsq.core.tree import fingerprint
from fedwsq.federation.bounds import (
    Limits,
    Seen,
    Trend,
    Usual,
    bounded_mean,
    bounded_sides,
    limits,
)
from fedwsq.federation.owners import Census
from fedwsq.federation.simulation import simulate
from fedwsq.plan import Bounds
from fedwsq.runs import load_snapshot, save_snapshot
from fedwsq.wire import decode
from harness import greet, tiny, told

CPU = torch.device("cpu")


def cohort(*norms, examples=10.0):
    return [Seen({"delta": norm}, examples) for norm in norms]


def after(*cohorts):
    usual = Usual()
    for each in cohorts:
        usual = usual.after(each)
    return usual


# What is usual


def test_the_medians_of_the_latest_cohorts_are_kept():
    usual = after(cohort(1.0, 9.0, 2.0), cohort(4.0, 5.0, 5.0, 6.0))
    assert usual.norms == {"delta": Trend((2.0, 5.0), 3.5)}
    assert usual.examples == Trend((10.0, 10.0), 10.0)
    assert usual.after([]) == usual
    assert after(*[cohort(float(i)) for i in range(8)]).norms["delta"].latest == (3, 4, 5, 6, 7)


def test_of_two_the_longer_cannot_say_what_is_usual():
    """What it says would be remembered for a thousand rounds."""
    usual = after(cohort(1.0, 4e8), *[cohort(1.0, 1.0)] * 4)
    assert usual.norms["delta"].level == 1.0
    found = limits(Bounds(), Usual(), cohort(1.0, 4e8))
    assert found.factor("delta", 4e8, 0.0) == 2.5 / 4e8
    told = [Seen({"delta": 1.0}, 100.0), Seen({"delta": 1.0}, 1e12)]
    assert limits(Bounds(), Usual(), told).examples == 1000.0


def test_what_was_usual_is_forgotten_slowly():
    """Five cohorts at 8, then some at 1: a hundredth less with each, until what is new is more."""
    long = [cohort(8.0)] * 5
    assert after(*long, cohort(1.0)).norms["delta"].level == 8.0  # the median still is
    assert after(*long, *[cohort(1.0)] * 12).norms["delta"].level == pytest.approx(8 * 0.99**10)
    assert after(*long, *[cohort(1.0)] * 500).norms["delta"].level == 1.0
    assert after(*long, *[cohort(20.0)] * 3).norms["delta"].level == 20.0


def test_a_cohort_that_did_nothing_says_nothing():
    assert after(cohort(0.0, 0.0, 3.0)).norms == {"delta": Trend()}
    assert limits(Bounds(), after(cohort(0.0))).factor("delta", 1e30, 0.0) == 1.0
    assert limits(Bounds(), Usual(), cohort(0.0, 0.0)).factor("delta", 1e30, 0.0) == 1.0


def test_five_cohorts_are_enough_to_go_by():
    usual = after(*[cohort(1.0)] * 4)
    assert not usual.knows(["delta"])
    usual = usual.after(cohort(1.0))
    assert usual.knows(["delta"])
    assert not usual.knows(["delta", "control"])


def test_limits_by_hand():
    usual = after(*[cohort(4.0)] * 5)
    found = limits(Bounds(norm=5.0, weight=3.0), usual)
    assert found == Limits({"delta": 20.0}, examples=30.0, usual_examples=10.0)
    assert found.factor("delta", 20.0, 0.0) == 1.0
    assert found.factor("delta", 80.0, 0.0) == 0.25
    assert found.factor("delta", 80.0, 20.0) == 0.5  # twice the examples, twice the way
    assert found.factor("control", 80.0, 0.0) == 1.0
    assert limits(Bounds(norm=0.0), usual).factor("delta", 1e30, 0.0) == 1.0


def test_while_little_is_known_the_cohort_itself_counts():
    usual = after(cohort(1.0))
    assert limits(Bounds(norm=5.0), usual, cohort(7.0, 7.0, 900.0)).norms == {"delta": 35.0}
    assert limits(Bounds(norm=5.0), Usual(), cohort(2.0, 2.0, 900.0)).norms == {"delta": 10.0}
    assert limits(Bounds(), Usual()).factor("delta", 1e30, 0.0) == 1.0


@pytest.mark.parametrize(
    "settings", [{"norm": 0.5}, {"norm": -1.0}, {"magnitude": 0.0}, {"scale": 0.5}, {"weight": 0.0}]
)
def test_bounds_that_honest_replies_would_meet_are_refused(settings):
    with pytest.raises(ConfigError, match=f"{next(iter(settings))} is "):
        Bounds(**settings)


# Side values


def shared_scale(value):
    return {"delta": {"w": torch.tensor([value])}}


def bounded(found, before=1.0, factor=5.0):
    return bounded_sides(shared_scale(before), {"delta": {"w": found}}, factor)["delta"]["w"]


def test_side_values_within_the_bound_are_the_very_same():
    found = [(0.1,), (0.3,), (0.0,), (1.4,), (0.299999,)]
    assert bounded(found) == found
    assert bounded([(0.0,), (0.0,)]) == [(0.0,), (0.0,)]


def test_a_scale_far_above_the_others_counts_as_the_bound():
    # The median of those above 0 is 2.5: at most 12.5.
    found = bounded([(1.0,), (2.0,), (3.0,), (2e6,), (0.0,)], factor=5.0)
    assert found == [(1.0,), (2.0,), (3.0,), (12.5,), (0.0,)]


def test_of_two_scales_the_smaller_counts():
    assert bounded([(0.1,), (1e6,)], before=0.0) == [(0.1,), (0.5,)]  # the calibrating round
    assert bounded([(0.1,), (0.4,)]) == [(0.1,), (0.4,)]


def test_where_most_tensors_did_not_move_a_few_do_not_raise_the_scale():
    """A dead tensor would hand its scale to whoever lies, and be coded to nothing from then on."""
    still = [(0.0,)] * 3
    assert bounded([*still, (7.0,), (1e6,)], before=2.0) == [*still, (2.0,), (2.0,)]
    assert bounded([*still, (0.5,), (1e6,)], before=2.0) == [*still, (0.5,), (2.0,)]
    assert bounded([*still, (1e6,)], before=0.0) == [*still, (0.0,)]  # calibrated another time


def test_alone_it_is_held_against_the_shared_scale():
    assert bounded([(900.0,)], before=1.0) == [(900.0,)]
    assert bounded([(1e6,)], before=1.0) == [(1000.0,)]
    assert bounded([(1e6,)], before=0.0) == [(1e6,)]  # which calibrates by nobody else


def test_the_scales_of_channels_are_compared_together():
    """Root mean squares are 1, 1 and 100: the third is cut to a twentieth, each channel alike."""
    shared = {"delta": {"w": torch.tensor([1.0, 1.0])}}
    sides = {"delta": {"w": [(1.0, 1.0), (1.0, 1.0), (100.0, 100.0)]}}
    found = bounded_sides(shared, sides, 5.0)["delta"]["w"]
    assert found == [(1.0, 1.0), (1.0, 1.0), (5.0, 5.0)]
    lively = {"delta": {"w": [(1.0, 1e-9), (1e-9, 1.0), (1.0, 1.0)]}}
    assert bounded_sides(shared, lively, 5.0) == lively


def test_a_mean_of_metrics_within_the_bound_is_the_plain_mean():
    values = [0.1, 0.2, 0.3, 7.0]
    assert bounded_mean(values) == math.fsum(values) / 4
    # The median is 1: a hundred at most.
    assert bounded_mean([1.0, 1.0, 1.0, 1e20]) == (3 + 100) / 4
    assert bounded_mean([0.0, 0.0, 3.0]) == 1.0
    assert bounded_mean([1.0, 1e12]) == (1 + 100) / 2


# Rounds, with real replies


def lie(change, first=1):
    """The first client's reply changed, from that round on; and what the others sent."""
    server = under(fine)

    def weather(number, answers):
        if number < first:
            return answers
        message = decode(answers[0].payload, server.charter.schema)
        return [reframed(answers[0], server, **change(message)), *answers[1:]]

    server.transport.weather = weather
    return server


def coded(message, change):
    """The message's packets of the codec changed, those that bring a side value."""
    delta = {
        name: change(packet) if packet.side else packet
        for name, packet in message.packets["delta"].items()
    }
    return {"packets": {"delta": delta}}


def plain(message, value):
    """The packets in float32 with all their values replaced."""
    delta = {
        name: packet
        if packet.side
        else packet._replace(code=np.full(packet.numel, value, "<f4").tobytes())
        for name, packet in message.packets["delta"].items()
    }
    return {"packets": {"delta": delta}}


def without_the_first(rounds=1):
    return play(lambda number, answers: answers[1:], rounds=rounds)[0]


@pytest.mark.parametrize("value", [9.99e19, 2e9])
def test_a_value_beyond_the_stated_magnitude_is_refused(value):
    server = lie(lambda message: plain(message, value))
    row = server.step()
    (why,) = row.failures.values()
    assert f"'delta' has a value of size {value:g}, at most 1e+09 is let in" in why
    assert "bounds.magnitude" in why
    assert fingerprint(server.params) == without_the_first()


def test_a_scale_that_makes_values_beyond_it_is_refused():
    huge = lambda packet: packet._replace(side=(1e19,), own_scale=True)
    server = lie(lambda message: coded(message, huge))
    (why,) = server.step().failures.values()
    assert "is 1e+19, at most 1e+09 is let in (bounds.magnitude)" in why
    assert fingerprint(server.params) == without_the_first()


def test_a_model_that_could_not_be_sent_is_never_taken_over():
    """With every bound out of the way: what is left is that the run goes on."""
    plan = tiny(**{"bounds.magnitude": 1e20, "bounds.norm": 0.0})
    server = under(fine, plan)
    lies = [9.99e19, None, None]

    def weather(number, answers):
        value = lies[number - 1]
        if value is None:
            return answers
        message = decode(answers[0].payload, server.charter.schema)
        return [reframed(answers[0], server, **plain(message, value)), *answers[1:]]

    server.transport.weather = weather
    start = fingerprint(server.params)
    row = server.step()
    assert row.replied == 0
    assert "made the model not finite or above 1e+18" in next(iter(row.failures.values()))
    assert fingerprint(server.params) == start
    assert server.step().replied == 5


def test_what_a_server_knows_of_sizes_counts_and_not_what_a_reply_claims():
    server = lie(lambda message: {"weight": 1000 * message.weight})
    server.step()
    assert fingerprint(server.params) == play(fine, rounds=1)[0]


def blind(change, census=None):
    server = lie(change)
    server.census = census or Census()
    return server


def test_a_claim_counts_up_to_a_multiple_of_the_usual():
    """Whether it is a hundred times the bound or a million makes no difference any more."""
    much = blind(lambda message: {"weight": 1e6})
    more = blind(lambda message: {"weight": 1e12})
    fair = blind(lambda message: {})
    for server in (much, more, fair):
        server.step()
    assert fingerprint(much.params) == fingerprint(more.params)
    assert fingerprint(fair.params) == play(fine, rounds=1)[0]
    # By hand: ten times the median of what the cohort claims.
    kept = []
    fair = blind(lambda message: kept.append(message.weight) or {"weight": 1e6})
    others = []
    tail = fair.transport.weather

    def listen(number, answers):
        others.extend(decode(each.payload, fair.charter.schema).weight for each in answers[1:])
        return tail(number, answers)

    fair.transport.weather = listen
    fair.step()
    cap = 10 * float(np.median([1e6, *others]))
    assert all(weight <= cap for weight in others)
    exact = blind(lambda message: {"weight": cap})
    exact.step()
    assert fingerprint(exact.params) == fingerprint(much.params)


def test_sizes_told_at_the_start_count():
    simulation = simulate(tiny())
    found = greet(simulation.charter, simulation.serial(CPU), range(10))
    census = told({**found, 3: "it is not there"})
    assert not census.certain
    assert census.examples(3) is None
    assert census.examples(4) == simulation.census.examples(4)
    server = blind(lambda message: {"weight": 1e6}, told(found))
    server.step()
    assert fingerprint(server.params) == play(fine, rounds=1)[0]


@pytest.mark.parametrize("first", [1, 3], ids=["calibrating", "later"])
def test_a_side_value_moves_the_shared_scale_by_a_clipped_mean(first):
    server = lie(
        lambda message: coded(message, lambda p: p._replace(side=(1e6 * p.side[0],))), first
    )
    honest = under(fine)
    kept = []
    honest.transport.weather = lambda number, sent: kept.append(sent) or sent
    for _ in range(first):
        before = honest.snapshot.shared["delta"]
        server.step()
        honest.step()
    for name, scale in before.items():
        sides = [
            decode(reply.payload, honest.charter.schema).packets["delta"][name].side[0]
            for reply in kept[-1]
        ]
        lied = [1e6 * sides[0], *sides[1:]]
        lied[0] = min(lied[0], 5 * float(np.median(lied)))
        mean = sum(lied) / len(lied)
        expected = mean if first == 1 else 0.9 * float(scale) + 0.1 * mean
        found = server.snapshot.shared["delta"][name]
        assert float(found) == pytest.approx(expected, rel=1e-5)


def test_an_update_too_long_counts_as_the_limit():
    """By hand: the limit is 2.5 times the cohort's median, and the update points as it did."""
    server = under(fine)
    uplink = server.charter.uplink
    kept = []

    def weather(number, answers):
        messages = [decode(each.payload, server.charter.schema) for each in answers]
        vectors = uplink.receive(messages[0].packets, server.snapshot.shared, messages[0].key)
        long = {"delta": {name: -100 * x for name, x in vectors["delta"].items()}}
        sent = uplink.send(long, {}, messages[0].key, (4.0,))
        messages[0] = replace(messages[0], packets=sent.packets)
        kept.extend(messages)
        return [reframed(answers[0], server, packets=sent.packets), *answers[1:]]

    server.transport.weather = weather
    before = dict(server.params)
    shared = server.snapshot.shared
    row = server.step()
    assert (row.replied, row.clipped) == (5, 1)

    decoded = [uplink.receive(m.packets, shared, m.key)["delta"] for m in kept]
    norms = [float(sum(x.double().square().sum() for x in d.values()) ** 0.5) for d in decoded]
    sizes = [m.weight for m in kept]
    usual = float(np.median(sizes))
    limit = 2.5 * float(np.median(norms)) * max(1.0, sizes[0] / usual)
    assert norms[0] > limit
    shares = [limit / norms[0], 1, 1, 1, 1]
    for name, start in before.items():
        parts = [w * s * d[name] for w, s, d in zip(sizes, shares, decoded, strict=True)]
        expected = start + sum(parts) / sum(sizes)
        torch.testing.assert_close(server.params[name], expected, rtol=1e-5, atol=1e-6)


def test_no_clipping_with_one_key():
    off = under(fine, tiny(**{"bounds.norm": 0.0}))
    assert off.step().clipped == 0
    off.step()
    assert fingerprint(off.params) == play(fine)[0]


@pytest.mark.parametrize("name", ["lr_sum", "steps", "train_seconds", "codec_seconds"])
def test_a_metric_that_no_training_has_is_refused(name):
    server = lie(lambda message: {"metrics": {**message.metrics, name: -4.0}})
    (why,) = server.step().failures.values()
    assert f"metric '{name}' is -4, must not be negative" in why
    assert fingerprint(server.params) == without_the_first()


def test_a_client_that_does_not_say_its_learning_rates_does_not_stop_a_method_that_uses_them():
    """FedCM divides by their sum; without it the direction would stay where it was for ever."""
    server = under(fine, tiny(algorithm="fedcm"))
    server.transport.weather = lambda number, answers: [
        reframed(answers[0], server, metrics={}),
        *answers[1:],
    ]
    row = server.step()
    assert row.replied == 5
    assert all(x.any() for x in server.snapshot.server["direction"].values())


def test_what_a_reply_says_of_itself_is_bounded_in_the_row():
    server = lie(lambda m: {"error": 1e20, "metrics": {**m.metrics, "loss": 1e20}})
    row = server.step()
    assert row.quantization_error <= 1e12
    assert row.train_loss <= 1e12
    assert fingerprint(server.params) == play(fine, rounds=1)[0]


def test_what_is_usual_survives_a_checkpoint(tmp_path):
    """The sixth round is held against the five before it, whoever ran them."""
    seen = []

    def attacked():
        server = lie(lambda message: plain(message, 1e4), first=6)
        server.evaluator = None
        return server

    through = attacked()
    for _ in range(6):
        seen.append(through.step().clipped)
    assert seen == [0, 0, 0, 0, 0, 1]

    first = attacked()
    for _ in range(5):
        first.step()
    save_snapshot(tmp_path, first.snapshot)
    second = attacked()
    second.snapshot, _ = load_snapshot(tmp_path)
    assert second.step().clipped == 1
    assert fingerprint(second.params) == fingerprint(through.params)
    assert second.snapshot.usual == through.snapshot.usual
