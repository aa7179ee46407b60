"""How good a model is: loss and accuracy over a data set, per class, and for each client's own mix of classes."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Scores:
    """Counts that add up: a data set may be scored in pieces, in any order, by anyone."""

    correct: Tensor  # int64 [classes]
    count: Tensor  # int64 [classes]
    loss_sum: float

    @property
    def accuracy(self) -> float:
        """The share of examples classified right, 0 to 1."""
        return int(self.correct.sum()) / max(1, int(self.count.sum()))

    @property
    def loss(self) -> float:
        """Mean cross-entropy."""
        return self.loss_sum / max(1, int(self.count.sum()))

    @property
    def per_class(self) -> list[float]:
        """Accuracy of each class; 0 for a class without examples."""
        return (self.correct / self.count.clamp(min=1)).tolist()

    def per_client(self, label_counts: Tensor) -> Tensor:
        """What each client would see on test data with its own mix of classes, from [clients, classes] counts."""
        shares = label_counts / label_counts.sum(dim=1, keepdim=True).clamp(min=1)
        return shares @ torch.tensor(self.per_class)


@torch.inference_mode()
def score(model: nn.Module, x: Tensor, y: Tensor, classes: int) -> Scores:
    """Score one batch of prepared input."""
    logits = model(x).float()
    right = logits.argmax(dim=1) == y
    return Scores(
        torch.bincount(y[right], minlength=classes).cpu(),
        torch.bincount(y, minlength=classes).cpu(),
        float(F.cross_entropy(logits, y, reduction="sum")),
    )


def total(pieces: Iterable[Scores]) -> Scores:
    """All pieces together, added in the order given."""
    first, *others = pieces
    correct, count, loss_sum = first.correct, first.count, first.loss_sum
    for piece in others:
        correct, count, loss_sum = correct + piece.correct, count + piece.count, loss_sum + piece.loss_sum
    return Scores(correct, count, loss_sum)


def worst_decile(accuracies: Tensor) -> float:
    """The mean accuracy of the worst tenth of the clients (at least one)."""
    worst = max(1, len(accuracies) // 10)
    return float(accuracies.sort().values[:worst].mean())


def moving_average(previous: float | None, value: float, keep: float = 0.9) -> float:
    """The paper's smoothed accuracy, e <- 0.9 e + 0.1 value, seeded with the first value."""
    return value if previous is None else keep * previous + (1 - keep) * value
