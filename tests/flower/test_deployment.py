"""Real SuperLinks and SuperNodes on loopback: a run on Flower is a run, to the same weights."""

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedwsq[flower]'")

import json

import numpy as np
import torch
from deployment import deployed

from fedwsq.data.digits import digits
from fedwsq.federation.simulation import simulate
from fedwsq.runs import Run
from harness import rows, tiny

pytestmark = pytest.mark.flower
CPU = torch.device("cpu")
SETTINGS = {"data.clients": 3, "clients_per_round": 3, "data.partition": "iid"}
WORDS = " ".join(
    f"{key}={value}"
    for key, value in {
        "training.epochs": 1,
        "training.batches_per_epoch": 2,
        "data.clients": 3,
        "clients_per_round": 3,
    }.items()
)
OWN = {
    "method": "fedwsq",
    "bits": 1,
    "rounds": 3,
    "overrides": f"{WORDS} data.partition=own",
    "test_data": "plan",
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same federation in this process, its data split over three clients."""
    plan = tiny(method="fedwsq", **{"uplink.bits": 1}, **SETTINGS)
    with Run.create(plan, tmp_path_factory.mktemp("alone") / "run", workers=1) as run:
        run.go()
        return run


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """What each client holds, and nothing else, as an .npz file of its own."""
    folder = tmp_path_factory.mktemp("shards")
    clients = simulate(tiny(**SETTINGS)).clients
    test = digits().test
    x_test, y_test = test.take(torch.arange(20))
    for client in range(3):
        shard = clients.shard(client)
        path = folder / f"{client}.npz"
        arrays = {"x_train": shard.x, "y_train": shard.y, "x_test": x_test, "y_test": y_test}
        np.savez(path, **{name: x.numpy() for name, x in arrays.items()})
    return folder


def weights(folder):
    return json.loads((folder / "summary.json").read_text())["weights"]


def test_nodes_with_their_own_data_give_the_weights_of_one_process(alone, shards, tmp_path):
    """With TLS and authentication; a stranger, a doubter and a node of another mind stay out."""
    with deployed(tmp_path, tls=True) as here:
        here.superlink()
        for client in range(3):
            here.supernode(f"node-{client}", client=client, data=str(shards / f"{client}.npz"))
        run = here.run(**OWN, out=str(tmp_path / "run"))
        log = here.server_log(run)
    print(log)
    found = rows(tmp_path / "run")
    assert [row["failures"] for row in found] == [{}] * 3
    assert weights(tmp_path / "run") == alone.summary().weights
