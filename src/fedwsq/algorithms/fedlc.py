"""FedLC (Zhang et al., 2022, arXiv:2209.00189)."""

import math
from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from fedwsq.algorithms.base import require_cross_entropy
from fedwsq.algorithms.fedavg import FedAvg
from fedwsq.core.errors import ConfigError
from fedwsq.core.ranges import ABOVE_0_FINITE, require
from fedwsq.core.types import Params
from fedwsq.training import LocalTask, Loss, Training

Form = Literal["code", "paper"]


@dataclass(frozen=True)
class FedLC(FedAvg):
    """FedAvg with logits lowered by tau n_c^(-1/4), those of the client's rare classes the most.

    Classes that the client does not have are left out. `form = "code"` is the published code's
    softmax; in the "paper" form the denominator leaves out the true class.
    """

    tau: float = 1.0
    form: Form = "code"

    def __post_init__(self) -> None:
        require(ABOVE_0_FINITE, tau=self.tau)
        if self.form not in ("code", "paper"):
            raise ConfigError(f"form is {self.form!r}, must be 'code' or 'paper'")

    def check(self, model: nn.Module, training: Training) -> None:
        require_cross_entropy("fedlc", training)

    def objective(self, start: Params, task: LocalTask) -> Loss:
        counts = task.class_counts

        def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            return calibrated_cross_entropy(model(x).float(), y, counts, self.tau, self.form)

        return loss


def calibrated_cross_entropy(
    logits: Tensor, y: Tensor, counts: Tensor, tau: float = 1.0, form: Form = "code"
) -> Tensor:
    """Mean cross-entropy of `logits` [n, classes] lowered by tau counts^(-1/4).

    Only classes with a count above 0 take part. The paper's form has no lower bound. With a single
    class there is nothing to tell apart: 0 in both forms.
    """
    # A count of 0 has no power of -1/4; what stands in for it is left out with its class.
    present = counts > 0
    margins = tau * counts.clamp(min=1).to(logits.dtype) ** -0.25
    calibrated = (logits - margins).masked_fill(~present, -math.inf)
    if form == "code" or present.sum() < 2:
        return F.cross_entropy(calibrated, y)
    true = F.one_hot(y, logits.shape[1]).bool()
    others = calibrated.masked_fill(true, -math.inf)
    return (others.logsumexp(dim=1) - calibrated[true]).mean()
