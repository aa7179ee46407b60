"""Client optimizers: made anew for every client and round, so that nothing survives but what an algorithm keeps."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedwsq.core.errors import ConfigError


class Optimizer(Protocol):
    """A frozen dataclass whose fields are its settings; the learning rate is set at every epoch."""

    def build(self, params: Iterable[Tensor], weight_decay: float, extra_decay: float) -> torch.optim.Optimizer:
        """A fresh optimizer; `extra_decay` is a method's own pull towards zero."""
        ...


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent; the paper's has no momentum."""

    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum is {self.momentum}, must be from 0 to below 1")
        if self.nesterov and not self.momentum:
            raise ConfigError("nesterov needs a momentum above 0")

    def build(self, params: Iterable[Tensor], weight_decay: float, extra_decay: float) -> torch.optim.Optimizer:
        """Both decays act as part of the gradient, after clipping."""
        decay = weight_decay + extra_decay
        return torch.optim.SGD(params, lr=0.0, momentum=self.momentum, nesterov=self.nesterov, weight_decay=decay)


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019, arXiv:1711.05101)."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, must be from 0 to below 1")
        if not self.eps > 0:
            raise ConfigError(f"eps is {self.eps}, must be above 0")

    def build(self, params: Iterable[Tensor], weight_decay: float, extra_decay: float) -> torch.optim.Optimizer:
        """A method's own decay belongs to its gradient, which Adam would rescale: refused."""
        if extra_decay:
            raise ConfigError("this algorithm puts part of its gradient into the decay; use training.optimizer=sgd")
        betas = (self.beta1, self.beta2)
        return torch.optim.AdamW(params, lr=0.0, betas=betas, eps=self.eps, weight_decay=weight_decay)


OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": Sgd, "adamw": AdamW}
