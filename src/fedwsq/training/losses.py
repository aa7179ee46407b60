"""What training minimizes: a criterion on the model's outputs, or a loss that may look inside the model."""

from collections.abc import Callable
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor, nn

from fedwsq.core.recipe import Recipe


class Loss(Protocol):
    """A scalar to minimize."""

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, /) -> Tensor:
        """The mean loss over the batch."""
        ...


class Criterion(Recipe):
    """An entry of CRITERIA: a mean over the batch, of the model's outputs and the targets."""

    context = ("outputs", "targets")

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:  # type: ignore[override]
        """The mean over the batch."""
        value: Tensor = self.function(outputs, targets, **self.options)
        return value


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
