"""FedMLB (Kim et al., 2022, arXiv:2207.06936)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedwsq.algorithms.base import require_cross_entropy, require_stages
from fedwsq.algorithms.fedavg import FedAvg
from fedwsq.core.errors import ConfigError
from fedwsq.core.tree import sub
from fedwsq.core.types import State, Update, Vectors
from fedwsq.models import Staged
from fedwsq.training import LocalTask, Training


@dataclass(frozen=True)
class FedMLB(FedAvg):
    """FedAvg with a branch at every level: local features up to there, the received model, frozen, from there on.

    The loss is CE + lambda1 (the branches' mean CE) + lambda2 (their mean KL to the local model).
    """

    tau: float = 1.0
    lambda1: float = 1.0
    lambda2: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.tau < math.inf:
            raise ConfigError(f"tau is {self.tau}, must be above 0 and finite")
        for name in ("lambda1", "lambda2"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(
                    f"{name} is {getattr(self, name)}, must be finite and not negative"
                )

    def check(self, model: nn.Module, training: Training) -> None:
        """The model must be one that can be cut."""
        require_stages("fedmlb", model, "features", "resume")
        require_cross_entropy("fedmlb", training)

    def client_update(
        self, received: Vectors, client: State, task: LocalTask
    ) -> tuple[Update, State]:
        """Train with the branches' losses."""
        frozen = cast(Staged, task.frozen(received["params"]))

        def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            staged = cast(Staged, model)
            features = staged.features(x)
            logits = staged.resume(len(features) - 1, features[-1]).float()
            branches = [
                frozen.resume(level, feature).float() for level, feature in enumerate(features)
            ]
            entropy, divergence = branch_losses(logits, branches, y, self.tau)
            return F.cross_entropy(logits, y) + self.lambda1 * entropy + self.lambda2 * divergence

        trained = task.train(received["params"], loss=loss)
        return task.update(trained, delta=sub(trained.params, received["params"])), client


def branch_losses(
    logits: Tensor, branches: Sequence[Tensor], y: Tensor, tau: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Means over the branches' logits of their cross-entropy and of KL(branch || local) at temperature tau.

    Gradients flow into both sides of the divergence, as in the published code, which does not multiply by tau^2 either.
    """
    local = F.log_softmax(logits / tau, dim=1)
    entropies = [F.cross_entropy(branch, y) for branch in branches]
    divergences = [
        F.kl_div(local, F.log_softmax(branch / tau, dim=1), reduction="batchmean", log_target=True)
        for branch in branches
    ]
    return torch.stack(entropies).mean(), torch.stack(divergences).mean()
