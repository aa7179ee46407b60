"""What training minimizes: a criterion on outputs, or a loss that may look inside the model."""

from collections.abc import Callable
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor, nn

from fedwsq.core.recipe import Recipe


class Loss(Protocol):
    """A scalar to minimize; it may call the model as often as it likes."""

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, /) -> Tensor:
        """The mean over the batch, in float32 whatever the model computes in."""
        ...


class OfOutputs(Recipe):
    """A function of a model's outputs and the targets, with its settings."""

    context = ("outputs", "targets")

    # Called at every step: the signature, which `Recipe` reads at each call, is known here.
    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:  # type: ignore[override]
        value: Tensor = self.function(outputs, targets, **self.options)
        return value


class Criterion(OfOutputs):
    """An entry of CRITERIA: what is minimized, a mean over the batch."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Softmax cross-entropy of logits."""
    return F.cross_entropy(outputs, targets)


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean squared error, for regression."""
    return F.mse_loss(outputs.reshape(targets.shape), targets)


CRITERIA: dict[str, Callable[..., Tensor]] = {
    "cross_entropy": cross_entropy,
    "squared_error": squared_error,
}
CROSS_ENTROPY = Criterion("cross_entropy", cross_entropy)
