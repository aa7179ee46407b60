"""The coded downlink: what clients rebuild, what it costs, what their updates are relative to."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedwsq.codecs import Danuq, Fixed
from fedwsq.core.errors import ConfigError, MessageError
from fedwsq.core.tree import fingerprint, norm, sub
from fedwsq.core.types import Key
from fedwsq.federation.charter import difference
from fedwsq.federation.downlink import Chain, SinceStart, WholeModel, way_down
from fedwsq.federation.simulation import simulate
from fedwsq.runs import Run, load_snapshot, save_snapshot
from fedwsq.transports import Failure, Order, Serial
from fedwsq.wire import Downlink, Kind, Message, Schema, decode, encode
from fedwsq.wire.parse import kind_of
from harness import tiny

CPU = torch.device("cpu")
CHAIN = {"downlink": {"codec": "danuq", "bits": 1, "mode": "chain", "select": "all"}}
MODEL = {
    "downlink": {"codec": {"name": "uq", "rounding": "nearest", "scale_per": "channel"}, "bits": 8}
}
START = {"downlink": {"codec": "danuq", "bits": 2, "mode": "start", "select": "all"}}
WHOLE_COHORT = {"data.clients": 4, "clients_per_round": 4}


class Deaf:
    """A real serial transport whose client 0 cannot be reached in some rounds; all sent is kept."""

    def __init__(self, inner, away=range(0)):
        self.inner = inner
        self.away = away
        self.sent = {}

    def dispatch(self, body, orders, deadline=None):
        if kind_of(orders[0].head) is not Kind.ORDER:
            yield from self.inner.dispatch(body, orders, deadline)
            return
        for order in orders:
            self.sent[order.key.round, order.key.client] = order, body
        heard = [o for o in orders if o.key.client or o.key.round not in self.away]
        yield from self.inner.dispatch(body, heard)

    def close(self):
        self.inner.close()


def federate(plan, away=range(0), snapshot=None, folder=None):
    simulation = simulate(plan)
    site = simulation.site(CPU, folder)
    return simulation.server(Deaf(Serial(site.answer), away), snapshot), site


def held(site, client, round_):
    """The public model in a client's memory."""
    return site.store.load(client, round_).model


def same(a, b):
    return a.keys() == b.keys() and all(fingerprint(a[name]) == fingerprint(b[name]) for name in a)


def test_a_client_back_after_ten_rounds_holds_exactly_the_public_model():
    server, site = federate(tiny(rounds=13, **CHAIN, **WHOLE_COHORT), away=range(2, 12))
    records = [server.step() for _ in range(12)]
    order, body = server.transport.sent[12, 0]
    head = decode(order.head, server.charter.schema, Kind.ORDER)
    assert records[-1].failed == 0
    assert head.accepted == 1
    assert list(head.packets) == [f"{number} params" for number in range(2, 12)]
    assert not order.body
    for client in range(4):
        assert same(held(site, client, 12), server.snapshot.public.vectors)
    # and the chain was the shorter way
    assert len(order.head) + len(body) < records[0].downlink_bytes_float32 / 4


def test_a_client_away_for_too_long_gets_the_whole_model():
    settings = {"downlink": CHAIN["downlink"] | {"bits": 4}}
    server, site = federate(tiny(rounds=13, **settings, **WHOLE_COHORT), away=range(2, 12))
    for _ in range(12):
        server.step()
    order, _ = server.transport.sent[12, 0]
    assert order.body
    assert list(decode(order.body, server.charter.schema).packets) == ["params"]
    assert same(held(site, 0, 12), server.snapshot.public.vectors)


def test_bytes_are_counted_as_they_are_sent():
    server, _ = federate(tiny(rounds=4, **CHAIN, **WHOLE_COHORT), away=range(2, 3))
    for _ in range(3):
        record = server.step()
        sent = [server.transport.sent[record.round, client] for client in range(4)]
        assert record.downlink_bytes == sum(
            len(order.body or body) + len(order.head) for order, body in sent
        )
    # one bit a parameter, and the broadcast's fixed bytes
    parameters = sum(server.charter.schema.sizes.values())
    assert record.downlink_bytes < 4 * (parameters / 8 + 3000)


def test_the_public_model_follows_the_server_and_does_not_drift():
    server, _ = federate(tiny(rounds=13, **CHAIN, **WHOLE_COHORT))
    gaps = []
    for _ in range(12):
        target = server.plan.algorithm.broadcast(server.snapshot.server)["params"]
        server.step()
        public = server.snapshot.public.vectors["params"]
        gaps.append(sum(float((public[n] - target[n]).square().sum()) for n in target))
        moved = sum(float((server.params[n] - target[n]).square().sum()) for n in target)
    assert gaps[0] == 0
    # One bit: what is left over is a few rounds of movement, not twelve.
    assert 0 < gaps[-1] < 30 * moved


@pytest.mark.slow
@pytest.mark.parametrize("settings", [CHAIN, MODEL], ids=["chain", "model"])
def test_serial_pool_and_resume_agree(settings, tmp_path):
    plan = tiny(rounds=3, **settings)
    server, _ = federate(plan)
    for _ in range(3):
        server.step()
    with Run.create(plan, tmp_path / "pool", workers=2) as run:
        assert run.go().weights == fingerprint(server.params)
    first, _ = federate(plan, folder=tmp_path / "clients")
    for _ in range(2):
        first.step()
    save_snapshot(tmp_path / "checkpoints", first.snapshot)
    snapshot, _ = load_snapshot(tmp_path / "checkpoints")
    again, _ = federate(plan, snapshot=snapshot, folder=tmp_path / "clients")
    again.step()
    assert fingerprint(again.params) == fingerprint(server.params)


@pytest.mark.parametrize("settings", [CHAIN, MODEL], ids=["chain", "model"])
def test_updates_are_relative_to_what_the_client_rebuilt(settings):
    # Clients that learn nothing leave the server's exact model alone, though they never saw it.
    plan = tiny(rounds=3, **settings, **WHOLE_COHORT, **{"training.lr": 1e-30})
    server, _ = federate(plan)
    for _ in range(2):
        assert server.step().failed == 0
    for name, x in server.charter.model.initial_params().items():
        torch.testing.assert_close(server.params[name], x, rtol=0, atol=1e-25)


def test_model_mode_loses_little_at_eight_bits_and_keeps_no_memory():
    server, site = federate(tiny(rounds=2, **MODEL))
    server.step()
    _, body = next(iter(server.transport.sent.values()))
    received = site.receive(body).vectors["params"]
    initial = server.charter.model.initial_params()
    for name, x in initial.items():
        if x.dim() >= 3 and name != next(iter(initial)):
            rows = x.flatten(1)
            step = 2 * rows.abs().amax(1, keepdim=True) / 255
            assert ((received[name] - x).flatten(1).abs() <= step / 2 * 1.001).all()
            assert not torch.equal(received[name], x)
    assert server.snapshot.public is None
    assert not list(site.store.folder.glob("*"))


def test_a_difference_for_a_client_without_a_model_is_that_clients_own_trouble():
    server, _ = federate(tiny(rounds=3, **CHAIN, **WHOLE_COHORT))
    server.step()
    server.step()
    order, body = server.transport.sent[2, 1]
    _, fresh = federate(server.plan)
    # It was there in round 1, as far as the server knows: it says that it has forgotten.
    forgot = decode(fresh.answer(body, order), server.charter.schema, Kind.FORGOT)
    assert (forgot.key, forgot.nonce) == (order.key, decode(order.head, None).nonce)
    # The server itself would never send a newcomer differences.
    first = decode(order.head, server.charter.schema)
    order = Order(order.key, encode(replace(first, accepted=0), server.charter.schema))
    (answer,) = Serial(fresh.answer).dispatch(body, [order])
    assert isinstance(answer, Failure)
    assert "client 1, which has no model to add them to" in answer.reason


def test_a_client_that_lost_its_model_gets_a_whole_one(tmp_path):
    server, site = federate(tiny(rounds=4, **CHAIN, **WHOLE_COHORT), folder=tmp_path)
    server.step()
    server.step()
    (tmp_path / "1" / "2.safetensors").unlink()
    assert list(server.step().failures) == ["1"]
    assert server.step().failures == {}
    order, _ = server.transport.sent[4, 1]
    assert list(decode(order.body, server.charter.schema).packets) == ["params"]
    assert same(held(site, 1, 4), server.snapshot.public.vectors)


def rebuilt(server, held, packets, accepted, last):
    """What a client makes of differences in its order, on top of what it holds."""
    way = Chain(server.plan.downlink, server.charter.schema)
    key = Key(server.plan.seed, last, 0)
    order = Message(Kind.ORDER, key, bytes(16), accepted=accepted, packets=packets)
    return way.rebuild(order, {}, held)


def differences(server, number):
    body = server.snapshot.public.differences[number]
    return decode(body, server.charter.schema).packets


def test_a_chain_with_a_gap_or_a_stranger_is_refused():
    server, site = federate(tiny(rounds=4, **CHAIN, **WHOLE_COHORT))
    for _ in range(3):
        server.step()
    public = held(site, 0, 1)
    two = differences(server, 2)
    three = differences(server, 3)
    assert same(rebuilt(server, public, {**two, **three}, 1, 3), server.snapshot.public.vectors)
    with pytest.raises(MessageError, match=r"differences of rounds \[3\], expected 2 to 3"):
        rebuilt(server, public, three, 1, 3)
    with pytest.raises(MessageError, match="'params' is not named after a round"):
        rebuilt(server, public, {"params": three["3 params"]}, 1, 3)
    with pytest.raises(MessageError, match=r"carries \['other'\]"):
        rebuilt(server, public, {"2 other": two["2 params"], **three}, 1, 3)


def test_a_difference_of_the_wrong_rate_is_refused():
    server, site = federate(tiny(rounds=3, **CHAIN, **WHOLE_COHORT))
    server.step()
    server.step()
    bits = tiny(**{"uplink.codec": "danuq", "uplink.bits": 2}).uplink.bits
    way = Chain(replace(server.plan.downlink, bits=bits), server.charter.schema)
    order = Message(Kind.ORDER, Key(0, 2, 0), bytes(16), accepted=1)
    with pytest.raises(MessageError, match="rate 1, the order was for 2"):
        way.rebuild(order, differences(server, 2), held(site, 0, 1))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"downlink.mode": "chian"}, "did you mean chain"),
        ({"downlink.mode": "chain"}, "needs a codec, such as downlink.codec=danuq"),
        ({"downlink.mode": "start"}, "start codes differences and needs a codec"),
        (
            {"downlink": {"codec": "uq", "bits": 1, "mode": "chain"}},
            "chain needs a code that loses less",
        ),
        (
            {"downlink.codec": "danuq", "downlink.bits": "per_round"},
            "downlink.bits must be one number, or growing",
        ),
        (
            {"downlink.codec": "danuq", "downlink.bits": 4, "downlink.error_feedback": True},
            "mode = chain makes up",
        ),
    ],
)
def test_settings_that_make_no_sense(settings, says):
    with pytest.raises(ConfigError, match=says):
        tiny(**settings)


def test_the_default_codes_nothing():
    assert Downlink().lossless
    assert isinstance(way_down(Downlink(), Schema({"w": (2,)}), dict), WholeModel)


@pytest.mark.parametrize("mode", ["model", "start", "chain"])
@pytest.mark.parametrize(("codec", "bits"), [("ecq", 0.3), ("ecq", 0.1), ("topk", 0.7)])
def test_a_rate_that_float32_cannot_hold_goes_down_too(codec, bits, mode):
    downlink = {"codec": codec, "bits": bits, "mode": mode, "select": "all"}
    server, _ = federate(tiny(rounds=3, downlink=downlink, **WHOLE_COHORT))
    assert [server.step().failures for _ in range(2)] == [{}, {}]


@pytest.mark.parametrize("mode", ["model", "start", "chain"])
def test_widths_may_grow_both_ways(mode):
    """Client 0 is away when widths change, and catches up with differences of two widths."""
    bits = {"name": "growing", "every": 2, "choices": [1, 4]}
    links = {
        "downlink": {"codec": "danuq", "bits": bits, "mode": mode, "select": "all"},
        "uplink": {"codec": "danuq", "bits": bits},
    }
    server, site = federate(tiny(rounds=5, **links, **WHOLE_COHORT), away=range(3, 5))
    records = [server.step() for _ in range(5)]
    assert [row.bits for row in records] == [1, 1, 4, 4, 4]
    assert [row.replied for row in records] == [4, 4, 3, 3, 4]
    bodies = [len(server.transport.sent[number, 1][1]) for number in range(1, 6)]
    if mode == "chain":
        assert same(held(site, 0, 5), server.snapshot.public.vectors)
        bodies[0] = bodies[1]  # nothing leads to the first model
    assert bodies[0] == bodies[1]
    assert bodies[2] == bodies[3] == bodies[4] > 2 * bodies[1]


def test_a_broadcast_of_the_width_of_another_round_is_refused():
    """Two rounds at 1 bit, then 4: the second broadcast, with the third's number on it."""
    bits = {"name": "growing", "every": 2, "choices": [1, 4]}
    downlink = {"codec": "danuq", "bits": bits, "select": "all"}
    server, _ = federate(tiny(rounds=3, downlink=downlink, **WHOLE_COHORT))
    server.step()
    server.step()
    way = way_down(server.plan.downlink, server.charter.schema, dict)
    _, body = server.transport.sent[2, 1]
    message = decode(body, server.charter.schema)
    assert way.read(message, frozenset({"params"}))
    later = replace(message, key=message.key._replace(round=3))
    with pytest.raises(MessageError, match="rate 1, the order was for 4"):
        way.read(later, frozenset({"params"}))


def test_a_round_from_elsewhere_is_not_counted_up_to():
    server, site = federate(tiny(rounds=3, **CHAIN, **WHOLE_COHORT))
    server.step()
    server.step()
    packets = differences(server, 2)
    with pytest.raises(MessageError, match="expected 2 to 1000000000000000000"):
        rebuilt(server, held(site, 0, 1), packets, 1, 10**18)
    with pytest.raises(MessageError, match="'02 params' is not named after a round"):
        rebuilt(server, held(site, 0, 1), {"02 params": packets["2 params"]}, 1, 2)


def test_a_broadcast_of_other_vectors_is_refused():
    server, site = federate(tiny(rounds=2))
    server.step()
    order, body = next(iter(server.transport.sent.values()))
    message = decode(body, server.charter.schema)
    params = message.packets["params"]
    for packets in ({}, {"control": params}, {"params": params, "more": params}):
        other = encode(replace(message, packets=packets), server.charter.schema)
        (answer,) = Serial(site.answer).dispatch(other, [order])
        assert "the broadcast carries" in answer.reason


def test_two_vectors_go_down_a_chain():
    server, site = federate(
        tiny(rounds=4, algorithm="scaffold", **CHAIN, **WHOLE_COHORT), away=range(2, 3)
    )
    for _ in range(3):
        assert server.step().replied >= 3
    order, _ = server.transport.sent[3, 0]
    assert set(decode(order.head, server.charter.schema).packets) == {"2 params", "2 control"}
    assert same(held(site, 0, 3), server.snapshot.public.vectors)


def test_keeping_messages_keeps_the_whole_model_too(tmp_path):
    with Run.create(tiny(rounds=2, **CHAIN, **WHOLE_COHORT), tmp_path / "run", workers=1) as run:
        run.go(keep_messages=True)
    names = {path.name for path in (tmp_path / "run" / "messages").iterdir()}
    assert {"round-1-whole.fwsq", "round-1-broadcast.fwsq", "round-2-broadcast.fwsq"} <= names
    assert "round-2-whole.fwsq" not in names


# What was learned since the start.


def one_bit(start):
    """Danuq at 1 bit: each value is its tensor's std times 0.7979, with its sign."""
    schema = Schema({name: tuple(x.shape) for name, x in start.items()})
    return SinceStart(Downlink(Danuq(), Fixed(1), "all", mode="start"), schema, start)


def broadcast_of(way, vectors):
    empty = Message(Kind.BROADCAST, Key(0, 1, 0), bytes(16))
    return decode(way.broadcast(vectors, empty).body, way.line.schema, Kind.BROADCAST)


def test_what_was_learned_by_hand():
    """Other vectors travel as they are.

    kept = (10 * 13 + 20 * 19 + 30 * 31 + 40 * 37) / (10^2 + 20^2 + 30^2 + 40^2) = 2920 / 3000.
    Learned: 49 / 15, -7 / 15, 9 / 5, -29 / 15, of mean 2 / 3; squares of what is left of them:
    2 * 2.6^2 + 2 * (17 / 15)^2 over 3, so a std of 2.3158.
    """
    way = one_bit({"w": torch.tensor([10.0, 20.0, 30.0, 40.0])})
    vectors = {
        "params": {"w": torch.tensor([13.0, 19.0, 31.0, 37.0])},
        "momentum": {"w": torch.tensor([3.0, -1.0, 1.0, -3.0])},
    }
    message = broadcast_of(way, vectors)
    assert message.metrics == {"kept": pytest.approx(2920 / 3000, rel=1e-12)}

    found = way.read(message, frozenset(vectors))
    kept = 2920 / 3000
    step = 0.7979 * (2 * (2.6**2 + (17 / 15) ** 2) / 3) ** 0.5
    expected = [10 * kept + step, 20 * kept - step, 30 * kept + step, 40 * kept - step]
    assert found["params"]["w"].tolist() == pytest.approx(expected, rel=1e-5)
    step = 0.7979 * (20 / 3) ** 0.5
    assert found["momentum"]["w"].tolist() == pytest.approx([step, -step, step, -step], rel=1e-5)


def test_what_decay_took_costs_no_bits():
    """A quarter of the start, and nothing learned: one number says so, at any width."""
    start = {"w": torch.tensor([1.0, -2.0, 4.0, -8.0])}
    way = one_bit(start)
    params = {"w": start["w"] / 4}
    found = way.read(broadcast_of(way, {"params": params}), frozenset({"params"}))
    assert fingerprint(found["params"]) == fingerprint(params)


def test_only_coded_tensors_are_held_against_what_is_kept():
    """Half of the weights is kept; the bias is sent as its difference to where it started."""
    start = {
        "stem": torch.ones(1, 1, 1),
        "w": torch.tensor([[[2.0, -2.0]]]),
        "b": torch.tensor([3.0, 5.0]),
    }
    schema = Schema({name: tuple(x.shape) for name, x in start.items()})
    way = SinceStart(Downlink(Danuq(), Fixed(1), "published", mode="start"), schema, start)
    params = {"stem": torch.ones(1, 1, 1), "w": start["w"] / 2, "b": torch.tensor([4.0, 5.5])}
    message = broadcast_of(way, {"params": params})
    assert message.metrics == {"kept": 0.5}
    assert message.packets["params"]["b"].code == np.array([1.0, 0.5], "<f4").tobytes()
    found = way.read(message, frozenset({"params"}))
    assert fingerprint(found["params"]) == fingerprint(params)


def test_a_start_of_zeros_is_kept_whole():
    way = one_bit({"w": torch.zeros(3)})
    message = broadcast_of(way, {"params": {"w": torch.tensor([0.0, 1.0, -1.0])}})
    assert message.metrics == {"kept": 1.0}


def test_what_grew_beyond_all_measure_is_sent_as_learned():
    """No client would take 10,000: a thousand times the start, and what is left."""
    start = {"w": torch.tensor([1e-5, -1e-5])}
    way = one_bit(start)
    params = {"w": torch.tensor([0.1, -0.1])}
    message = broadcast_of(way, {"params": params})
    assert message.metrics == {"kept": 1000.0}
    found = way.read(message, frozenset({"params"}))["params"]["w"]
    assert found.tolist() == pytest.approx([0.1, -0.1], rel=0.2)


@pytest.mark.parametrize("metrics", [{}, {"loss": 1.0}, {"kept": 1001.0}, {"kept": -1e20}])
def test_a_broadcast_that_keeps_nothing_known_is_refused(metrics):
    start = {"w": torch.tensor([1.0, 2.0])}
    way = one_bit(start)
    message = replace(broadcast_of(way, {"params": start}), metrics=metrics)
    with pytest.raises(MessageError, match=r"since the start says that .* of it is kept"):
        way.read(message, frozenset({"params"}))


def test_at_the_start_nothing_is_lost():
    start = {"w": torch.randn(50, generator=torch.Generator().manual_seed(0))}
    way = one_bit(start)
    found = way.read(broadcast_of(way, {"params": start}), frozenset({"params"}))
    assert fingerprint(found["params"]) == fingerprint(start)


def lost_in_rounds(settings):
    """How far from the server's model clients start in each of three rounds, over its norm."""
    server, site = federate(tiny(rounds=3, **settings))
    lost = []
    for number in range(1, 4):
        before = server.params
        server.step()
        sent = server.transport.sent.items()
        (body,) = {body for (sent_in, _), (_, body) in sent if sent_in == number}
        received = site.receive(body).vectors["params"]
        lost.append(float(norm(sub(received, before)) / norm(before)))
    return lost


def test_as_many_bits_lose_less_than_of_the_model_itself():
    since_start = lost_in_rounds(START)
    of_the_model = lost_in_rounds({"downlink": START["downlink"] | {"mode": "model"}})
    assert since_start[0] == 0
    assert since_start[1] < of_the_model[1] / 5
    assert since_start[2] < of_the_model[2] / 5


def test_two_ends_that_start_elsewhere_hear_of_it(tmp_path):
    """As they would with a file of weights at one end only."""
    here = simulate(tiny(**START)).charter
    there = simulate(tiny(**START)).charter
    moved = {name: x + 1 for name, x in there.model.initial_params().items()}
    object.__setattr__(there.model, "initial_params", lambda: moved)
    assert difference(here.settings, there.settings).startswith('model.start is "')
    assert "model.start" not in simulate(tiny()).charter.settings


def test_it_goes_on_from_a_checkpoint_to_the_same_weights(tmp_path):
    plan = tiny(rounds=4, **START)
    server, _ = federate(plan)
    for _ in range(4):
        server.step()
    first, _ = federate(plan)
    first.step()
    first.step()
    save_snapshot(tmp_path, first.snapshot)
    again, _ = federate(plan, snapshot=load_snapshot(tmp_path)[0])
    again.step()
    again.step()
    assert fingerprint(again.params) == fingerprint(server.params)
