"""One batch through everything before there is a run directory: what cannot work is said."""

import copy
import math

import torch
from torch import Tensor, nn

from fedwsq.core.errors import ConfigError, FedwsqError
from fedwsq.core.threads import one_thread
from fedwsq.core.types import Key, Params, Vectors
from fedwsq.data.batches import normalize
from fedwsq.evaluation import Metric, Scoring, score
from fedwsq.federation.charter import Charter
from fedwsq.federation.simulation import Simulation
from fedwsq.models.part import trainable
from fedwsq.training import Shard
from fedwsq.training.precision import autocast
from fedwsq.transports.blame import in_one_line

BATCH = 8  # examples: enough to tell, and quick


def try_out(simulation: Simulation, device: torch.device) -> None:
    """Train, score and code one small batch on a copy of the model, or say what is in the way."""
    charter = simulation.charter
    shard = _first_shard(simulation)
    with one_thread(), torch.random.fork_rng([device] if device.type == "cuda" else []):
        network = copy.deepcopy(charter.model.network).to(device)
        gradients = learn(network, shard, charter, device)
        _score(network, simulation, device)
        _code(gradients, charter)


def _first_shard(simulation: Simulation) -> Shard:
    """Some examples of the first client that has any."""
    sizes = simulation.clients.split.sizes
    (holders,) = torch.nonzero(sizes, as_tuple=True)
    if not len(holders):
        raise ConfigError("the split gives no client any example; choose another data.partition")
    shard = simulation.clients.shard(int(holders[0]))
    return shard._replace(x=shard.x[:BATCH], y=shard.y[:BATCH])


def learn(network: nn.Module, shard: Shard, charter: Charter, device: torch.device) -> Params:
    """The gradients of one batch."""
    training = charter.plan.training
    x = normalize(shard.x.to(device), shard.mean, shard.std)
    y = shard.y.to(device)
    _require_channels_first(x)
    with autocast(device, training.precision):
        outputs = _outputs(network.train(), x)
    if training.criterion.name == "cross_entropy":
        _require_outputs(outputs, charter.model.format.classes)
    try:
        loss = training.criterion(outputs.float(), y)
        torch.autograd.backward(loss)
    except FedwsqError:
        raise
    except Exception as error:
        raise ConfigError(
            f"training.criterion = {training.criterion.name} cannot take outputs of shape "
            f"{list(outputs.shape)} with targets of shape {list(y.shape)} ({y.dtype}): "
            f"{in_one_line(error)}; use a criterion made for such targets"
        ) from error
    if loss.numel() != 1:
        raise ConfigError(
            f"training.criterion = {training.criterion.name} gave a tensor of shape "
            f"{list(loss.shape)}; it must give one number"
        )
    learned = trainable(network)
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in learned.items()}


def _outputs(network: nn.Module, x: Tensor) -> Tensor:
    try:
        outputs = network(x)
    except FedwsqError:
        raise
    except Exception as error:
        raise ConfigError(
            f"the model cannot take a batch of shape {list(x.shape)}: {in_one_line(error)}; "
            "choose a model made for such examples, or store the examples as the model takes them"
        ) from error
    if not isinstance(outputs, Tensor):
        raise ConfigError(
            f"the model gave {type(outputs).__name__}, not a tensor; return the outputs alone"
        )
    if len(outputs) != len(x):
        raise ConfigError(
            f"the model gave outputs of shape {list(outputs.shape)} for a batch of {len(x)}; "
            "the first dimension must be the examples'"
        )
    return outputs


def _require_outputs(outputs: Tensor, classes: int) -> None:
    """Refuse fewer outputs than classes: the batch that is tried need not hold the last class."""
    if outputs.dim() > 1 and outputs.shape[1] < classes:
        raise ConfigError(
            f"the model gives {outputs.shape[1]} outputs, but the data has {classes} classes; "
            f"build it with {classes} outputs (a builder that takes `classes` is told how many)"
        )


def _require_channels_first(x: Tensor) -> None:
    """Refuse [n, 32, 32, 3]: a network would take it for 32 channels of 32 by 3."""
    if x.dim() == 4 and x.shape[1] == x.shape[2] > 4 and x.shape[3] in (1, 3, 4):
        raise ConfigError(
            f"examples of shape {list(x.shape[1:])} look like images with their channels last; "
            "store them as [n, channels, height, width], for example with x.transpose(0, 3, 1, 2)"
        )


def _score(network: nn.Module, simulation: Simulation, device: torch.device) -> None:
    """The metric on a few of the server's examples."""
    plan = simulation.plan
    batch = simulation.test.batch(0)
    x = batch.x[:BATCH].to(device)
    y = batch.y[:BATCH].to(device)
    network.eval()
    scoring = Scoring(simulation.model.format.classes, plan.training.criterion, plan.metric)
    try:
        with autocast(device, plan.training.precision):
            found = score(network, x, y, scoring)
    except FedwsqError:
        raise
    except Exception as error:
        raise ConfigError(
            f"metric = {plan.metric.name} cannot take targets of shape {list(y.shape)} "
            f"({y.dtype}): {in_one_line(error)}; accuracy needs one class an example, "
            "minus_squared_error as many targets as outputs; for several labels an example "
            "bring a metric of your own (docs/extending.md)"
        ) from error
    if not math.isfinite(found.value_sum):
        with torch.inference_mode(), autocast(device, plan.training.precision):
            _require_finite(plan.metric, network(x).float(), y)


def _require_finite(metric: Metric, outputs: Tensor, targets: Tensor) -> None:
    """Refuse a metric that has no value for an example: no round would have a mean."""
    if not outputs.isfinite().all():
        return  # the model's fault, which no metric can help
    lost = ~metric.each(outputs, targets).isfinite()
    raise ConfigError(
        f"metric = {metric.name} gave nan or infinity for {int(lost.sum())} of {len(lost)} "
        "examples with finite outputs, and a mean with one of them is none; give every example a "
        "number, such as 0 where there is nothing to measure"
    )


def _code(gradients: Params, charter: Charter) -> None:
    """What a client would send, there and back."""
    algorithm = charter.plan.algorithm
    vectors: Vectors = dict.fromkeys(algorithm.sends, gradients)
    key = Key(charter.plan.seed, 1, 0)
    shared = charter.uplink.init(algorithm.sends)
    granted = charter.uplink.grant(key, charter.plan.channels(key), shared, algorithm.sends)
    if granted is None:
        return  # this client would sit out
    sent = charter.uplink.send(vectors, shared, key, granted)
    charter.uplink.check(sent.packets, algorithm.sends, granted)
    charter.uplink.receive(sent.packets, shared, key)
