"""FedMLB (Kim et al., 2022, arXiv:2207.06936)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedwsq.algorithms.base import require_cross_entropy, require_stages
from fedwsq.algorithms.fedavg import FedAvg
from fedwsq.core.ranges import ABOVE_0_FINITE, FROM_0_FINITE, require
from fedwsq.core.types import Params
from fedwsq.models import Staged
from fedwsq.training import LocalTask, Loss, Training


@dataclass(frozen=True)
class FedMLB(FedAvg):
    """FedAvg with a branch at every level: the local model up to there, the received one after it.

    The received one is frozen. The loss is CE + lambda1 (the branches' mean CE) + lambda2 (their
    mean KL to the local model).
    """

    tau: float = 1.0
    lambda1: float = 1.0
    lambda2: float = 1.0

    def __post_init__(self) -> None:
        require(ABOVE_0_FINITE, tau=self.tau)
        require(FROM_0_FINITE, lambda1=self.lambda1, lambda2=self.lambda2)

    def check(self, model: nn.Module, training: Training) -> None:
        require_stages("fedmlb", model, "features", "resume")
        require_cross_entropy("fedmlb", training)

    def objective(self, start: Params, task: LocalTask) -> Loss:
        frozen = cast(Staged, task.frozen(start))

        def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            staged = cast(Staged, model)
            features = staged.features(x)
            logits = staged.resume(len(features) - 1, features[-1]).float()
            # Frozen parameters do not learn, but gradients pass through them to the local features.
            branches = [frozen.resume(level, f).float() for level, f in enumerate(features)]
            entropy, divergence = branch_losses(logits, branches, y, self.tau)
            return F.cross_entropy(logits, y) + self.lambda1 * entropy + self.lambda2 * divergence

        return loss


def branch_losses(
    logits: Tensor, branches: Sequence[Tensor], y: Tensor, tau: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Means over the branches' logits of their cross-entropy and of KL(branch || local).

    tau is the temperature of the divergence. Gradients flow into both of its sides, as in the
    published code, which does not multiply by tau^2 either.
    """
    local = F.log_softmax(logits / tau, dim=1)
    entropies = []
    divergences = []
    for branch in branches:
        entropies.append(F.cross_entropy(branch, y))
        frozen = F.log_softmax(branch / tau, dim=1)
        divergences.append(F.kl_div(local, frozen, reduction="batchmean", log_target=True))
    return torch.stack(entropies).mean(), torch.stack(divergences).mean()
