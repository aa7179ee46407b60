"""Real SuperLinks and SuperNodes on loopback: a run on Flower is a run, to the same weights."""

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedwsq[flower]'")

import json

import numpy as np
import torch
from deployment import deployed, patiently

from fedwsq.core.tree import fingerprint
from fedwsq.data.digits import digits
from fedwsq.federation.simulation import simulate
from fedwsq.flower.certificates import write_certificates
from fedwsq.plan import dump_plan
from fedwsq.runs import Run
from fedwsq.transports import Failure
from harness import PATIENCE_SECONDS, gone, rows, tiny, who_is_stuck

pytestmark = pytest.mark.flower
CPU = torch.device("cpu")
COHORT = {"data.clients": 3, "clients_per_round": 3}
SPLIT = COHORT | {"data.partition": "iid"}
OWN = COHORT | {"data.partition": "own"}
ONE_BIT = {"method": "fedwsq", "uplink.bits": 1}
TINY = {"training.epochs": 1, "training.batches_per_epoch": 2}
LET_IN = "SuperNode ID"  # which only the SuperLink could tell a node


def words(settings):
    return " ".join(f"{key}={value}" for key, value in settings.items())


def weights(folder):
    return json.loads((folder / "summary.json").read_text())["weights"]


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """What each client holds, and nothing else, as an .npz file of its own."""
    folder = tmp_path_factory.mktemp("shards")
    clients = simulate(tiny(**SPLIT)).clients
    x_test, y_test = digits().test.take(torch.arange(20))
    for client in range(3):
        shard = clients.shard(client)
        arrays = {"x_train": shard.x, "y_train": shard.y, "x_test": x_test, "y_test": y_test}
        np.savez(folder / f"{client}.npz", **{name: x.numpy() for name, x in arrays.items()})
    return folder


def test_nodes_with_their_own_data_give_the_weights_of_one_process(shards, tmp_path):
    """With TLS and authentication; a stranger, a doubter and one of another mind stay out."""
    with Run.create(tiny(**SPLIT, **ONE_BIT), tmp_path / "alone", workers=1) as alone:
        alone.go()
    other = tmp_path / "other.toml"
    other.write_text(dump_plan(tiny(**OWN, **ONE_BIT, **{"training.lr": 0.05})))
    with deployed(tmp_path, tls=True) as here:
        here.superlink()
        data = str(shards / "0.npz")
        here.deploy_node("node-0", 0, data)
        for client in (1, 2):
            here.supernode(f"node-{client}", client=client, data=str(shards / f"{client}.npz"))
        here.supernode("of-another-mind", client=0, data=data, plan=str(other))
        here.supernode("stranger", register=False, client=0, data=data)
        here.supernode("doubter", trusting=False, client=0, data=data)
        write_certificates(tmp_path / "theirs", [], 1)
        misled = here.deploy_node("misled", 0, data, ca="theirs/ca.crt")
        # The SuperLink has told them who they are: now nobody who is to take part, or to be
        # refused, comes too late for it, however long each takes to start.
        for name in ("node-0", "node-1", "node-2", "of-another-mind"):
            here.until_it_says(name, LET_IN)
        here.until_it_says("stranger", "Failed to activate SuperNode")
        here.until_it_says("doubter", "CERTIFICATE_VERIFY_FAILED")
        assert misled.wait(PATIENCE_SECONDS) == 2
        number = here.run(
            method="fedwsq",
            bits=1,
            rounds=3,
            overrides=words(TINY | OWN),
            test_data="plan",
            out=str(tmp_path / "run"),
        )
        patiently(lambda: "refused" in here.server_log(number))
        log = here.server_log(number)
        traffic = here.of_run(number)["network-traffic"]
    found = rows(tmp_path / "run")
    assert [row["failures"] for row in found] == [{}] * 3
    assert weights(tmp_path / "run") == alone.summary().weights
    assert [row["test_accuracy"] for row in found] == [r.test_accuracy for r in alone.records]
    assert "training.lr is 0.1 at the other end and 0.05 at this one" in log
    assert "Attempted to register SuperNode with public key" in here.log("superlink")
    for outsider in ("stranger", "doubter", "misled"):
        assert LET_IN not in here.log(outsider)
    assert "is not to be trusted: its certificate fails against" in here.log("misled")
    for counted, ours in (("inbound", "uplink_bytes"), ("outbound", "downlink_bytes")):
        sent = sum(row[ours] for row in found)
        assert sent < traffic[f"{counted}-bytes"] < 2 * sent + 100_000


def kill(process):
    process.kill()
    process.wait()  # or Flower's own processes take it for alive


class Replayed:
    """The clients of one process, of whom those whose replies a run did not have fail again.

    Only `away` is ever missing from a round that asked one client less.
    """

    def __init__(self, inner, found, away):
        self.inner = inner
        self.failures = {row["round"]: dict(row["failures"]) for row in found}
        for row in found:
            if row["sampled"] == 2:
                self.failures[row["round"]][str(away)] = "it was not there"

    def dispatch(self, body, orders, deadline=None):
        for answer in self.inner.dispatch(body, orders, deadline):
            why = self.failures[answer.key.round].get(str(answer.key.client))
            if why is None:
                yield answer
            else:
                yield Failure(answer.key, why)


def test_whoever_is_killed_comes_back_and_the_weights_are_those_of_the_replies(tmp_path):
    """A node in the middle of a round, then the ServerApp, then the SuperLink.

    Nothing here depends on how quick anybody is: rounds go on until what is waited for was seen,
    and only the last command says how many there are.
    """
    memory = {"uplink.error_feedback": "true"}
    stuck = {"algorithm.name": "user_code:Stuck", "algorithm.round": 2, "algorithm.client": 2}
    overrides = words(TINY | SPLIT | memory | stuck)
    run = {"overrides": overrides, "rounds": 1000, "out": str(tmp_path / "run")}
    link = tmp_path / "stuck"
    finished = lambda: rows(tmp_path / "run")

    def node(client):
        share = {"partition_id": client, "num_partitions": 3}
        return here.supernode(f"node-{client}", **share, memory=str(tmp_path / f"disk-{client}"))

    def until_rounds_go_on():
        before = len(finished())
        patiently(lambda: len(finished()) > before)

    with deployed(tmp_path, TEST_STUCK=str(link)) as here:
        superlink = here.superlink()
        nodes = [node(client) for client in range(3)]
        here.begin(**run)

        # A node, while its client is at work: the round goes on without it, and it comes back.
        patiently(link.is_symlink)
        warm = who_is_stuck(link)
        kill(nodes[2])
        patiently(lambda: gone(warm))
        node(2)
        # With its memory: else it would have failed for having lost it.
        patiently(lambda: [row for row in finished()[2:] if row["replied"] == 3])

        # The ServerApp: the same command goes on with its run.
        here.serverapp().kill()
        here.begin(**run)
        until_rounds_go_on()

        # The SuperLink, and its ServerApp with it.
        serverapp = here.serverapp()
        kill(superlink)
        patiently(lambda: gone(serverapp))
        here.superlink()
        last = len(finished()) + 1
        here.run(**run | {"rounds": last})

    found = finished()
    assert [row["round"] for row in found] == list(range(1, last + 1))
    # Asked again it may be back in time, or not.
    assert list(found[1]["failures"] or found[1]["asked_again"]) == ["2"]
    assert found[-1]["replied"] >= 2
    assert not any("lost its memory" in row["failures"].get("2", "") for row in found)
    simulation = simulate(tiny(**SPLIT, **{"uplink.error_feedback": True, "rounds": last}))
    alone = Replayed(simulation.serial(CPU, tmp_path / "alone"), found, away=2)
    server = simulation.server(alone)
    for row in found:
        server.step()
        assert fingerprint(server.params) == row["weights"]
    assert weights(tmp_path / "run") == fingerprint(server.params)
