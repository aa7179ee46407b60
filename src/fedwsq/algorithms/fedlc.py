"""FedLC (Zhang et al., 2022, arXiv:2209.00189)."""

import math
from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from fedwsq.algorithms.base import require_cross_entropy
from fedwsq.algorithms.fedavg import FedAvg
from fedwsq.core.errors import ConfigError
from fedwsq.core.tree import sub
from fedwsq.core.types import State, Update, Vectors
from fedwsq.training import LocalTask, Training

Form = Literal["code", "paper"]


@dataclass(frozen=True)
class FedLC(FedAvg):
    """FedAvg with logits lowered by tau n_c^(-1/4), rare classes of the client the most; absent classes are left out.

    `form = "code"` is the published code's softmax; in the "paper" form the denominator leaves out the true class.
    """

    tau: float = 1.0
    form: Form = "code"

    def __post_init__(self) -> None:
        if not 0 < self.tau < math.inf:
            raise ConfigError(f"tau is {self.tau}, must be above 0 and finite")
        if self.form not in ("code", "paper"):
            raise ConfigError(f"form is {self.form!r}, must be 'code' or 'paper'")

    def check(self, model: nn.Module, training: Training) -> None:
        """Its loss is made of cross-entropy."""
        require_cross_entropy("fedlc", training)

    def client_update(
        self, received: Vectors, client: State, task: LocalTask
    ) -> tuple[Update, State]:
        """Train with the calibrated cross-entropy."""
        counts = task.class_counts

        def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            return calibrated_cross_entropy(model(x).float(), y, counts, self.tau, self.form)

        trained = task.train(received["params"], loss=loss)
        return task.update(trained, delta=sub(trained.params, received["params"])), client


def calibrated_cross_entropy(
    logits: Tensor, y: Tensor, counts: Tensor, tau: float = 1.0, form: Form = "code"
) -> Tensor:
    """Mean cross-entropy of `logits` [n, classes] lowered by tau counts^(-1/4), over the classes with counts above 0.

    The paper's form has no lower bound. With a single class there is nothing to tell apart: 0 in both forms.
    """
    present = counts > 0
    margins = tau * counts.clamp(min=1).to(logits.dtype) ** -0.25
    calibrated = (logits - margins).masked_fill(~present, -math.inf)
    if form == "code" or present.sum() < 2:
        return F.cross_entropy(calibrated, y)
    true = F.one_hot(y, logits.shape[1]).bool()
    return (calibrated.masked_fill(true, -math.inf).logsumexp(dim=1) - calibrated[true]).mean()
