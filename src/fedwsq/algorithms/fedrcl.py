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
from fedwsq.core.tree import sub
from fedwsq.core.types import State, Update, Vectors
from fedwsq.models import Staged
from fedwsq.training import LocalTask, Training


@dataclass(frozen=True)
class FedRCL(FedAvg):
    """FedAvg with a contrastive loss at every level that does not let a class collapse into a point.

    The loss is CE + the mean over levels of contrast + beta penalty; `threshold` is the paper's lambda. As in the
    published code each takes the hardest pairs of a sample only; the paper describes sums over all pairs.
    """

    tau: float = 0.05
    beta: float = 1.0
    threshold: float = 0.7

    def __post_init__(self) -> None:
        if not 0 < self.tau < math.inf:
            raise ConfigError(f"tau is {self.tau}, must be above 0 and finite")
        if not 0 <= self.beta < math.inf:
            raise ConfigError(f"beta is {self.beta}, must be finite and not negative")
        if not -1 <= self.threshold <= 1:
            raise ConfigError(f"threshold is {self.threshold}, must be a cosine, from -1 to 1")

    def check(self, model: nn.Module, training: Training) -> None:
        """The model must show its features."""
        require_stages("fedrcl", model, "features", "resume")
        require_cross_entropy("fedrcl", training)

    def client_update(
        self, received: Vectors, client: State, task: LocalTask
    ) -> tuple[Update, State]:
        """Train with the contrastive losses of all levels."""

        def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            staged = cast(Staged, model)
            features = staged.features(x)
            logits = staged.resume(len(features) - 1, features[-1]).float()
            levels = [
                relaxed_contrastive(spatial_mean(f.float()), y, self.tau, self.threshold)
                for f in features
            ]
            contrast, penalty = (torch.stack(parts).mean() for parts in zip(*levels, strict=True))
            return F.cross_entropy(logits, y) + contrast + self.beta * penalty

        trained = task.train(received["params"], loss=loss)
        return task.update(trained, delta=sub(trained.params, received["params"])), client


def relaxed_contrastive(
    features: Tensor, y: Tensor, tau: float = 0.05, threshold: float = 0.7
) -> tuple[Tensor, Tensor]:
    """Batch means of contrast and penalty for `features` [n, d], by cosine similarities s.

    Contrast: -log softmax of the least similar sample of the class (maybe itself) against the two most similar others.
    Penalty: log(1 + exp((s - 1) / tau)) for the least similar other sample of the class, if s is at least `threshold`.
    """
    with torch.autocast(features.device.type, enabled=False):  # similarities in full precision
        norms = features.norm(dim=1, keepdim=True)
        # A vector too short to have a direction is left as it is: dividing would blow up its gradient.
        unit = features / torch.where(norms > 1e-6, norms, 1.0)
        similarity = unit @ unit.T
    itself = torch.eye(len(y), dtype=torch.bool, device=y.device)
    same = y[:, None] == y
    similarity = similarity.masked_fill(itself, 1.0)
    # min and the stable sort take the lowest index of a tie; a missing partner is an infinity that counts for nothing.
    positive = similarity.masked_fill(~same, math.inf).min(dim=1, keepdim=True).values
    negatives = (
        similarity.masked_fill(same, -math.inf)
        .sort(dim=1, descending=True, stable=True)
        .values[:, :2]
    )
    contrast = (
        torch.cat([positive, negatives], dim=1).div(tau).logsumexp(dim=1) - positive[:, 0] / tau
    )
    sibling = similarity.masked_fill(~same | itself, math.inf).min(dim=1).values
    relaxed = (sibling < threshold) | sibling.isinf()
    penalty = F.softplus((sibling.masked_fill(relaxed, -1.0) - 1) / tau)
    return contrast.mean(), penalty.mean()


def spatial_mean(feature: Tensor) -> Tensor:
    """[n, channels, ...] to [n, channels]."""
    return feature.flatten(2).mean(dim=2) if feature.dim() > 2 else feature
