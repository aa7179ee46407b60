"""What weight standardization takes out of a gradient.

The gradient to a raw weight has no part along the weight itself nor along the vector of ones: its
length and its mean make no difference to what the layer computes. Here is how much of the gradient
to the weight that is computed with lies in these two directions, filter by filter, and in the plane
of both: of a standardized model the share that was taken out, of a plain one the share that would
be. A standardized weight is at right angles to ones, so that there the two add up to the third.
"""

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor, nn

from fedwsq.analysis.subject import BATCH, Found, Options, Subject
from fedwsq.core.threads import one_thread
from fedwsq.data.batches import normalize
from fedwsq.federation.owners import Batch
from fedwsq.models import bake, convolutions


class Shares(NamedTuple):
    """Of a layer's squared gradient."""

    weight: float = 0.0  # along each filter's weight
    ones: float = 0.0  # along the vector of ones
    removed: float = 0.0  # in the plane of both, which is what standardization takes out


def analyze(subject: Subject, options: Options) -> Found:
    """The shares of the squared gradient along weight and ones, by layer and client."""
    network = bake(subject.network())
    layers = {
        f"{name}.weight": module
        for name, module in network.named_modules()
        if convolutions(name, module)
    }
    found: Found = {name: {part: [] for part in Shares._fields} for name in layers}
    clients = list(range(min(options.clients, subject.plan.data.clients)))
    examples = []
    for batch in _batches(subject, clients):
        examples.append(len(batch.y))
        network.zero_grad()
        with one_thread():
            loss = subject.plan.training.criterion(network(batch.x), batch.y)
            loss.backward()  # type: ignore[no-untyped-call]
        for name, layer in layers.items():
            for part, share in shares(layer)._asdict().items():
                found[name][part].append(share)
    return {"clients": clients, "examples": examples, "layers": found}


def shares(layer: nn.Module) -> Shares:
    """Of the gradient that a layer's weight has."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    gradient = weight.grad
    # A layer that was never computed with, or that is frozen, has none.
    if gradient is None or not gradient.any():
        return Shares()
    g = gradient.flatten(1).double()
    w = weight.detach().flatten(1).double()
    whole = g.square().sum()
    along_weight = _squared_along(g, w)
    along_ones = g.sum(1).square() / g.shape[1]
    # The part of a weight that is at right angles to ones spans the same plane with them.
    centred = w - w.mean(1, keepdim=True)
    removed = along_ones + _squared_along(g, centred)
    parts = (along_weight, along_ones, removed)
    return Shares(*(float(part.sum() / whole) for part in parts))


def _squared_along(vectors: Tensor, directions: Tensor) -> Tensor:
    """The squared length of each row's part along the row of `directions`; 0 where that is 0."""
    lengths = directions.square().sum(1)
    return (vectors * directions).sum(1).square() / lengths.masked_fill(lengths == 0, 1.0)


def _batches(subject: Subject, clients: list[int]) -> Iterator[Batch]:
    """The first examples of each of these clients."""
    for client in clients:
        shard = subject.simulation.clients.shard(client)
        yield Batch(normalize(shard.x[:BATCH], shard.mean, shard.std), shard.y[:BATCH])
