"""A site computes on its device: what it is given goes there, what it sends does not stay there."""

import json
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from fedwsq.algorithms import Scaffold
from fedwsq.core.tree import fingerprint, scale
from fedwsq.federation.server import first_snapshot
from fedwsq.federation.simulation import SitePool, simulate
from fedwsq.training import Trained
from harness import tiny

CPU = torch.device("cpu")
SEEN: list[set[str]] = []


def look(vectors, *others):
    """Note where these tensors lie."""
    tensors = [x for params in vectors.values() for x in params.values()]
    SEEN.append({x.device.type for x in [*tensors, *others]})


@dataclass(frozen=True)
class Looking(Scaffold):
    """Notes where what it is given lies, and answers as if it had trained."""

    def client_update(self, received, client, task):
        """A thousandth of the model, from the CPU."""
        look(received, task.class_counts)
        look(client)
        still = {name: torch.full(tuple(x.shape), 1e-3) for name, x in received["params"].items()}
        update = task.update(Trained({}, 0, 0.0, 0.0), delta=still, control=scale(0.5, still))
        return update, client

    def settle(self, client, sent):
        """What can be written to a file: numbers, and those are on the CPU alone."""
        look(client)
        look(sent)
        return {
            "control": {name: torch.ones(tuple(x.shape)) for name, x in sent["control"].items()}
        }


def test_what_a_client_receives_and_remembers_is_on_its_device():
    SEEN.clear()
    plan = tiny(clients_per_round=10, algorithm="test_devices:Looking", eval_every=1000)
    simulation = simulate(plan)
    server = simulation.server(simulation.serial(torch.device("meta")))
    for _ in range(2):  # the second round starts from memory
        record = server.step()
        assert (record.replied, record.failures) == (10, {})
    assert (len(SEEN), set.union(*SEEN)) == (4 * 20, {"meta"})
    assert {x.device.type for x in server.params.values()} == {"cpu"}


@pytest.mark.slow
def test_workers_without_a_run_directory_share_what_clients_remember():
    plan = tiny(algorithm="scaffold", clients_per_round=10)
    simulation = simulate(plan)
    start = first_snapshot(simulation.charter)
    found = []
    for transport in (simulation.serial(CPU), SitePool(plan, 2, CPU)):
        with closing(transport):
            server = simulation.server(transport, start)
            assert [server.step().failures for _ in range(3)] == [{}, {}, {}]
            found.append(fingerprint(server.params))
    assert found[0] == found[1]


def test_a_pool_without_a_run_directory_takes_its_folder_away_with_it():
    pool = SitePool(tiny(), 1, CPU)
    folder = Path(json.loads(pool._setup.settings)["store"])
    assert folder.is_dir()
    pool.close()
    assert not folder.exists()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "settings", [{}, {"algorithm": "scaffold"}, {"uplink.error_feedback": True}]
)
def test_a_run_on_a_gpu_learns(settings):
    simulation = simulate(tiny(**settings))
    server = simulation.server(simulation.serial(torch.device("cuda")))
    assert all(server.step().replied == 5 for _ in range(3))
