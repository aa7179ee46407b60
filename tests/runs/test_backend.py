"""Where a run's clients live: how many workers there are, and a backend of one's own."""

import json
from contextlib import closing

import pytest
import torch

from fedwsq.core.errors import ConfigError, RunError
from fedwsq.federation.evaluator import OwnEvaluator, Scorer, SharedEvaluator
from fedwsq.federation.owners import Census
from fedwsq.federation.simulation import SitePool, simulate
from fedwsq.runs import Machine, Opened, Run
from fedwsq.runs.backend import Simulated, default_workers, resolve_device
from fedwsq.transports import Serial
from harness import rows, timeless, tiny

CPU = torch.device("cpu")


def test_workers_by_default_are_no_more_than_clients_in_a_round():
    alone = tiny(clients_per_round=1)
    assert default_workers(0, alone, CPU) == 1
    assert default_workers(7, alone, CPU) == 1  # more would have nothing to do
    assert default_workers(3, tiny(), CPU) == 3
    assert default_workers(0, tiny(), torch.device("cuda")) == 1
    with pytest.raises(ConfigError, match="workers is -1"):
        default_workers(-1, tiny(), CPU)


def test_workers_by_default_are_as_many_as_gpus(monkeypatch):
    plan = tiny(clients_per_round=3)
    several = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert default_workers(0, plan, several) == 2
    assert default_workers(0, plan, torch.device("cuda:1")) == 1
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    assert default_workers(0, plan, several) == 3


def test_a_device_by_its_name(monkeypatch):
    assert resolve_device("cpu") == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("auto") == torch.device("cuda")
    for name in ("tpu0", "cuda:99"):
        with pytest.raises(ConfigError, match=f"device '{name}' cannot be used here: .+"):
            resolve_device(name)


def test_a_device_that_is_not_there_is_said_in_one_sentence(monkeypatch):
    def refuse(size, device):
        raise NotImplementedError(f"No 'MPS' backend. This could be because {'x' * 9999}")

    monkeypatch.setattr(torch, "empty", refuse)
    with pytest.raises(ConfigError) as error:
        resolve_device("mps")
    expected = "device 'mps' cannot be used here: No 'MPS' backend; auto takes what there is"
    assert str(error.value) == expected


def test_one_worker_is_this_process_and_more_are_a_pool(tmp_path):
    for workers, kind in ((1, Serial), (2, SitePool)):
        opened = Simulated(tiny(), Machine(CPU, workers)).open(tmp_path)
        with closing(opened.transport):
            assert type(opened.transport) is kind
            assert isinstance(opened.evaluator, SharedEvaluator)


class Elsewhere:
    """Clients that the server knows nothing of; whether it has test data is the test's choice."""

    evaluated = True

    def __init__(self, plan, machine):
        self.simulation = simulate(plan)
        self.machine = machine
        self.charter = self.simulation.charter
        self.census = Census()
        self.data_digest = ""
        self.evaluated_on = "test"

    def try_out(self):
        """Nothing that could be told from here."""

    def open(self, store):
        evaluator = None
        if self.evaluated:
            evaluator = OwnEvaluator(Scorer(self.charter, CPU), self.simulation.test)
        return Opened(self.simulation.serial(self.machine.device, store), evaluator)


class Blind(Elsewhere):
    """The server has no test data either."""

    evaluated = False


def test_a_run_with_clients_elsewhere_ends_with_the_same_weights(finished, tmp_path):
    """Two rounds, then a third after resume: rows and weights are those of a simulation."""
    folder = tmp_path / "run"
    with Run.create(tiny(rounds=2), folder, backend=Elsewhere) as run:
        assert isinstance(run.backend, Elsewhere)
        run.go()
    assert json.loads((folder / "manifest.json").read_text())["data"] == ""
    with Run.resume(folder, {"rounds": 3}, backend=Elsewhere) as run:
        assert run.warnings == []
        assert run.go().weights == finished.summary.weights
    found = [timeless(row) | {"config": ""} for row in rows(folder)]
    assert found == [timeless(row) | {"config": ""} for row in rows(finished.folder)]


def test_a_run_is_not_resumed_where_its_clients_never_were(finished, tmp_path):
    with Run.create(tiny(rounds=1), tmp_path / "run", backend=Elsewhere) as run:
        run.go()
    with (
        pytest.raises(RunError, match="the data is not what the run began with"),
        Run.resume(tmp_path / "run", {"rounds": 2}),
    ):
        pass


def test_a_server_without_data_of_its_own_has_no_accuracy(finished, tmp_path):
    with Run.create(tiny(), tmp_path / "run", backend=Blind) as run:
        summary = run.go()
    assert summary.weights == finished.summary.weights
    assert summary.accuracy is summary.best_accuracy is summary.best_round is None
    for row in rows(tmp_path / "run"):
        assert row["test_accuracy"] is row["test_loss"] is row["client_accuracy"] is None
    assert not (tmp_path / "run" / "best.safetensors").exists()
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_clients_score_for_a_server_without_data(tmp_path):
    """Their own test examples, or nothing: what the server reports is what they say."""
    own = {"data.client_test": 0.2, "eval_clients": True}
    with Run.create(tiny(rounds=1, **own), tmp_path / "blind", backend=Blind) as run:
        run.go()
    with Run.create(tiny(rounds=1, **own), tmp_path / "seeing", workers=1) as run:
        run.go()
    (blind,) = rows(tmp_path / "blind")
    (seeing,) = rows(tmp_path / "seeing")
    assert blind["test_accuracy"] is None
    assert 0 < blind["client_accuracy"] == seeing["client_accuracy"]
    assert blind["evaluation_bytes"] == seeing["evaluation_bytes"] > 0
