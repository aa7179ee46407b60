"""What weight standardization takes out of a gradient.

The gradient to a raw weight has no part along the weight itself nor along the vector of ones: its
length and its mean make no difference to what the layer computes. Here is how much of the gradient
to the weight that is computed with lies in these two directions, filter by filter: of a
standardized model the share that was taken out, of a plain one the share that would be.
"""

from collections.abc import Iterator

from torch import Tensor, nn

from fedwsq.analysis.subject import BATCH, Found, Options, Subject
from fedwsq.data.batches import normalize
from fedwsq.federation.owners import Batch
from fedwsq.models import bake, convolutions


def analyze(subject: Subject, options: Options) -> Found:
    """The shares of the squared gradient along weight and ones, by layer and client."""
    network = bake(subject.network())
    layers = {
        f"{name}.weight": module
        for name, module in network.named_modules()
        if convolutions(name, module)
    }
    found: Found = {name: {"weight": [], "ones": []} for name in layers}
    clients = list(range(min(options.clients, subject.plan.data.clients)))
    for batch in _batches(subject, clients):
        network.zero_grad()
        loss = subject.plan.training.criterion(network(batch.x), batch.y)
        loss.backward()  # type: ignore[no-untyped-call]
        for name, layer in layers.items():
            along = shares(layer)
            found[name]["weight"].append(along[0])
            found[name]["ones"].append(along[1])
    return {"clients": clients, "layers": found}


def shares(layer: nn.Module) -> tuple[float, float]:
    """The shares of a layer's squared gradient along its weight and along the ones vector."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    gradient = weight.grad
    assert gradient is not None
    g = gradient.flatten(1).double()
    w = weight.detach().flatten(1).double()
    whole = float(g.square().sum())
    if not whole:
        return 0.0, 0.0
    lengths = w.square().sum(1)
    along = (g * w).sum(1).square() / lengths.masked_fill(lengths == 0, 1.0)
    mean = g.sum(1).square() / g.shape[1]
    return float(along.sum()) / whole, float(mean.sum()) / whole


def _batches(subject: Subject, clients: list[int]) -> Iterator[Batch]:
    """The first examples of each of these clients."""
    for client in clients:
        shard = subject.simulation.clients.shard(client)
        yield Batch(normalize(shard.x[:BATCH], shard.mean, shard.std), shard.y[:BATCH])
