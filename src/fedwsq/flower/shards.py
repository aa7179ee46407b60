"""Each client's examples as a file of its own."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedwsq.federation.owners import SplitClients
from fedwsq.federation.simulation import simulate
from fedwsq.plan import Plan


def write_shards(plan: Plan, paths: Sequence[Path]) -> None:
    """The shard of client 0 at the first path, of client 1 at the second, and so on."""
    clients = simulate(plan).clients
    for client, path in enumerate(paths):
        _write(clients, client, path)


def _write(clients: SplitClients, client: int, path: Path) -> None:
    train = clients.shard(client)
    test = clients.test_shard(client)
    if not len(test.y):
        # Such a file has test examples; where a client keeps none, nobody asks for them.
        test = train._replace(x=train.x[:1], y=train.y[:1])
    np.savez(
        path,
        x_train=train.x.numpy(),
        y_train=train.y.numpy(),
        x_test=test.x.numpy(),
        y_test=test.y.numpy(),
    )
