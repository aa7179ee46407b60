"""Laws of every bit policy in the table: what it grants, to whom, and what a reply then costs."""

import pickle
import tomllib

import pytest
import torch
from test_algorithm_laws import WORLD

from fedwsq.codecs import BITS, Danuq, Float32
from fedwsq.core.tree import fingerprint
from fedwsq.core.types import Channel, Key
from fedwsq.federation.simulation import simulate
from fedwsq.plan import dump_plan, make_plan
from fedwsq.wire import Line, Link, Schema, decode
from harness import Kept

CPU = torch.device("cpu")
SCHEMA = Schema({"stem": (4, 1, 3, 3), "a": (8, 4, 3, 3), "b": (32, 8, 3, 3), "bias": (32,)})
CHANNEL = Channel(15.0, 1e6, 0.1, 0.01)  # 900 bytes up in a minute
# What a policy cannot do without.
NEEDS = {
    "fixed": {"bits": 2},
    "growing": {"every": 1},
    "bandwidth": {"deadline_seconds": 60.0},
    "budget": {"bytes": 1250},
}
KEYS = [Key(seed, round, client) for seed in (0, 1) for round in (1, 2) for client in range(4)]
every_policy = pytest.mark.parametrize("name", BITS)


def policy_of(name):
    return BITS[name](**NEEDS.get(name, {}))


def grant(link, key):
    line = Line(link, SCHEMA)
    return line.grant(key, CHANNEL, line.init(("delta",)))


def grants(link):
    return {key: grant(link, key) for key in KEYS}


@every_policy
def test_the_same_work_is_granted_the_same_in_any_order_and_process(name):
    link = Link(Danuq(), policy_of(name))
    granted = grants(link)
    assert {key: grant(link, key) for key in reversed(KEYS)} == granted
    assert grants(pickle.loads(pickle.dumps(link))) == granted


@every_policy
def test_nothing_is_granted_that_was_not_announced(name):
    policy = policy_of(name)
    codec = Danuq()
    coded = Line(Link(codec, policy), SCHEMA).coded
    for rates in filter(None, grants(Link(codec, policy)).values()):
        assert len(rates) in (1, len(SCHEMA.names))
        of_coded = rates if len(rates) == 1 else [rates[SCHEMA.index[name]] for name in coded]
        assert all(rate in policy.grants and rate in codec.rates for rate in of_coded)


@every_policy
def test_a_codec_of_one_rate_leaves_nothing_to_decide(name):
    link = Link(Float32(), policy_of(name))
    assert set(link.bits.grants) == {32.0}


@every_policy
def test_it_survives_a_config(name):
    bits = {"name": name, **NEEDS.get(name, {})}
    plan = make_plan({}, {"uplink": {"codec": "danuq", "bits": bits}})
    assert plan.uplink.bits == policy_of(name)
    assert make_plan(tomllib.loads(dump_plan(plan))) == plan


@every_policy
def test_a_round_costs_what_was_granted(name, tmp_path):
    bits = {"name": name, **NEEDS.get(name, {})}
    more = {"uplink": {"codec": "danuq", "bits": bits}, "channels": "lognormal"}
    simulation = simulate(make_plan({}, {**WORLD, **more}))
    found = []
    for folder in ("once", "again"):
        transport = Kept(simulation.serial(CPU, tmp_path / folder))
        server = simulation.server(transport)
        record = server.step()
        assert record.failures == {}
        assert record.replied > 0
        uplink = simulation.charter.uplink
        for client, order in transport.orders[1].items():
            rates = decode(order.head, simulation.charter.schema).rates
            expected = uplink.granted_bytes(rates, ("delta",))
            assert len(transport.replies[1][client]) == expected
        found.append((fingerprint(server.params), record.bits, record.uplink_bytes))
    assert found[0] == found[1]
