"""The coded downlink: what clients rebuild, what it costs, and what the server makes of their updates."""

from dataclasses import replace

import pytest
import torch

from fedwsq.core.errors import ConfigError, MessageError
from fedwsq.core.tree import fingerprint
from fedwsq.federation.server import Federation
from fedwsq.federation.site import PUBLIC, Failure, Order, Site
from fedwsq.federation.workload import build_workload
from fedwsq.runs.checkpoint import load_snapshot, save_snapshot
from fedwsq.runs.run import Run
from fedwsq.transports.pool import Serial
from fedwsq.wire import Downlink, Kind, decode, encode
from fedwsq.wire.downlink import rebuild
from harness import tiny

CPU = torch.device("cpu")
CHAIN = {"downlink": {"codec": "danuq", "bits": 1, "mode": "chain", "select": "all"}}
MODEL = {
    "downlink": {"codec": {"name": "uq", "rounding": "nearest", "scales": "channel"}, "bits": 8}
}
WHOLE_COHORT = {"data.clients": 4, "clients_per_round": 4}


class Deaf:
    """A real serial backend whose client 0 cannot be reached in some rounds; everything sent is kept."""

    def __init__(self, site, away=range(0)):
        self.inner, self.away, self.sent = Serial(site), away, {}

    def dispatch(self, body, orders):
        for order in orders:
            self.sent[order.key.round, order.key.client] = order, body
        yield from self.inner.dispatch(
            body, [o for o in orders if o.key.client or o.key.round not in self.away]
        )

    def evaluate(self, body, starts):
        return self.inner.evaluate(body, starts)

    def close(self):
        self.inner.close()


def federate(plan, away=range(0), snapshot=None, folder=None):
    workload = build_workload(plan)
    site = Site(workload, CPU, folder)
    return Federation(workload, Deaf(site, away), snapshot), site


def held(site, client, round_):
    """The public model in a client's memory."""
    memory = site.store.load(client, round_)
    return {
        name.removeprefix(PUBLIC): params
        for name, params in memory.items()
        if name.startswith(PUBLIC)
    }


def same(a, b):
    return a.keys() == b.keys() and all(fingerprint(a[name]) == fingerprint(b[name]) for name in a)


def test_a_client_back_after_ten_rounds_holds_exactly_the_public_model():
    server, site = federate(tiny(rounds=13, **CHAIN, **WHOLE_COHORT), away=range(2, 12))
    records = [server.step() for _ in range(12)]
    order, body = server.backend.sent[12, 0]
    head = decode(order.head, server.schema, Kind.ORDER)
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
    order, _ = server.backend.sent[12, 0]
    assert order.body
    assert list(decode(order.body, server.schema).packets) == ["params"]
    assert same(held(site, 0, 12), server.snapshot.public.vectors)


def test_bytes_are_counted_as_they_are_sent():
    server, _ = federate(tiny(rounds=4, **CHAIN, **WHOLE_COHORT), away=range(2, 3))
    for _ in range(3):
        record = server.step()
        sent = [server.backend.sent[record.round, client] for client in range(4)]
        assert record.downlink_bytes == sum(
            len(order.body or body) + len(order.head) for order, body in sent
        )
    # one bit a parameter, and the broadcast's fixed bytes
    parameters = sum(server.schema.sizes.values())
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
    assert (
        0 < gaps[-1] < 30 * moved
    )  # one bit: what is left over is a few rounds of movement, not twelve


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
    again, _ = federate(
        plan, snapshot=load_snapshot(tmp_path / "checkpoints")[0], folder=tmp_path / "clients"
    )
    again.step()
    assert fingerprint(again.params) == fingerprint(server.params)


@pytest.mark.parametrize("settings", [CHAIN, MODEL], ids=["chain", "model"])
def test_updates_are_relative_to_what_the_client_rebuilt(settings):
    # Clients that learn nothing leave the server's exact model alone, though they never saw it.
    plan = tiny(rounds=3, **settings, **WHOLE_COHORT, **{"training.lr": 1e-30})
    server, _ = federate(plan)
    for _ in range(2):
        assert server.step().failed == 0
    for name, x in server.workload.initial_params().items():
        torch.testing.assert_close(server.params[name], x, rtol=0, atol=1e-25)


def test_model_mode_loses_little_at_eight_bits_and_keeps_no_memory():
    server, site = federate(tiny(rounds=2, **MODEL))
    server.step()
    _, body = next(iter(server.backend.sent.values()))
    received = site.receive(body, server.plan.downlink).vectors["params"]
    initial = server.workload.initial_params()
    for name, x in initial.items():
        if x.dim() >= 3 and name != next(iter(initial)):
            rows = x.flatten(1)
            step = 2 * rows.abs().amax(1, keepdim=True) / 255
            assert ((received[name] - x).flatten(1).abs() <= step / 2 * 1.001).all()
            assert not torch.equal(received[name], x)
    assert server.snapshot.public is None
    assert not list(site.store.folder.glob("*"))


def test_a_step_for_a_client_without_a_model_is_that_clients_failure():
    server, _ = federate(tiny(rounds=3, **CHAIN, **WHOLE_COHORT))
    server.step(), server.step()
    order, body = server.backend.sent[2, 1]
    fresh, _ = federate(server.plan)
    (answer,) = Serial(fresh.backend.inner.site).dispatch(body, [order])
    assert isinstance(answer, Failure)
    assert "memory of round 1" in answer.reason
    first = decode(order.head, server.schema)
    order = Order(order.key, encode(replace(first, accepted=0), server.schema))
    (answer,) = Serial(fresh.backend.inner.site).dispatch(body, [order])
    assert "client 1, which has no model to add them to" in answer.reason


def test_a_chain_with_a_gap_or_a_stranger_is_refused():
    server, site = federate(tiny(rounds=4, **CHAIN, **WHOLE_COHORT))
    for _ in range(3):
        server.step()
    public, link = held(site, 0, 1), server.plan.downlink
    steps = {
        number: decode(server.snapshot.public.steps[number], server.schema).packets
        for number in (2, 3)
    }
    whole = rebuild(link, public, {**steps[2], **steps[3]}, 1, 3, 0, server.schema)
    assert same(whole, server.snapshot.public.vectors)
    with pytest.raises(MessageError, match=r"differences of rounds \[3\], expected 2 to 3"):
        rebuild(link, public, steps[3], 1, 3, 0, server.schema)
    with pytest.raises(MessageError, match="'params' is not named after a round"):
        rebuild(link, public, {"params": steps[3]["3 params"]}, 1, 3, 0, server.schema)
    with pytest.raises(MessageError, match=r"carries \['other'\]"):
        rebuild(link, public, {"2 other": steps[2]["2 params"], **steps[3]}, 1, 3, 0, server.schema)


def test_a_step_of_the_wrong_rate_is_refused():
    server, site = federate(tiny(rounds=3, **CHAIN, **WHOLE_COHORT))
    server.step(), server.step()
    two = replace(
        server.plan.downlink, bits=tiny(**{"uplink.codec": "danuq", "uplink.bits": 2}).uplink.bits
    )
    packets = decode(server.snapshot.public.steps[2], server.schema).packets
    with pytest.raises(MessageError, match="rate 1, the order was for 2"):
        rebuild(two, held(site, 0, 1), packets, 1, 2, 0, server.schema)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"downlink.mode": "chian"}, "did you mean chain"),
        ({"downlink.mode": "chain"}, "needs a codec, such as downlink.codec=danuq"),
        (
            {"downlink": {"codec": "uq", "bits": 1, "mode": "chain"}},
            "chain needs a code that loses less",
        ),
        (
            {"downlink.codec": "danuq", "downlink.bits": "per_round"},
            "downlink.bits must be one number",
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
    assert not Downlink().chained


@pytest.mark.parametrize("mode", ["model", "chain"])
@pytest.mark.parametrize(("codec", "bits"), [("ecq", 0.3), ("ecq", 0.1), ("topk", 0.7)])
def test_a_rate_that_float32_cannot_hold_goes_down_too(codec, bits, mode):
    downlink = {"codec": codec, "bits": bits, "mode": mode, "select": "all"}
    server, _ = federate(tiny(rounds=3, downlink=downlink, **WHOLE_COHORT))
    assert [server.step().failures for _ in range(2)] == [{}, {}]


def test_a_round_from_elsewhere_is_not_counted_up_to():
    server, site = federate(tiny(rounds=3, **CHAIN, **WHOLE_COHORT))
    server.step(), server.step()
    steps = decode(server.snapshot.public.steps[2], server.schema).packets
    with pytest.raises(MessageError, match="expected 2 to 1000000000000000000"):
        rebuild(server.plan.downlink, held(site, 0, 1), steps, 1, 10**18, 0, server.schema)
    with pytest.raises(MessageError, match="'02 params' is not named after a round"):
        rebuild(
            server.plan.downlink,
            held(site, 0, 1),
            {"02 params": steps["2 params"]},
            1,
            2,
            0,
            server.schema,
        )


def test_a_broadcast_of_other_vectors_is_refused():
    server, site = federate(tiny(rounds=2))
    server.step()
    order, body = next(iter(server.backend.sent.values()))
    message = decode(body, server.schema)
    for packets in (
        {},
        {"control": message.packets["params"]},
        {**message.packets, "more": message.packets["params"]},
    ):
        (answer,) = Serial(site).dispatch(
            encode(replace(message, packets=packets), server.schema), [order]
        )
        assert "the broadcast carries" in answer.reason


def test_two_vectors_go_down_a_chain():
    server, site = federate(
        tiny(rounds=4, algorithm="scaffold", **CHAIN, **WHOLE_COHORT), away=range(2, 3)
    )
    for _ in range(3):
        assert server.step().replied >= 3
    order, _ = server.backend.sent[3, 0]
    assert set(decode(order.head, server.schema).packets) == {"2 params", "2 control"}
    assert same(held(site, 0, 3), server.snapshot.public.vectors)


def test_keeping_messages_keeps_the_whole_model_too(tmp_path):
    with Run.create(tiny(rounds=2, **CHAIN, **WHOLE_COHORT), tmp_path / "run", workers=1) as run:
        run.go(keep_messages=True)
    names = {path.name for path in (tmp_path / "run" / "messages").iterdir()}
    assert {"round-1-whole.fwsq", "round-1-broadcast.fwsq", "round-2-broadcast.fwsq"} <= names
    assert "round-2-whole.fwsq" not in names
