"""FedDecorr (Shi et al., 2023, arXiv:2210.00226)."""

import math
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
class FedDecorr(FedAvg):
    """FedAvg with a penalty on correlations between the features that the classifier sees.

    As published the penalty grows with the batch size, so that beta belongs to batches of about 50 examples.
    """

    beta: float = 0.01

    def __post_init__(self) -> None:
        if not 0 <= self.beta < math.inf:
            raise ConfigError(f"beta is {self.beta}, must be finite and not negative")

    def check(self, model: nn.Module, training: Training) -> None:
        """The model must show the features before its head."""
        require_stages("feddecorr", model, "pooled", "head")
        require_cross_entropy("feddecorr", training)

    def client_update(
        self, received: Vectors, client: State, task: LocalTask
    ) -> tuple[Update, State]:
        """Train with CE + beta times the penalty."""

        def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            staged = cast(Staged, model)
            pooled = staged.pooled(x)
            return F.cross_entropy(staged.head(pooled).float(), y) + self.beta * decorrelation(
                pooled.float()
            )

        trained = task.train(received["params"], loss=loss)
        return task.update(trained, delta=sub(trained.params, received["params"])), client


def decorrelation(features: Tensor) -> Tensor:
    """Mean square of the off-diagonal entries of Z^T Z, divided by n, for Z the standardized columns of [n, d].

    About (n - 1)^2 / n times the mean squared correlation. Constant columns count as uncorrelated; one row gives 0.
    """
    n, d = features.shape
    if n < 2 or d < 2:
        return features.new_zeros(())
    with torch.autocast(features.device.type, enabled=False):  # the product in full precision
        z = (features - features.mean(dim=0)) / (
            1e-8 + features.var(dim=0)
        ).sqrt()  # 1e-8: the published code
        return 2 * (z.T @ z).triu(1).square().sum() / (d * (d - 1) * n)
