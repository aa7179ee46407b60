"""The toy problem: f(w) = 1/2 |w - a|^2, exact gradient, lr .1, two steps, no decay, no clipping.

Four clients A, B, C, D; round 1 is A and B, round 2 is B and C; D never takes part but counts in
the population.
"""

import torch

from fedwsq.core.types import Cohort, Key, Update
from fedwsq.training import LocalTask, Shard, Training, learning_rates

TARGETS = {"A": [3.0, 2.0], "B": [-2.0, 1.0], "C": [0.0, 2.0], "D": [2.0, 2.0]}
START = [1.0, -2.0]
ROUNDS = ("AB", "BC")


class Point(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(2))


class ToyTask(LocalTask):
    def loss(self, model, x, y):
        return 0.5 * (model.w - x[0]).square().sum()


def toy_task(client, **settings):
    training = Training(
        2, 1, lr_decay=1.0, weight_decay=0.0, clip_norm=0.0, precision="float32", **settings
    )
    shard = Shard(torch.tensor([TARGETS[client]]), torch.zeros(1, dtype=torch.int64))
    key = Key(0, 1, "ABCD".index(client))
    return ToyTask(Point(), shard, key, training, learning_rates(training, 1, 1000))


def mean(updates, weights=None):
    """The weighted mean of updates, as the server forms it."""
    weights = weights or [1.0] * len(updates)
    vectors = {}
    for vector in updates[0].vectors:
        weighted = zip(weights, updates, strict=True)
        total = sum(weight * update.vectors[vector]["w"] for weight, update in weighted)
        vectors[vector] = {"w": total / sum(weights)}
    metrics = {}
    for name in updates[0].metrics:
        metrics[name] = sum(update.metrics[name] for update in updates) / len(updates)
    return Update(vectors, sum(weights), metrics)


def play(algorithm, rounds=ROUNDS, weights=None):
    """Run rounds of the toy problem; yields (updates, clients' memory, server) after each."""
    server = algorithm.init_server({"w": torch.tensor(START)})
    clients = {name: algorithm.init_client(server["params"]) for name in TARGETS}
    for number, names in enumerate(rounds, 1):
        received = algorithm.broadcast(server)
        updates = []
        for name in names:
            update, memory = algorithm.client_update(received, clients[name], toy_task(name))
            clients[name] = algorithm.settle(memory, update.vectors)  # no code: nothing is lost
            updates.append(update)
        cohort = Cohort(number, len(names), len(names), 4)
        server = algorithm.server_update(server, mean(updates, weights), cohort)
        yield updates, dict(clients), server
