"""Client optimizers: made anew for every client and round, so that they remember nothing."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from fedwsq.core.errors import ConfigError
from fedwsq.core.ranges import ABOVE_0, FROM_0_TO_1, require


class Stepper(Protocol):
    """An optimizer at work on some parameters; those of `torch.optim` are such."""

    param_groups: list[dict[str, Any]]  # each with its "lr"

    def step(self) -> object:
        """Move every parameter that has a gradient; whatever is returned is not looked at."""
        ...


class Optimizer(Protocol):
    """A frozen dataclass whose fields are its settings; the learning rate is set at every epoch."""

    def build(self, params: Iterable[Tensor], weight_decay: float, extra_decay: float) -> Stepper:
        """A fresh optimizer; `extra_decay` is a method's own pull towards zero."""
        ...


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent; the paper's has no momentum."""

    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        require(FROM_0_TO_1, momentum=self.momentum)
        if self.nesterov and not self.momentum:
            raise ConfigError("nesterov needs a momentum above 0")

    def build(self, params: Iterable[Tensor], weight_decay: float, extra_decay: float) -> Stepper:
        """Both decays act as part of the gradient, after clipping."""
        return SgdStepper(list(params), self.momentum, self.nesterov, weight_decay + extra_decay)


@dataclass
class SgdStepper:
    """`torch.optim.SGD`, bit for bit, without torch's compiler.

    To import that takes every worker a second or two.
    """

    params: list[Tensor]
    momentum: float
    nesterov: bool
    decay: float
    param_groups: list[dict[str, Any]] = field(default_factory=lambda: [{"lr": 0.0}])
    buffers: dict[int, Tensor] = field(default_factory=dict)  # by position

    @torch.no_grad()
    def step(self) -> None:
        """p <- p - lr d, where d is the decayed gradient or what momentum makes of it."""
        lr = self.param_groups[0]["lr"]
        for index, p in enumerate(self.params):
            if p.grad is None:
                continue
            d = p.grad
            if self.decay:
                d = d.add(p, alpha=self.decay)
            if self.momentum:
                d = self._with_momentum(index, d)
            p.add_(d, alpha=-lr)

    def _with_momentum(self, index: int, d: Tensor) -> Tensor:
        if index in self.buffers:
            buffer = self.buffers[index].mul_(self.momentum).add_(d)
        else:
            buffer = d.clone()  # the first gradient counts whole, as torch has it
            self.buffers[index] = buffer
        if self.nesterov:
            return d.add(buffer, alpha=self.momentum)
        return buffer


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019, arXiv:1711.05101)."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        require(FROM_0_TO_1, beta1=self.beta1, beta2=self.beta2)
        require(ABOVE_0, eps=self.eps)

    def build(self, params: Iterable[Tensor], weight_decay: float, extra_decay: float) -> Stepper:
        """A method's own decay belongs to its gradient, which Adam would rescale: refused."""
        if extra_decay:
            raise ConfigError(
                "this algorithm puts part of its gradient into the decay; "
                "use training.optimizer=sgd"
            )
        betas = (self.beta1, self.beta2)
        return torch.optim.AdamW(params, 0.0, betas, self.eps, weight_decay)


OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": Sgd, "adamw": AdamW}
