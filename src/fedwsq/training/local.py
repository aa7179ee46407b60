"""What one client does with its data: epochs of mini-batch steps from the received parameters."""

import contextlib
import copy
import functools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedwsq.core.errors import ConfigError
from fedwsq.core.seeds import derive, torch_rng
from fedwsq.core.threads import one_thread
from fedwsq.core.types import Key, Params, Update
from fedwsq.data.batches import augment, batches, normalize
from fedwsq.models.part import trainable
from fedwsq.training.clipping import adaptive_clip, clip_norm
from fedwsq.training.losses import CRITERIA, Criterion, Loss
from fedwsq.training.optimizers import Optimizer, Sgd

Precision: TypeAlias = Literal["auto", "float32", "bfloat16"]
Gradient: TypeAlias = Callable[[Params], Params]
Direction: TypeAlias = Callable[[Params, Gradient], Params]


@dataclass(frozen=True)
class Training:
    """Local work: SGD with clipping and weight decay; the defaults are the paper's protocol."""

    epochs: int = 5
    batches_per_epoch: int = 10  # sets the batch size from the shard, unless `batch_size` is given
    batch_size: int = 0
    lr: float = 0.1
    lr_decay: float = 0.995  # per round, and again per local epoch
    schedule: Literal["plain", "published"] = "plain"
    weight_decay: float = 1e-3
    clip_norm: float = 10.0  # of all gradients together; 0 is off
    agc: float = 0.0  # adaptive clipping of each output unit's gradient, before the norm; 0 is off
    criterion: Criterion = Criterion("cross_entropy", CRITERIA["cross_entropy"])
    optimizer: Optimizer = Sgd()
    precision: Precision = "auto"

    def __post_init__(self) -> None:
        for name in ("epochs", "batches_per_epoch"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, must be at least 1")
        if not self.lr > 0:
            raise ConfigError(f"lr is {self.lr}, must be above 0")
        if not 0 < self.lr_decay <= 1:
            raise ConfigError(
                f"lr_decay is {self.lr_decay}, must be above 0 and at most 1 (1: no decay)"
            )
        for name in ("batch_size", "weight_decay", "clip_norm", "agc"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, must not be negative")

    def batch_size_for(self, examples: int) -> int:
        """The batch size for a shard: as given, or so that an epoch has at most `batches_per_epoch` batches."""
        return self.batch_size or max(1, -(-examples // self.batches_per_epoch))

    def steps(self, examples: int) -> int:
        """How many local steps a shard means."""
        return self.epochs * -(-examples // self.batch_size_for(examples))


def learning_rates(training: Training, round_: int, rounds: int) -> list[float]:
    """The rate of each local epoch of a round (counted from 1): lr * decay^(round - 1) * decay^epoch.

    The published schedule stretches or squeezes the decay to what 1000 rounds would have, in whole steps.
    """
    exponent = round_ - 1
    if training.schedule == "published":
        exponent = exponent * (1000 // rounds) if rounds < 1000 else exponent // (rounds // 1000)
    return [
        training.lr * training.lr_decay ** (exponent + epoch) for epoch in range(training.epochs)
    ]


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
    """What an algorithm's `client_update` may use: the model, the client's data and the settings of this round."""

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
        """A second model at `params` that does not learn: the received model, for methods that compare with it."""
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
        `direction(params, gradient)` replaces the plain gradient; it may call `gradient(params)` more than once on the
        same batch. Its result is clipped, then weight decay (plus `extra_decay`) is added unclipped.
        """
        params = load(self.model, start)
        self.model.train()
        loss = loss or self.loss
        optimizer = self.training.optimizer.build(
            params.values(), self.training.weight_decay, extra_decay
        )
        total, steps, lr_sum = torch.zeros((), device=self.device), 0, 0.0
        with self._own_randomness():
            for epoch, lr in enumerate(self.learning_rates):
                for group in optimizer.param_groups:
                    group["lr"] = lr
                for x, y in self._epoch(epoch):
                    total += self._backward(params, x, y, loss, direction)
                    if self.training.agc:
                        for p in params.values():
                            p.grad = (
                                None
                                if p.grad is None
                                else adaptive_clip(p.grad, p.detach(), self.training.agc)
                            )
                    if self.training.clip_norm:
                        clip_norm(params.values(), self.training.clip_norm)
                    optimizer.step()
                    steps, lr_sum = steps + 1, lr_sum + lr
        for p in params.values():
            p.grad = None
        return Trained(snapshot(params), steps, lr_sum, float(total) / steps)

    def update(self, trained: Trained, **vectors: Params) -> Update:
        """The update that carries these vectors, weighted by the client's number of examples."""
        metrics = {"loss": trained.loss, "steps": float(trained.steps), "lr_sum": trained.lr_sum}
        return Update(vectors, float(len(self.shard.y)), metrics)

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The plan's criterion on the model's outputs, in float32 whatever the model computes in."""
        value: Tensor = self.training.criterion(model(x).float(), y)
        return value

    @contextlib.contextmanager
    def _own_randomness(self) -> Iterator[None]:
        """What layers such as dropout draw from torch's own generator belongs to this client and round."""
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(derive(self.key.seed, "layers", self.key.round, self.key.client))
            yield

    def _epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of one epoch, ready for the model."""
        seed, address = self.key.seed, (self.key.round, self.key.client, epoch)
        size = self.training.batch_size_for(len(self.shard.y))
        order = batches(len(self.shard.y), size, torch_rng(seed, "batches", *address))
        for index, chosen in enumerate(order):
            x = self.shard.x[chosen].to(self.device)
            if self.shard.augment:
                x = augment(x, torch_rng(seed, "augment", *address, index))
            x = normalize(x, self.shard.mean, self.shard.std)
            if x.dim() == 4:
                x = x.contiguous(memory_format=torch.channels_last)
            yield x, self.shard.y[chosen].to(self.device)

    def _backward(
        self, params: Params, x: Tensor, y: Tensor, loss: Loss, direction: Direction | None
    ) -> Tensor:
        """Leave the step's direction in the parameters' gradients and return the loss at the current point."""
        losses: list[Tensor] = []
        idle: set[str] = set()  # parameters that the loss does not depend on

        def backward() -> None:
            for p in params.values():
                p.grad = None
            with autocast(self.device, self.training.precision):
                value = loss(self.model, x, y)
            value.backward()  # type: ignore[no-untyped-call]
            losses.append(value.detach())

        def gradient(at: Params) -> Params:
            here = snapshot(params)
            load(self.model, at)
            backward()
            load(self.model, here)
            idle.update(name for name, p in params.items() if p.grad is None)
            return {
                name: torch.zeros_like(p) if p.grad is None else p.grad
                for name, p in params.items()
            }

        if direction is None:
            backward()
        else:
            for name, step in direction(snapshot(params), gradient).items():
                params[name].grad = (
                    None if name in idle else step
                )  # as without a direction: no step, no decay
        return losses[0]


def load(model: nn.Module, params: Params) -> Params:
    """Copy `params` into the model in place and return the model's own parameters that learn, by name."""
    own = trainable(model)
    with torch.no_grad():
        for name, p in own.items():
            p.copy_(params[name])
    return own


def snapshot(params: Params) -> Params:
    """A detached copy that later steps do not change."""
    return {name: p.detach().clone() for name, p in params.items()}


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """The context in which forward passes run."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


def resolve_precision(precision: Precision, device: torch.device) -> Precision:
    """Decide `auto` once: bfloat16 where the hardware has instructions for it and, on a CPU, where they pay."""
    if precision != "auto":
        return precision
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return "float32"
    capable = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return "bfloat16" if capable and bfloat16_speedup() > 1.1 else "float32"


@functools.cache
def bfloat16_speedup(repeats: int = 12) -> float:
    """How many times faster one thread here trains a small convolution in bfloat16: about 2 with real instructions.

    In turn, the best of several: another process can only make a step look slower than it is.
    """
    x = torch.ones(8, 64, 16, 16).contiguous(memory_format=torch.channels_last)
    weight = torch.ones(64, 64, 3, 3, requires_grad=True)
    best: dict[Precision, float] = {"float32": math.inf, "bfloat16": math.inf}
    with one_thread():
        for _ in range(repeats):
            for precision in best:
                began = time.perf_counter()
                with autocast(x.device, precision):
                    y = F.conv2d(F.conv2d(x, weight, padding=1), weight, padding=1)
                y.float().sum().backward()  # type: ignore[no-untyped-call]
                best[precision] = min(best[precision], time.perf_counter() - began)
    return best["float32"] / best["bfloat16"]
