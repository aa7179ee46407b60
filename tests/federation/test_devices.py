"""A site computes on its device: what it is given goes there, what it sends does not stay there."""

from contextlib import closing
from dataclasses import dataclass

import pytest
import torch

from fedwsq.algorithms import Scaffold
from fedwsq.core.tree import fingerprint, scale
from fedwsq.federation.server import Federation, first_snapshot
from fedwsq.federation.site import Site
from fedwsq.federation.workload import build_workload
from fedwsq.plan.build import dump_plan
from fedwsq.runs.run import default_workers
from fedwsq.training import Trained
from fedwsq.transports.pool import Pool, Serial, gpu_for
from harness import tiny

SEEN: list[set[str]] = []


@dataclass(frozen=True)
class Looking(Scaffold):
    """Notes where what it is given lies, and answers as if it had trained."""

    def client_update(self, received, client, task):
        """A thousandth of the model, from the CPU."""
        tensors = [
            x
            for vectors in (received, client)
            for params in vectors.values()
            for x in params.values()
        ]
        SEEN.append({x.device.type for x in [*tensors, task.class_counts]})
        still = {name: torch.full(tuple(x.shape), 1e-3) for name, x in received["params"].items()}
        return task.update(Trained({}, 0, 0.0, 0.0), delta=still, control=scale(0.5, still)), {
            "control": still
        }


def test_what_a_client_receives_and_remembers_is_on_its_device():
    SEEN.clear()
    plan = tiny(clients_per_round=10, algorithm="test_devices:Looking", eval_every=1000)
    workload = build_workload(plan)
    federation = Federation(workload, Serial(Site(workload, torch.device("meta"))))
    for _ in range(2):  # the second round starts from memory
        record = federation.step()
        assert (record.replied, record.failures) == (10, {})
    assert (len(SEEN), set.union(*SEEN)) == (20, {"meta"})
    assert {x.device.type for x in federation.params.values()} == {"cpu"}


def test_workers_without_a_run_directory_share_what_clients_remember():
    plan = tiny(algorithm="scaffold", clients_per_round=10)
    workload = build_workload(plan)
    start, found = first_snapshot(workload), []
    for backend in (
        Serial(Site(workload, torch.device("cpu"))),
        Pool(dump_plan(plan), 2, torch.device("cpu")),
    ):
        with closing(backend):
            federation = Federation(workload, backend, start)
            assert [federation.step().failures for _ in range(3)] == [{}, {}, {}]
            found.append(fingerprint(federation.params))
    assert found[0] == found[1]


def test_every_worker_has_a_gpu_of_its_own(monkeypatch):
    plan = tiny(clients_per_round=3)
    several, second = torch.device("cuda"), torch.device("cuda:1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [gpu_for(slot, several) for slot in range(3)] == [
        {"CUDA_VISIBLE_DEVICES": n} for n in ("0", "1", "0")
    ]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-f0")
    assert gpu_for(1, several) == {"CUDA_VISIBLE_DEVICES": "GPU-f0"}
    assert gpu_for(1, second) == gpu_for(1, torch.device("cpu")) == {}
    assert [default_workers(0, plan, device) for device in (several, second)] == [2, 1]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    assert default_workers(0, plan, several) == 3
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert gpu_for(0, several) == {}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "settings", [{}, {"algorithm": "scaffold"}, {"uplink.error_feedback": True}]
)
def test_a_run_on_a_gpu_learns(settings):
    workload = build_workload(tiny(**settings))
    federation = Federation(workload, Serial(Site(workload, torch.device("cuda"))))
    assert all(federation.step().replied == 5 for _ in range(3))
