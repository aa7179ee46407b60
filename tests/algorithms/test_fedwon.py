import pytest
import torch
from torch import nn

from fedwsq.algorithms.fedavg import FedAvg
from fedwsq.algorithms.fedwon import FedWon
from fedwsq.algorithms.server_opt import Momentum
from fedwsq.core.errors import ConfigError
from fedwsq.core.types import Cohort, Key, Params, Update
from fedwsq.models import (
    ScaledStandardization,
    cnn,
    scaled_standardized,
    standardize,
    standardize_scaled,
)
from fedwsq.training import LocalTask, Shard, Trained, Training, learning_rates
from fedwsq.training.local import snapshot

# the two clients' raw weights after one step
START = [0.3, -0.1, 0.5, 0.1]
LOCAL = [
    [0.028904665126467777, 0.32600266941892986, 0.8485640009844035, -0.4034713355298013],
    [0.377457416982242, -0.33237225094672596, 0.3450889157450592, 0.4098259182194247],
]


class Learned(LocalTask):
    """A client whose training ends where the worked example says, with a gain that it learned."""

    def train(self, start: Params, **hooks: object) -> Trained:
        weight = torch.tensor(LOCAL[self.key.client], dtype=torch.float64).view(1, 4, 1, 1)
        return Trained({"weight": weight, "gain": start["gain"] + 1 + self.key.client}, 1, 0.1, 0.5)


def one_round(algorithm: FedAvg) -> Params:
    """The server's parameters after both clients."""
    model = standardize_scaled(nn.Conv2d(4, 1, 1, bias=False))
    start = {
        "weight": torch.tensor(START, dtype=torch.float64).view(1, 4, 1, 1),
        "gain": torch.ones(1),
    }
    algorithm.check(model, Training())
    server = algorithm.init_server(start)
    shard = Shard(torch.zeros(1, 4, 1, 1), torch.zeros(1, dtype=torch.int64))
    training = Training()
    deltas = []
    for client in (0, 1):
        task = Learned(model, shard, Key(0, 1, client), training, [0.1])
        update, memory = algorithm.client_update(algorithm.broadcast(server), {}, task)
        assert memory == {}
        assert (update.weight, update.metrics["loss"]) == (1.0, 0.5)
        deltas.append(update.vectors["delta"])
    mean = Update({"delta": {name: (deltas[0][name] + deltas[1][name]) / 2 for name in start}}, 2.0)
    return algorithm.server_update(server, mean, Cohort(1, 2, 2, 4))["params"]


def test_raw_weights_are_exchanged_by_default():
    server = one_round(FedWon())
    expected = [
        0.2031810410543549,
        -0.003184790763898049,
        0.5968264583647314,
        0.0031772913448117057,
    ]
    assert server["weight"].flatten().tolist() == pytest.approx(expected, abs=1e-12)
    seen = scaled_standardized(server["weight"], gamma=1.0).flatten().tolist()
    expected = [0.0056528036137302815, -0.3610653556051371, 0.7051723003690834, -0.3497597483776766]
    assert seen == pytest.approx(expected, abs=1e-12)
    assert server["gain"].item() == 2.5


def test_standardized_weights_are_exchanged_on_request():
    server = one_round(FedWon(exchange="wsp"))
    expected = [0.04333261906895418, -0.31407506872919105, 0.4101825173220689, -0.139440067661832]
    assert server["weight"].flatten().tolist() == pytest.approx(expected, abs=1e-12)
    assert server["gain"].item() == 2.5


def task_for(model: nn.Module) -> LocalTask:
    torch.manual_seed(0)
    training = Training(epochs=1, batches_per_epoch=2, precision="float32")
    shard = Shard(torch.randn(8, 1, 8, 8), torch.arange(8) % 2)
    rates = learning_rates(training, 1, 10)
    return LocalTask(model, shard, Key(0, 1, 0), training, rates, classes=2)


def test_the_default_is_fedavg_and_wsp_changes_the_convolutions_only():
    model = ScaledStandardization().apply(cnn(classes=2))
    start = snapshot(dict(model.named_parameters()))
    deltas = {}
    for algorithm in (FedAvg(), FedWon(), FedWon(exchange="wsp")):
        update, _ = algorithm.client_update({"params": start}, {}, task_for(model))
        deltas[algorithm] = update.vectors["delta"]
    plain, raw, standardized = deltas.values()
    for name, delta in raw.items():
        assert torch.equal(delta, plain[name])
        assert delta.any()
        assert torch.equal(standardized[name], delta) == (not name.endswith("conv.weight"))
        if name.endswith("conv.weight"):
            sent = start[name] + standardized[name]
            local = start[name] + delta
            torch.testing.assert_close(sent, scaled_standardized(local, gamma=1.0))


@pytest.mark.parametrize(
    "model", [cnn(), standardize(cnn()), nn.Linear(2, 2)], ids=["plain", "ws", "linear"]
)
def test_it_needs_scaled_standardization(model):
    with pytest.raises(ConfigError, match=r"fedwon needs model\.standardize=scaled"):
        FedWon().check(model, Training())
    FedWon().check(ScaledStandardization().apply(cnn()), Training())


def test_settings():
    assert FedWon() == FedWon(exchange="psp")
    server = FedWon(server=Momentum()).init_server({"w": torch.ones(1)})
    assert server.keys() == {"params", "momentum"}
    with pytest.raises(
        ConfigError, match='fedwon exchange = "raw" is unknown; it is "psp" or "wsp"'
    ):
        FedWon(exchange="raw")
