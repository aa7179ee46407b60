"""What a server does with the mean update: add it, or treat it as a gradient and take an optimizer's step."""

from dataclasses import dataclass
from typing import Protocol

from fedwsq.core.errors import ConfigError
from fedwsq.core.tree import add, axpy, scale, zeros_like
from fedwsq.core.types import Params, State


class ServerOptimizer(Protocol):
    """A frozen dataclass whose fields are its settings; its memory is vectors of the server's state."""

    def init(self, params: Params) -> State:
        """The memory before the first round."""
        ...

    def step(self, server: State, delta: Params) -> State:
        """The server's state after moving "params" by the mean update."""
        ...


@dataclass(frozen=True)
class Plain:
    """w <- w + lr d."""

    lr: float = 1.0

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise ConfigError(f"lr is {self.lr}, must be above 0")

    def init(self, params: Params) -> State:
        """Nothing to remember."""
        return {}

    def step(self, server: State, delta: Params) -> State:
        """Add the update."""
        return {**server, "params": axpy(self.lr, delta, server["params"])}


@dataclass(frozen=True)
class Momentum:
    """m <- beta m + d, w <- w + m: FedAvgM (Hsu et al., 2019, arXiv:1909.06335), without a (1 - beta) factor."""

    beta: float = 0.4

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 1:
            raise ConfigError(f"beta is {self.beta}, must be from 0 to below 1")

    def init(self, params: Params) -> State:
        """m = 0."""
        return {"momentum": zeros_like(params)}

    def step(self, server: State, delta: Params) -> State:
        """Move by the momentum."""
        momentum = axpy(self.beta, server["momentum"], delta)
        return {**server, "momentum": momentum, "params": add(server["params"], momentum)}


@dataclass(frozen=True)
class Adam:
    """m and v as Adam's, w <- w + lr m / (sqrt(v) + tau): FedADAM (Reddi et al., 2021, arXiv:2003.00295).

    v starts at tau^2, nothing is corrected for bias, and tau is outside the root.
    """

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 0.001

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, must be from 0 to below 1")
        for name in ("lr", "tau"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, must be above 0")

    def init(self, params: Params) -> State:
        """m = 0, v = tau^2."""
        zeros = zeros_like(params)
        return {"first": zeros, "second": {name: x + self.tau**2 for name, x in zeros.items()}}

    def step(self, server: State, delta: Params) -> State:
        """Move by the normalised momentum, element by element."""
        first = axpy(1 - self.beta1, delta, scale(self.beta1, server["first"]))
        squares = {name: d.square() for name, d in delta.items()}
        second = axpy(1 - self.beta2, squares, scale(self.beta2, server["second"]))
        step = {name: m / (second[name].sqrt() + self.tau) for name, m in first.items()}
        return {
            **server,
            "first": first,
            "second": second,
            "params": axpy(self.lr, step, server["params"]),
        }


SERVER_OPTIMIZERS: dict[str, type[ServerOptimizer]] = {
    "plain": Plain,
    "momentum": Momentum,
    "adam": Adam,
}
