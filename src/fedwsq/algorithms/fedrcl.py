"""FedRCL (Seo et al., 2024, arXiv:2401.04928)."""

import math
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedwsq.algorithms.base import require_cross_entropy, require_stages
from fedwsq.algorithms.fedavg import FedAvg
from fedwsq.core.errors import ConfigError
from fedwsq.core.ranges import ABOVE_0_FINITE, FROM_0_FINITE, require
from fedwsq.core.types import Params
from fedwsq.models import Staged
from fedwsq.training import LocalTask, Loss, Training


@dataclass(frozen=True)
class FedRCL(FedAvg):
    """FedAvg with a contrastive loss at every level that does not let a class become a point.

    The loss is CE + the mean over levels of contrast + beta penalty; `threshold` is the paper's
    lambda. As in the published code each takes the hardest pairs of a sample only; the paper
    describes sums over all pairs.
    """

    tau: float = 0.05
    beta: float = 1.0
    threshold: float = 0.7

    def __post_init__(self) -> None:
        require(ABOVE_0_FINITE, tau=self.tau)
        require(FROM_0_FINITE, beta=self.beta)
        if not -1 <= self.threshold <= 1:
            raise ConfigError(f"threshold is {self.threshold}, must be a cosine, from -1 to 1")

    def check(self, model: nn.Module, training: Training) -> None:
        require_stages("fedrcl", model, "features", "resume")
        require_cross_entropy("fedrcl", training)

    def objective(self, start: Params, task: LocalTask) -> Loss:
        def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            staged = cast(Staged, model)
            features = staged.features(x)
            logits = staged.resume(len(features) - 1, features[-1]).float()
            contrasts = []
            penalties = []
            for feature in features:
                vectors = spatial_mean(feature.float())
                parts = relaxed_contrastive(vectors, y, self.tau, self.threshold)
                contrasts.append(parts[0])
                penalties.append(parts[1])
            contrast = torch.stack(contrasts).mean()
            penalty = torch.stack(penalties).mean()
            return F.cross_entropy(logits, y) + contrast + self.beta * penalty

        return loss


def relaxed_contrastive(
    features: Tensor, y: Tensor, tau: float = 0.05, threshold: float = 0.7
) -> tuple[Tensor, Tensor]:
    """Batch means of contrast and penalty for `features` [n, d], by cosine similarities s.

    Contrast: -log softmax of the least similar sample of the class (maybe itself) against the two
    most similar samples of others. Penalty: log(1 + exp((s - 1) / tau)) for the least similar other
    sample of the class, if s is at least `threshold`.
    """
    with torch.autocast(features.device.type, enabled=False):  # similarities in full precision
        norms = features.norm(dim=1, keepdim=True)
        # A vector too short to have a direction is left as it is: dividing it would blow up its
        # gradient.
        unit = features / torch.where(norms > 1e-6, norms, 1.0)
        similarity = unit @ unit.T
    itself = torch.eye(len(y), dtype=torch.bool, device=y.device)
    same = y[:, None] == y
    similarity = similarity.masked_fill(itself, 1.0)

    # min and the stable sort take the lowest index of a tie; a missing partner is an infinity that
    # counts for nothing.
    positive = similarity.masked_fill(~same, math.inf).min(dim=1, keepdim=True).values
    strangers = similarity.masked_fill(same, -math.inf)
    negatives = strangers.sort(dim=1, descending=True, stable=True).values[:, :2]
    all_three = torch.cat([positive, negatives], dim=1).div(tau)
    contrast = all_three.logsumexp(dim=1) - positive[:, 0] / tau

    sibling = similarity.masked_fill(~same | itself, math.inf).min(dim=1).values
    relaxed = (sibling < threshold) | sibling.isinf()
    penalty = F.softplus((sibling.masked_fill(relaxed, -1.0) - 1) / tau)
    return contrast.mean(), penalty.mean()


def spatial_mean(feature: Tensor) -> Tensor:
    """[n, channels, ...] to [n, channels]."""
    if feature.dim() <= 2:
        return feature
    return feature.flatten(2).mean(dim=2)
