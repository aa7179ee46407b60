import pytest
import torch

from fedwsq.algorithms import FedAvg
from fedwsq.core.types import Cohort, Key, Update
from fedwsq.training import LocalTask, Shard, Training, learning_rates
from fedwsq.training.losses import cross_entropy

TARGETS = {"A": [3.0, 2.0], "B": [-2.0, 1.0], "C": [0.0, 2.0], "D": [2.0, 2.0]}


class Quadratic(torch.nn.Module):
    """Two logits whose cross-entropy is replaced by f(w) = 1/2 |w - a|^2 in the task."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(2))


class ToyTask(LocalTask):
    """The sheet's toy problem (0.7): exact gradient, lr .1, two steps, no decay, no clipping."""

    def train(self, start, *, loss=cross_entropy, **hooks):
        return super().train(start, loss=lambda model, x, y: 0.5 * (model.w - x[0]).square().sum(), **hooks)


def toy_task(client, examples=1):
    training = Training(
        epochs=2, batches_per_epoch=1, lr_decay=1.0, weight_decay=0.0, clip_norm=0.0, precision="float32"
    )
    shard = Shard(torch.tensor([TARGETS[client]] * examples), torch.zeros(examples, dtype=torch.int64))
    return ToyTask(Quadratic(), shard, Key(0, 1, "ABCD".index(client)), training, learning_rates(training, 1, 1000))


def run_round(algorithm, server, clients, weights=None):
    updates = [algorithm.client_update(algorithm.broadcast(server), {}, toy_task(c))[0] for c in clients]
    weights = weights or [1.0] * len(clients)
    deltas = [w * u.vectors["delta"]["w"] for w, u in zip(weights, updates, strict=True)]
    mean = Update({"delta": {"w": sum(deltas) / sum(weights)}}, sum(weights))
    return updates, algorithm.server_update(server, mean, Cohort(1, len(clients), len(clients), 4))


def test_two_rounds_by_hand():
    algorithm = FedAvg()
    server = algorithm.init_server({"w": torch.tensor([1.0, -2.0])})
    updates, server = run_round(algorithm, server, "AB")
    # A: [1, -2] -> [1.2, -1.6] -> [1.38, -1.24]; B: [1, -2] -> [.7, -1.7] -> [.43, -1.43]
    assert updates[0].vectors["delta"]["w"].tolist() == pytest.approx([0.38, 0.76], abs=1e-6)
    assert updates[1].vectors["delta"]["w"].tolist() == pytest.approx([-0.57, 0.57], abs=1e-6)
    assert server["params"]["w"].tolist() == pytest.approx([0.905, -1.335], abs=1e-6)
    _, server = run_round(algorithm, server, "BC")
    assert server["params"]["w"].tolist() == pytest.approx([0.54305, -0.79635], abs=1e-6)


def test_the_mean_is_weighted_by_examples():
    # 100 : 300 -> .25 [1.38, -1.24] + .75 [.43, -1.43]
    algorithm = FedAvg()
    _, server = run_round(algorithm, algorithm.init_server({"w": torch.tensor([1.0, -2.0])}), "AB", [100.0, 300.0])
    assert server["params"]["w"].tolist() == pytest.approx([0.6675, -1.3825], abs=1e-6)


def test_state_goes_in_and_comes_out():
    algorithm, before = FedAvg(), {"params": {"w": torch.tensor([1.0, -2.0])}}
    assert algorithm.sends == ("delta",)
    assert algorithm.init_client(before["params"]) == {}
    run_round(algorithm, before, "AB")
    assert before["params"]["w"].tolist() == [1.0, -2.0]
