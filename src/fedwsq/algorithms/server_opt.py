"""What a server does with the mean update: add it, or take an optimizer's step along it."""

from dataclasses import dataclass
from typing import Protocol

from fedwsq.core.ranges import ABOVE_0, FROM_0_TO_1, require
from fedwsq.core.tree import add, axpy, scale, zeros_like
from fedwsq.core.types import Params, State


class ServerOptimizer(Protocol):
    """A frozen dataclass whose fields are its settings.

    What it remembers are vectors of the server's state, beside "params".
    """

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
        require(ABOVE_0, lr=self.lr)

    def init(self, params: Params) -> State:
        return {}

    def step(self, server: State, delta: Params) -> State:
        return {**server, "params": axpy(self.lr, delta, server["params"])}


@dataclass(frozen=True)
class Momentum:
    """m <- beta m + d, w <- w + m: FedAvgM (Hsu et al., 2019, arXiv:1909.06335).

    There is no factor of 1 - beta.
    """

    beta: float = 0.4

    def __post_init__(self) -> None:
        require(FROM_0_TO_1, beta=self.beta)

    def init(self, params: Params) -> State:
        return {"momentum": zeros_like(params)}

    def step(self, server: State, delta: Params) -> State:
        momentum = axpy(self.beta, server["momentum"], delta)
        return {**server, "momentum": momentum, "params": add(server["params"], momentum)}


@dataclass(frozen=True)
class Adam:
    """m and v as Adam's, w <- w + lr m / (sqrt(v) + tau): FedADAM (arXiv:2003.00295).

    By Reddi et al. (2021). v starts at tau^2, nothing is corrected for bias, and tau is outside the
    root.
    """

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 0.001

    def __post_init__(self) -> None:
        require(FROM_0_TO_1, beta1=self.beta1, beta2=self.beta2)
        require(ABOVE_0, lr=self.lr, tau=self.tau)

    def init(self, params: Params) -> State:
        zeros = zeros_like(params)
        squares = {name: x + self.tau**2 for name, x in zeros.items()}
        return {"first": zeros, "second": squares}

    def step(self, server: State, delta: Params) -> State:
        first = axpy(1 - self.beta1, delta, scale(self.beta1, server["first"]))

        squares = {name: d.square() for name, d in delta.items()}
        second = axpy(1 - self.beta2, squares, scale(self.beta2, server["second"]))

        step = {}
        for name, m in first.items():
            step[name] = m / (second[name].sqrt() + self.tau)
        params = axpy(self.lr, step, server["params"])
        return {**server, "first": first, "second": second, "params": params}


SERVER_OPTIMIZERS: dict[str, type[ServerOptimizer]] = {
    "plain": Plain,
    "momentum": Momentum,
    "adam": Adam,
}
