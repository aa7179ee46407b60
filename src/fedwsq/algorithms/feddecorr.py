"""FedDecorr (Shi et al., 2023, arXiv:2210.00226)."""

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedwsq.algorithms.base import require_cross_entropy, require_stages
from fedwsq.algorithms.fedavg import FedAvg
from fedwsq.core.ranges import FROM_0_FINITE, require
from fedwsq.core.types import Params
from fedwsq.models import Staged
from fedwsq.training import LocalTask, Loss, Training


@dataclass(frozen=True)
class FedDecorr(FedAvg):
    """FedAvg with a penalty on correlations between the features that the classifier sees.

    As published the penalty grows with the batch size, so that beta belongs to batches of about 50
    examples.
    """

    beta: float = 0.01

    def __post_init__(self) -> None:
        require(FROM_0_FINITE, beta=self.beta)

    def check(self, model: nn.Module, training: Training) -> None:
        require_stages("feddecorr", model, "pooled", "head")
        require_cross_entropy("feddecorr", training)

    def objective(self, start: Params, task: LocalTask) -> Loss:
        def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            staged = cast(Staged, model)
            pooled = staged.pooled(x)
            entropy = F.cross_entropy(staged.head(pooled).float(), y)
            return entropy + self.beta * decorrelation(pooled.float())

        return loss


def decorrelation(features: Tensor) -> Tensor:
    """Mean square of the off-diagonal entries of Z^T Z, divided by n.

    Z are the standardized columns of `features` [n, d], so this is about (n - 1)^2 / n times the
    mean squared correlation. Constant columns count as uncorrelated; one row gives 0.
    """
    n, d = features.shape
    if n < 2 or d < 2:
        return features.new_zeros(())
    with torch.autocast(features.device.type, enabled=False):  # the product in full precision
        centred = features - features.mean(dim=0)
        z = centred / (1e-8 + features.var(dim=0)).sqrt()  # 1e-8: the published code
        above = (z.T @ z).triu(1)  # half of the off-diagonal entries
        return 2 * above.square().sum() / (d * (d - 1) * n)
