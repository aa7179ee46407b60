"""A trial before the run: what cannot work is said before there is a directory, with a way out."""

import numpy as np
import pytest
import torch
from torch import nn

from fedwsq.core.errors import ConfigError
from fedwsq.core.tree import fingerprint
from fedwsq.federation.simulation import simulate
from fedwsq.plan import Plan
from fedwsq.runs import Run, forecast
from fedwsq.runs.trial import try_out
from harness import tiny

CPU = torch.device("cpu")


class Flat(nn.Module):
    """Takes eight features, gives three classes."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.last = nn.Linear(8, classes)

    def forward(self, x):
        return self.last(x)


class Pair(Flat):
    """Gives two things."""

    def forward(self, x):
        return super().forward(x), x


class Few(Flat):
    """Does not know of the third class."""

    def __init__(self) -> None:
        super().__init__(2)


class Summed(Flat):
    """Forgets the examples."""

    def forward(self, x):
        return super().forward(x).sum(0, keepdim=True)


class Lost(Flat):
    """Scored as if it had diverged."""

    def __init__(self) -> None:
        super().__init__(1)

    def forward(self, x):
        outputs = super().forward(x)
        return outputs if self.training else outputs * torch.inf


def arrays(path, **changes):
    """Twenty examples of eight features and three classes."""
    made = {
        "x_train": np.ones((20, 8), np.float32),
        "y_train": np.arange(20) % 3,
        "x_test": np.ones((6, 8), np.float32),
        "y_test": np.arange(6) % 3,
    }
    np.savez(path, **made | changes)
    return path


def plan(path, model="test_trial:Flat", **more) -> Plan:
    return tiny(
        **{
            "data": {"name": "npz", "path": str(path), "clients": 2, "partition": "iid"},
            "clients_per_round": 2,
            "model.name": model,
            "model.standardize": "none",
            "uplink": {"codec": "danuq", "bits": 4, "select": "weights"},
            **more,
        }
    )


IMAGES = {
    "x_train": np.ones((20, 8, 8, 3), np.float32),
    "x_test": np.ones((6, 8, 8, 3), np.float32),
}
SEVERAL_LABELS = {
    "y_train": np.ones((20, 3), np.float32),
    "y_test": np.ones((6, 3), np.float32),
}


@pytest.mark.parametrize(
    ("changes", "settings", "says"),
    [
        ({"x_train": np.ones((20, 5), np.float32), "x_test": np.ones((6, 5), np.float32)}, {},
         r"the model cannot take a batch of shape \[8, 5\]: .*; choose a model made for such"),
        (IMAGES, {"model": "cnn"}, r"images with their channels last; store them as \[n, channels"),
        ({}, {"model": "test_trial:Pair"}, "the model gave tuple, not a tensor"),
        ({}, {"model": "test_trial:Summed"}, r"outputs of shape \[1, 3\] for a batch of 8"),
        ({}, {"model": "test_trial:Few"}, "the model gives 2 outputs, but the data has 3 classes"),
        (SEVERAL_LABELS, {"training.criterion": "squared_error"},
         "metric = accuracy cannot take targets .* bring a metric of your own"),
        ({}, {"model.standardize": "ws"}, r"no layer to standardize.*model\.standardize=none"),
        ({}, {"uplink": {"codec": "danuq", "bits": 4}}, "chooses no tensor .*uplink.select=weigh"),
    ],
    ids=["shape", "channels last", "tuple", "examples lost", "few outputs", "labels",
         "standardize", "select"],
)  # fmt: skip
def test_what_cannot_work_is_said_before_there_is_a_directory(tmp_path, changes, settings, says):
    path = arrays(tmp_path / "own.npz", **changes)
    with pytest.raises(ConfigError, match=f"(?s){says}"):
        Run.create(plan(path, **settings), tmp_path / "run", workers=1).__enter__()
    assert not (tmp_path / "run").exists()


def accuracy_mean(outputs, targets):
    return (outputs.argmax(1) == targets).float().mean()


def two_columns(outputs, targets):
    return torch.ones(len(targets), 2)


def every_pair(outputs, targets):
    return (outputs.argmax(1, keepdim=True) == targets).float()


def a_float(outputs, targets):
    return 0.5


def nowhere(outputs, targets):
    return torch.full((len(targets),), torch.nan)


def only_once(outputs, targets):
    values = torch.ones(len(targets))
    values[0] = -torch.inf
    return values


def a_column(outputs, targets):
    return (outputs.argmax(1) == targets)[:, None]


SHAPE = r"it must give one value an example, a tensor of shape \[6\]: return \(outputs\.argmax\(1\)"


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        ("accuracy_mean", rf"gave a tensor of shape \[\] for 6 examples; {SHAPE}"),
        ("two_columns", rf"gave a tensor of shape \[6, 2\] for 6 examples; {SHAPE}"),
        ("every_pair", rf"gave a tensor of shape \[6, 6\] for 6 examples; {SHAPE}"),
        ("a_float", rf"gave float for 6 examples; {SHAPE}"),
        ("nowhere", "gave nan or infinity for 6 of 6 examples .*; give every example a number"),
        ("only_once", "gave nan or infinity for 1 of 6 examples .*; give every example a number"),
    ],
)
def test_a_metric_has_one_value_an_example(tmp_path, metric, says):
    settled = plan(arrays(tmp_path / "own.npz"), metric=f"test_trial:{metric}")
    with pytest.raises(ConfigError, match=f"metric = test_trial:{metric} {says}"):
        Run.create(settled, tmp_path / "run", workers=1).__enter__()
    assert not (tmp_path / "run").exists()


def test_a_metric_may_give_a_column(tmp_path):
    path = arrays(tmp_path / "own.npz")
    found = []
    for metric in ("accuracy", "test_trial:a_column"):
        folder = tmp_path / metric.rpartition(":")[2]
        with Run.create(plan(path, metric=metric, rounds=1), folder, workers=1) as run:
            run.go()
        found.append(run.records[0].accuracy)
    assert found[0] == found[1]


def test_a_model_without_finite_outputs_is_not_the_metrics_fault(tmp_path):
    numbers = {"y_train": np.ones(20, np.float32), "y_test": np.ones(6, np.float32)}
    settled = plan(
        arrays(tmp_path / "own.npz", **numbers),
        model="test_trial:Lost",
        metric="minus_squared_error",
        **{"training.criterion": "squared_error"},
    )
    with Run.create(settled, tmp_path / "run", workers=1):
        pass


def test_a_trial_leaves_no_trace(tmp_path):
    simulation = simulate(plan(arrays(tmp_path / "own.npz")))
    before = fingerprint(dict(simulation.model.network.named_parameters()))
    state = torch.get_rng_state()
    try_out(simulation, CPU)
    assert fingerprint(dict(simulation.model.network.named_parameters())) == before
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in simulation.model.network.parameters())


@pytest.mark.parametrize("codec", [{"codec": "danuq", "bits": 1}, {"codec": "eden", "bits": 2}])
def test_a_forecast_of_bytes_is_what_a_round_sends(codec):
    plan, found = forecast(tiny(rounds=1, uplink=codec), workers=1, device="cpu")
    simulation = simulate(plan)
    row = simulation.server(simulation.serial(CPU)).step()
    assert (found.uplink_bytes, found.downlink_bytes) == (row.uplink_bytes, row.downlink_bytes)
    assert found.exact
    assert len(found.held.split) == 10
    assert sum(simulation.charter.schema.sizes.values()) == found.parameters
    assert found.round_seconds > 0
    assert found.memory_bytes > 10**8


def test_a_forecast_of_an_entropy_code_is_a_bound():
    plan, found = forecast(tiny(rounds=1, uplink={"codec": "ecq", "bits": 1}), 1, "cpu")
    simulation = simulate(plan)
    row = simulation.server(simulation.serial(CPU)).step()
    assert row.uplink_bytes <= found.uplink_bytes
    assert not found.exact
