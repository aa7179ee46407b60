"""FedWon (Zhuang and Lyu, 2024, arXiv:2306.05879): FedAvg of a network without norms."""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from fedwsq.algorithms.fedavg import FedAvg
from fedwsq.core.errors import ConfigError
from fedwsq.core.tree import sub
from fedwsq.core.types import State, Update, Vectors
from fedwsq.models.scaled import ScaledWSLayer, exchange_standardized
from fedwsq.training import LocalTask, Training


@dataclass(frozen=True)
class FedWon(FedAvg):
    """FedAvg on scaled weight standardization, without norms; gains travel like any parameter.

    `exchange = "psp"` averages the raw weights that the layers store. With "wsp" clients send the
    standardized ones, without gain and gamma, as the FedWSQ paper says FedWon does.
    """

    exchange: Literal["psp", "wsp"] = "psp"

    def __post_init__(self) -> None:
        if self.exchange not in ("psp", "wsp"):
            raise ConfigError(
                f'fedwon exchange = "{self.exchange}" is unknown; it is "psp" or "wsp"'
            )

    def check(self, model: nn.Module, training: Training) -> None:
        if not any(isinstance(layer, ScaledWSLayer) for layer in model.modules()):
            raise ConfigError("fedwon needs model.standardize=scaled")

    def client_update(
        self, received: Vectors, client: State, task: LocalTask
    ) -> tuple[Update, State]:
        """delta = local - received; the local weights are standardized if such are exchanged."""
        start = received["params"]
        trained = task.train(start)
        local = trained.params
        if self.exchange == "wsp":
            local = exchange_standardized(task.model, local)
        return task.update(trained, delta=sub(local, start)), client
