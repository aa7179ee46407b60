"""FedProx (Li et al., 2020, arXiv:1812.06127)."""

from dataclasses import dataclass
from typing import Literal, get_args

from fedwsq.algorithms.fedavg import FedAvg
from fedwsq.core.errors import ConfigError
from fedwsq.core.tree import axpy, sub
from fedwsq.core.types import Params, State, Update, Vectors
from fedwsq.training import LocalTask
from fedwsq.training.local import Direction, Gradient

Prox = Literal["code", "half"]


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a pull towards the received model.

    `prox = "code"` is the published code's mu |w - sent|^2; "half" is the paper's, with mu / 2.
    """

    mu: float = 0.001
    prox: Prox = "code"

    def __post_init__(self) -> None:
        require_prox(self.prox)
        if not self.mu >= 0:
            raise ConfigError(f"mu is {self.mu}, must not be negative")

    def client_update(
        self, received: Vectors, client: State, task: LocalTask
    ) -> tuple[Update, State]:
        """Train with the proximal term in the gradient, where it is clipped with the rest."""
        start = received["params"]
        trained = task.train(start, direction=proximal(start, self.mu, self.prox))
        return task.update(trained, delta=sub(trained.params, start)), client


def require_prox(prox: str) -> None:
    """Raise `ConfigError` unless it is one of `Prox`."""
    if prox not in get_args(Prox):
        raise ConfigError(f"prox is {prox!r}; it can be {', '.join(get_args(Prox))}")


def proximal(start: Params, mu: float, prox: Prox) -> Direction:
    """The gradient plus that of the proximal term, 2 mu (w - start); the paper has half of it."""
    # The gradient of mu |w - start|^2 is 2 mu (w - start).
    factor = 2 * mu if prox == "code" else mu

    def direction(params: Params, gradient: Gradient) -> Params:
        return axpy(factor, sub(params, start), gradient(params))

    return direction
