"""FedNTD (Lee et al., 2022, arXiv:2106.03097)."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedwsq.algorithms.base import require_cross_entropy
from fedwsq.algorithms.fedavg import FedAvg
from fedwsq.core.errors import ConfigError
from fedwsq.core.tree import sub
from fedwsq.core.types import State, Update, Vectors
from fedwsq.training import LocalTask, Training


@dataclass(frozen=True)
class FedNTD(FedAvg):
    """FedAvg that keeps what the received model says about the classes that are not the true one.

    `form = "code"` is the FedACG code's (1 - beta) CE + beta L; "official" the authors' CE + beta tau^2 L.
    """

    tau: float = 1.0
    beta: float = 0.3
    form: Literal["code", "official"] = "code"

    def __post_init__(self) -> None:
        if not 0 < self.tau < math.inf:
            raise ConfigError(f"tau is {self.tau}, must be above 0 and finite")
        if self.form not in ("code", "official"):
            raise ConfigError(f"form is {self.form!r}, must be 'code' or 'official'")
        if not 0 <= self.beta < math.inf:
            raise ConfigError(f"beta is {self.beta}, must be finite and not negative")
        if self.form == "code" and self.beta > 1:
            raise ConfigError(
                f"beta is {self.beta}, must be from 0 to 1 in (1 - beta) CE + beta L; or form='official'"
            )

    def check(self, model: nn.Module, training: Training) -> None:
        """Its loss is made of cross-entropy."""
        require_cross_entropy("fedntd", training)

    def client_update(
        self, received: Vectors, client: State, task: LocalTask
    ) -> tuple[Update, State]:
        """Train with cross-entropy and distillation from the received model."""
        frozen = task.frozen(received["params"])
        code = self.form == "code"
        ce_weight, ntd_weight = (
            (1 - self.beta, self.beta) if code else (1.0, self.beta * self.tau**2)
        )

        def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            logits = model(x).float()
            with torch.no_grad():
                reference = frozen(x).float()
            distillation = not_true_distillation(logits, reference, y, self.tau)
            return ce_weight * F.cross_entropy(logits, y) + ntd_weight * distillation

        trained = task.train(received["params"], loss=loss)
        return task.update(trained, delta=sub(trained.params, received["params"])), client


def not_true_distillation(local: Tensor, frozen: Tensor, y: Tensor, tau: float = 1.0) -> Tensor:
    """Batch mean of KL(frozen || local) between softmaxes at temperature tau that leave out the true class.

    Both logits are [n, classes]; `frozen` gets no gradient. With two classes only one is left: 0.
    """
    others = torch.arange(local.shape[1] - 1, device=y.device)
    others = others + (others >= y[:, None])  # [n, classes - 1]: every class but y
    p, q = (
        F.log_softmax(logits.gather(1, others) / tau, dim=1) for logits in (frozen.detach(), local)
    )
    return F.kl_div(q, p, reduction="batchmean", log_target=True)
