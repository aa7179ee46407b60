"""FedNTD (Lee et al., 2022, arXiv:2106.03097)."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedwsq.algorithms.base import require_cross_entropy
from fedwsq.algorithms.fedavg import FedAvg
from fedwsq.core.errors import ConfigError
from fedwsq.core.ranges import ABOVE_0_FINITE, FROM_0_FINITE, require
from fedwsq.core.types import Params
from fedwsq.training import LocalTask, Loss, Training


@dataclass(frozen=True)
class FedNTD(FedAvg):
    """FedAvg that keeps what the received model says about the classes that are not the true one.

    `form = "code"` is the FedACG code's (1 - beta) CE + beta L; "official" the authors' own
    CE + beta tau^2 L.
    """

    tau: float = 1.0
    beta: float = 0.3
    form: Literal["code", "official"] = "code"

    def __post_init__(self) -> None:
        require(ABOVE_0_FINITE, tau=self.tau)
        if self.form not in ("code", "official"):
            raise ConfigError(f"form is {self.form!r}, must be 'code' or 'official'")
        require(FROM_0_FINITE, beta=self.beta)
        if self.form == "code" and self.beta > 1:
            raise ConfigError(
                f"beta is {self.beta}, must be from 0 to 1 in (1 - beta) CE + beta L; "
                "or form='official'"
            )

    def check(self, model: nn.Module, training: Training) -> None:
        require_cross_entropy("fedntd", training)

    def objective(self, start: Params, task: LocalTask) -> Loss:
        frozen = task.frozen(start)
        ce_weight = 1 - self.beta
        ntd_weight = self.beta
        if self.form == "official":
            ce_weight = 1.0
            ntd_weight = self.beta * self.tau**2

        def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            logits = model(x).float()
            with torch.no_grad():
                reference = frozen(x).float()
            distillation = not_true_distillation(logits, reference, y, self.tau)
            return ce_weight * F.cross_entropy(logits, y) + ntd_weight * distillation

        return loss


def not_true_distillation(local: Tensor, frozen: Tensor, y: Tensor, tau: float = 1.0) -> Tensor:
    """Batch mean of KL(frozen || local) between softmaxes that leave out the true class.

    Both logits are [n, classes]; tau is the temperature; `frozen` gets no gradient. With two
    classes only one is left: 0.
    """
    # [n, classes - 1], every class but y: those below it as they are, the others one further on.
    others = torch.arange(local.shape[1] - 1, device=y.device)
    others = others + (others >= y[:, None])
    p = F.log_softmax(frozen.detach().gather(1, others) / tau, dim=1)
    q = F.log_softmax(local.gather(1, others) / tau, dim=1)
    return F.kl_div(q, p, reduction="batchmean", log_target=True)
