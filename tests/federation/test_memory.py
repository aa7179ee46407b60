"""What clients remember, on disk: which generations stay, and what happens when one is gone."""

import pytest
import torch

from fedwsq.core.tree import fingerprint
from fedwsq.federation.memory import ClientMemory, ClientStore, MemoryLost
from fedwsq.federation.simulation import simulate
from fedwsq.wire import Kind, decode
from harness import Kept, tiny

CPU = torch.device("cpu")


def memory(value):
    algorithm = {
        "g": {"w": torch.tensor([value]), "a/b": torch.tensor([value + 1])},
        "h": {"w": torch.tensor([-value])},
    }
    residuals = {"delta": {"w": torch.tensor([10 * value])}}
    return ClientMemory(algorithm, residuals)


def generations(store, client):
    return sorted(int(path.stem) for path in (store.folder / str(client)).glob("*.safetensors"))


def test_memory_comes_back_as_it_was_in_order(tmp_path):
    store = ClientStore(tmp_path)
    store.stage(7, 3, 0, memory(1.0))
    found = store.load(7, 3)
    assert list(found.algorithm) == ["g", "h"]
    assert list(found.algorithm["g"]) == ["w", "a/b"]
    assert found.algorithm["g"]["a/b"].tolist() == [2.0]
    assert found.residuals["delta"]["w"].tolist() == [10.0]
    assert found.model == {}


def test_the_generation_it_starts_from_stays_until_no_checkpoint_can_ask_for_it(tmp_path):
    store = ClientStore(tmp_path, checkpoint_every=1)
    accepted = 0
    for number in range(1, 7):  # takes part in every round and is always accepted
        store.stage(0, number, accepted, memory(float(number)))
        accepted = number
    # While round 6 runs, checkpoints of rounds 5 and 4 may be there, and 3 until 5 is written.
    assert generations(store, 0) == [3, 4, 5, 6]


def test_a_long_pause_keeps_the_one_generation_that_counts(tmp_path):
    store = ClientStore(tmp_path, checkpoint_every=1)
    store.stage(0, 1, 0, memory(1.0))
    store.stage(0, 2, 1, memory(2.0))
    store.stage(0, 90, 2, memory(90.0))
    assert generations(store, 0) == [2, 90]


def test_rarer_checkpoints_keep_more(tmp_path):
    store = ClientStore(tmp_path, checkpoint_every=3)
    for number in range(1, 12):
        store.stage(0, number, number - 1, memory(float(number)))
    # In round 11 the oldest checkpoint that could be resumed from is 10 - 2 * 3 = 4.
    assert generations(store, 0) == list(range(4, 12))


def test_what_was_never_accepted_is_dropped(tmp_path):
    store = ClientStore(tmp_path)
    store.stage(0, 3, 0, memory(3.0))
    store.stage(0, 5, 3, memory(5.0))  # the reply got lost
    store.stage(0, 6, 3, memory(6.0))  # starts from 3 again
    assert generations(store, 0) == [3, 6]


def test_memory_that_is_missing_or_damaged_is_lost(tmp_path):
    store = ClientStore(tmp_path)
    with pytest.raises(MemoryLost, match="client 4's memory of round 2 cannot be read"):
        store.load(4, 2)
    store.stage(4, 2, 0, memory(1.0))
    path = tmp_path / "4" / "2.safetensors"
    whole = path.read_bytes()
    flipped = whole[:-1] + bytes([whole[-1] ^ 1])  # a number that is not the one written
    for damaged in (whole[:-3], flipped, b""):
        path.write_bytes(damaged)
        with pytest.raises(MemoryLost, match="client 4's memory of round 2"):
            store.load(4, 2)
    path.write_bytes(whole)
    assert store.load(4, 2).algorithm["h"]["w"].tolist() == [-1.0]


def test_clients_that_never_took_part_cost_nothing(tmp_path):
    store = ClientStore(tmp_path)
    store.stage(99_999, 1, 0, memory(1.0))
    assert [path.name for path in tmp_path.iterdir()] == ["99999"]


# In rounds: a client that lost its memory says so, fails once, and starts anew

FEEDBACK = {"uplink.error_feedback": True}
CHAIN = {"downlink": {"codec": "danuq", "bits": 4, "mode": "chain", "select": "all"}}
REMEMBERING = [{"algorithm": "scaffold"}, {"algorithm": "feddyn"}, FEEDBACK, CHAIN]
LOST = "it lost its memory of earlier rounds and starts anew"


def federate(folder, **settings):
    cohort = {"data.clients": 3, "clients_per_round": 3, "rounds": 9, "eval_every": 9}
    simulation = simulate(tiny(**cohort, **settings))
    return simulation.server(Kept(simulation.serial(CPU, folder)))


def accepted_by(server, client, number):
    """What the order of that round says was accepted from the client before."""
    order = server.transport.orders[number][client]
    return decode(order.head, server.charter.schema).accepted


@pytest.mark.parametrize("damage", ["removed", "cut"])
@pytest.mark.parametrize("settings", REMEMBERING, ids=["scaffold", "feddyn", "feedback", "chain"])
def test_a_client_whose_file_vanished_fails_one_round_and_is_in_the_next(
    settings, damage, tmp_path
):
    server = federate(tmp_path, **settings)
    server.step()
    server.step()
    path = tmp_path / "1" / "2.safetensors"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()

    third = server.step()
    assert (third.replied, third.failed, third.failures) == (2, 1, {"1": LOST})
    assert server.snapshot.accepted.tolist() == [3, 0, 3]
    said = decode(server.transport.replies[3][1], server.charter.schema)
    assert (said.kind, said.packets, said.weight) == (Kind.FORGOT, {}, 0.0)

    fourth = server.step()
    assert (fourth.replied, fourth.failures) == (3, {})
    assert accepted_by(server, 1, 4) == 0
    assert server.snapshot.accepted.tolist() == [4, 4, 4]
    assert server.step().failures == {}
    assert accepted_by(server, 1, 5) == 4


def test_a_client_that_lost_its_memory_changes_nothing_for_the_others(tmp_path):
    """The round in which it says so ends as if its reply had been lost."""
    lossy = federate(tmp_path / "lossy", algorithm="scaffold")
    calm = federate(tmp_path / "calm", algorithm="scaffold")
    for server in (lossy, calm):
        server.step()
    (tmp_path / "lossy" / "0" / "1.safetensors").unlink()
    inner = calm.transport.inner.dispatch
    calm.transport.inner.dispatch = lambda body, orders, deadline: inner(body, orders[1:])
    assert (lossy.step().replied, calm.step().replied) == (2, 2)
    assert fingerprint(lossy.params) == fingerprint(calm.params)
    assert lossy.snapshot.accepted.tolist() == [0, 2, 2]
    assert calm.snapshot.accepted.tolist() == [1, 2, 2]


def test_who_starts_anew_starts_from_nothing(tmp_path):
    """After the loss it remembers what a newcomer would: g = -alpha delta, and nothing before."""
    server = federate(tmp_path, algorithm="feddyn")
    server.step()
    (tmp_path / "2" / "1.safetensors").unlink()
    server.step()
    shared = server.snapshot.shared
    server.step()
    reply = decode(server.transport.replies[3][2], server.charter.schema)
    delta = server.charter.uplink.receive(reply.packets, shared, reply.key)["delta"]
    g = ClientStore(tmp_path).load(2, 3).algorithm["g"]
    for name, x in delta.items():
        torch.testing.assert_close(g[name], -server.plan.algorithm.alpha * x, rtol=1e-6, atol=0)


def test_what_was_lost_stays_in_the_servers_sum(tmp_path):
    """The server has the mean of all control variates and nobody's own, so it cannot take it out:
    c is the mean of those that are remembered and of the one that was lost.
    """
    server = federate(tmp_path, algorithm="scaffold")
    server.step()
    store = ClientStore(tmp_path)
    lost = store.load(2, 1).algorithm["control"]
    (tmp_path / "2" / "1.safetensors").unlink()
    server.step()
    server.step()
    held = [store.load(client, 3).algorithm["control"] for client in range(3)]
    for name, c in server.snapshot.server["control"].items():
        total = sum(control[name] for control in held) + lost[name]
        torch.testing.assert_close(c, total / 3, rtol=1e-4, atol=1e-6)


def test_a_plan_whose_clients_keep_nothing_loses_nothing(tmp_path):
    server = federate(tmp_path)
    assert [server.step().failures for _ in range(3)] == [{}, {}, {}]
    assert list(tmp_path.iterdir()) == []
