"""What one client does with its data: epochs of mini-batch steps from the received parameters."""

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from fedwsq.core.seeds import derive, torch_rng
from fedwsq.core.types import Key, Params, Update
from fedwsq.data.batches import augment, batches, normalize
from fedwsq.models.part import trainable
from fedwsq.training.clipping import clip_norm, clip_units
from fedwsq.training.losses import Loss
from fedwsq.training.precision import autocast
from fedwsq.training.settings import Training

Batch: TypeAlias = tuple[Tensor, Tensor]  # inputs, ready for the model, and targets
Gradient: TypeAlias = Callable[[Params], Params]  # of a batch's loss, at any point
Direction: TypeAlias = Callable[[Params, Gradient], Params]  # what a step goes against


class Shard(NamedTuple):
    """A client's examples as stored, and how a batch of them becomes model input."""

    x: Tensor
    y: Tensor
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    augment: bool = False


class Trained(NamedTuple):
    """What local training gives back; `loss` is the mean over all steps."""

    params: Params
    steps: int
    lr_sum: float
    loss: float


@dataclass(frozen=True)
class LocalTask:
    """What a `client_update` may use: the model, the client's data and this round's settings."""

    model: nn.Module
    shard: Shard
    key: Key
    training: Training
    learning_rates: list[float]
    classes: int = 0
    device: torch.device = torch.device("cpu")

    @property
    def class_counts(self) -> Tensor:
        """How many examples of each class the client holds, [classes]."""
        return torch.bincount(self.shard.y, minlength=self.classes).to(self.device)

    def frozen(self, params: Params) -> nn.Module:
        """A second model at `params` that does not learn, for methods that compare with it."""
        other = copy.deepcopy(self.model)
        load(other, params)
        return other.requires_grad_(False).eval()

    def train(
        self,
        start: Params,
        *,
        loss: Loss | None = None,
        direction: Direction | None = None,
        extra_decay: float = 0.0,
    ) -> Trained:
        """Train from `start` and return where that led; the model's parameters are overwritten.

        Without a `loss` the plan's criterion is minimized.
        `direction(params, gradient)` replaces the plain gradient; it may call `gradient(params)`
        more than once on the same batch. Its result is clipped, then weight decay (plus
        `extra_decay`) is added unclipped.
        """
        params = load(self.model, start)
        self.model.train()
        loss = loss or self.loss
        decay = self.training.local_decay
        optimizer = self.training.optimizer.build(params.values(), decay, extra_decay)

        # Summed where it is computed: to read a loss at every step would keep a GPU waiting.
        total = torch.zeros((), device=self.device)
        steps = 0
        lr_sum = 0.0
        with self._own_randomness():
            for epoch, lr in enumerate(self.learning_rates):
                for group in optimizer.param_groups:
                    group["lr"] = lr
                for batch in self._epoch(epoch):
                    total += self._aim(params, batch, loss, direction)
                    self._clip(params)
                    optimizer.step()
                    steps += 1
                    lr_sum += lr

        for p in params.values():
            p.grad = None
        return Trained(snapshot(params), steps, lr_sum, float(total) / steps)

    def update(self, trained: Trained, **vectors: Params) -> Update:
        """The update that carries these vectors, weighted by the client's number of examples."""
        metrics = {"loss": trained.loss, "steps": float(trained.steps), "lr_sum": trained.lr_sum}
        return Update(vectors, float(len(self.shard.y)), metrics)

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The plan's criterion on the model's outputs, in float32 whatever they come in."""
        return self.training.criterion(model(x).float(), y)

    @contextlib.contextmanager
    def _own_randomness(self) -> Iterator[None]:
        """What layers such as dropout draw from torch's generator belongs to this work alone."""
        gpus = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(gpus):
            torch.manual_seed(derive(self.key.seed, "layers", self.key.round, self.key.client))
            yield

    def _epoch(self, epoch: int) -> Iterator[Batch]:
        seed = self.key.seed
        address = (self.key.round, self.key.client, epoch)
        examples = len(self.shard.y)
        size = self.training.batch_size_for(examples)
        order = batches(examples, size, torch_rng(seed, "batches", *address))
        for index, chosen in enumerate(order):
            x = self.shard.x[chosen].to(self.device)
            if self.shard.augment:
                x = augment(x, torch_rng(seed, "augment", *address, index))
            x = normalize(x, self.shard.mean, self.shard.std)
            if x.dim() == 4:  # images: convolutions on a CPU are fastest in this order of memory
                x = x.contiguous(memory_format=torch.channels_last)
            yield x, self.shard.y[chosen].to(self.device)

    def _aim(self, params: Params, batch: Batch, loss: Loss, direction: Direction | None) -> Tensor:
        """Leave the step's direction in the parameters' gradients and return the batch's loss."""
        backward = partial(self._backward, params, batch, loss)
        if direction is None:
            return backward()

        gradient = BatchGradient(self.model, params, backward)
        for name, step in direction(snapshot(params), gradient).items():
            # As without a direction: where the loss has no gradient, no step and no decay.
            params[name].grad = None if name in gradient.idle else step
        return gradient.losses[0]

    def _backward(self, params: Params, batch: Batch, loss: Loss) -> Tensor:
        """Leave the gradients of the loss in the parameters and return its value."""
        for p in params.values():
            p.grad = None
        with autocast(self.device, self.training.precision):
            value = loss(self.model, *batch)
        torch.autograd.backward(value)
        return value.detach()

    def _clip(self, params: Params) -> None:
        if self.training.agc:
            clip_units(params.values(), self.training.agc)
        if self.training.clip_norm:
            clip_norm(params.values(), self.training.clip_norm)


@dataclass
class BatchGradient:
    """The gradient of one batch's loss at whatever point a `Direction` asks for."""

    model: nn.Module
    params: Params  # the model's own
    backward: Callable[[], Tensor]
    losses: list[Tensor] = field(default_factory=list)  # at each point asked for
    idle: set[str] = field(default_factory=set)  # parameters that the loss does not depend on

    def __call__(self, at: Params) -> Params:
        # The step starts from here, wherever its gradient is taken.
        here = snapshot(self.params)
        load(self.model, at)
        self.losses.append(self.backward())
        load(self.model, here)

        gradients = {}
        for name, p in self.params.items():
            if p.grad is None:
                self.idle.add(name)
                gradients[name] = torch.zeros_like(p)
            else:
                gradients[name] = p.grad
        return gradients


def load(model: nn.Module, params: Params) -> Params:
    """Copy `params` into the model in place; the model's own parameters that learn, by name."""
    # In place: channels-last weights stay so, and nothing that holds a parameter is disturbed.
    own = trainable(model)
    with torch.no_grad():
        for name, p in own.items():
            p.copy_(params[name])
    return own


def snapshot(params: Params) -> Params:
    """A detached copy that later steps do not change."""
    return {name: p.detach().clone() for name, p in params.items()}
