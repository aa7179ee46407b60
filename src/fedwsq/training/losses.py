"""Losses: functions of the model and a batch, so that a method may look inside the model."""

from typing import Protocol

import torch.nn.functional as F
from torch import Tensor, nn


class Loss(Protocol):
    """A scalar to minimize."""

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, /) -> Tensor:
        """The mean loss over the batch."""
        ...


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Softmax cross-entropy of the model's logits, in float32 whatever the model computes in."""
    return F.cross_entropy(model(x).float(), y)
