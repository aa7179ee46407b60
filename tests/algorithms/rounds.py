"""What the tests of methods with their own loss share.

A round on a toy model, and an update of the small CNN.
"""

import torch
from torch import nn

from fedwsq.algorithms.fedavg import FedAvg
from fedwsq.core.tree import add
from fedwsq.core.types import Cohort, Key, Update
from fedwsq.models import cnn, trainable
from fedwsq.training import CRITERIA, Criterion, LocalTask, Shard, Training, learning_rates
from fedwsq.training.local import snapshot

LABELS = [0, 1, 2, 0, 1, 2, 3, 3, 0, 1]


class Bias(nn.Module):
    """The worked example's bias-only model of three classes."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.2, -0.1, 0.4]))

    def forward(self, x):
        return self.w.expand(len(x), 3)


class Linear(nn.Module):
    """The worked example's X W, whose logits are its features, as a model with one level."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([[0.5, -0.2], [0.1, 0.3]]))
        self.head = nn.Identity()

    def forward(self, x):
        return x @ self.w

    def pooled(self, x):
        return x @ self.w

    def features(self, x):
        return [x @ self.w]

    def resume(self, level, feature):
        return feature


def toy_task(model, x, y, lr=0.1, steps=2, **training):
    """Steps over the whole shard, without decay and clipping.

    Without inputs, they are as many zeros as there are labels.
    """
    settings = {"lr_decay": 1.0, "weight_decay": 0.0, "clip_norm": 0.0, "precision": "float32"}
    training = Training(epochs=steps, batches_per_epoch=1, lr=lr, **settings | training)
    x = torch.zeros(len(y), 1) if x is None else torch.tensor(x)
    shard = Shard(x, torch.tensor(y))
    rates = learning_rates(training, 1, 1000)
    return LocalTask(model, shard, Key(0, 1, 0), training, rates, 3)


def toy_round(algorithm, model, clients, lr=0.1, steps=2):
    """The local parameters and the losses of clients (x, y), and the server's parameters.

    A loss is the mean over the steps.
    """
    server = algorithm.init_server(snapshot(trainable(model())))
    tasks = [toy_task(model(), x, y, lr, steps) for x, y in clients]
    updates = [algorithm.client_update(algorithm.broadcast(server), {}, task)[0] for task in tasks]
    deltas = [update.vectors["delta"] for update in updates]
    mean = {name: sum(delta[name] for delta in deltas) / len(deltas) for name in deltas[0]}
    cohort = Cohort(1, len(clients), len(clients), 4)
    after = algorithm.server_update(server, Update({"delta": mean}, 1.0), cohort)
    local = [add(server["params"], delta) for delta in deltas]
    return local, [update.metrics["loss"] for update in updates], after["params"]


def cnn_delta(algorithm, labels=LABELS, batch_size=3, **training):
    """All that the small CNN learns from ten 8x8 images, in one vector.

    The last batch is a single image.
    """
    torch.manual_seed(0)
    model = cnn()
    x = torch.randn(len(labels), 1, 8, 8)
    start = snapshot(trainable(model))
    settings = {"epochs": 2, "batch_size": batch_size, "precision": "float32"}
    training = Training(**settings | training)
    shard = Shard(x, torch.tensor(labels))
    rates = learning_rates(training, 1, 10)
    task = LocalTask(model, shard, Key(0, 1, 0), training, rates, classes=10)
    algorithm.check(model, task.training)
    update, client = algorithm.client_update({"params": start}, {}, task)
    assert client == {}
    return torch.cat([d.flatten() for d in update.vectors["delta"].values()])


def learns_unlike_fedavg(algorithm):
    """Whether the update is not FedAvg's, and finite also in bfloat16 and with a single class."""
    ours = cnn_delta(algorithm)
    plain = cnn_delta(FedAvg())
    others = [cnn_delta(algorithm, precision="bfloat16"), cnn_delta(algorithm, labels=[4] * 10)]
    finite = all(delta.isfinite().all() for delta in [ours, *others])
    return finite and bool((ours - plain).norm() > 1e-4 * plain.norm())


def squared_error():
    return Criterion("squared_error", CRITERIA["squared_error"])


def float64(values):
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)
