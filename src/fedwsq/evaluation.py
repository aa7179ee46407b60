"""How good a model is: loss and metric over a data set, per class, and for each client's own mix of classes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedwsq.core.errors import ConfigError, DataError
from fedwsq.core.recipe import Recipe
from fedwsq.training.losses import CRITERIA, Criterion


class Metric(Recipe):
    """An entry of METRICS: a value for each example, of the model's outputs and the targets; higher is better."""

    context = ("outputs", "targets")

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:  # type: ignore[override]
        """One value an example, [n]."""
        value: Tensor = self.function(outputs, targets, **self.options)
        return value


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where the largest logit is the target's."""
    return (outputs.argmax(dim=1) == targets).float()


def minus_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The negative squared error, for regression."""
    if outputs.numel() != targets.numel():
        raise ConfigError(
            f"metric = minus_squared_error needs as many targets as outputs for each example, but targets are "
            f"{list(targets.shape)} and outputs {list(outputs.shape)}; use metric=accuracy where targets are classes"
        )
    return (
        -(outputs.reshape(targets.shape) - targets).square().reshape(len(targets), -1).mean(dim=1)
    )


METRICS: dict[str, Callable[..., Tensor]] = {
    "accuracy": accuracy,
    "minus_squared_error": minus_squared_error,
}
CROSS_ENTROPY = Criterion("cross_entropy", CRITERIA["cross_entropy"])
ACCURACY = Metric("accuracy", METRICS["accuracy"])


@dataclass(frozen=True)
class Scores:
    """Sums that add up: a data set may be scored in pieces, in any order, by anyone."""

    examples: int
    value_sum: float  # of the metric
    loss_sum: float
    correct: Tensor  # int64 [classes], empty where targets are not classes
    count: Tensor  # int64 [classes]

    @property
    def value(self) -> float:
        """The mean of the metric: accuracy, 0 to 1, unless the plan names another."""
        return self.value_sum / max(1, self.examples)

    @property
    def loss(self) -> float:
        """The mean of the criterion."""
        return self.loss_sum / max(1, self.examples)

    @property
    def per_class(self) -> list[float]:
        """Accuracy of each class; 0 for a class without examples."""
        return (self.correct / self.count.clamp(min=1)).tolist()

    def per_client(self, label_counts: Tensor) -> Tensor:
        """What each client would see on test data with its own mix of classes, from [clients, classes] counts."""
        shares = label_counts / label_counts.sum(dim=1, keepdim=True).clamp(min=1)
        return shares @ torch.tensor(self.per_class)


@torch.inference_mode()
def score(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    classes: int,
    criterion: Criterion = CROSS_ENTROPY,
    metric: Metric = ACCURACY,
) -> Scores:
    """Score one batch of prepared input."""
    outputs = model(x).float()
    values = metric(outputs, y).double()
    empty = torch.zeros(0, dtype=torch.int64)
    labelled = metric.name == "accuracy" and not y.is_floating_point()
    return Scores(
        len(y),
        float(values.sum()),
        float(criterion(outputs, y)) * len(y),
        torch.bincount(y[values > 0], minlength=classes).cpu() if labelled else empty,
        torch.bincount(y, minlength=classes).cpu() if labelled else empty,
    )


def total(pieces: Iterable[Scores]) -> Scores:
    """All pieces together, added in the order given."""
    pieces = list(pieces)
    if not pieces:
        raise DataError("the data set has no test examples; hold some out with data.validation=0.1")
    return Scores(
        sum(piece.examples for piece in pieces),
        sum(piece.value_sum for piece in pieces),
        sum(piece.loss_sum for piece in pieces),
        torch.stack([piece.correct for piece in pieces]).sum(dim=0),
        torch.stack([piece.count for piece in pieces]).sum(dim=0),
    )


def by_client(pieces: Sequence[Scores], owners: Tensor) -> Tensor:
    """The mean of the metric for each client that owns a piece or more, in client order."""
    values = torch.tensor([piece.value_sum for piece in pieces], dtype=torch.float64)
    examples = torch.bincount(
        owners, torch.tensor([piece.examples for piece in pieces], dtype=torch.float64)
    )
    return (torch.bincount(owners, values) / examples)[examples > 0]


def worst_decile(accuracies: Tensor) -> float:
    """The mean accuracy of the worst tenth of the clients (at least one)."""
    worst = max(1, len(accuracies) // 10)
    return float(accuracies.sort().values[:worst].mean())


def moving_average(previous: float | None, value: float, keep: float = 0.9) -> float:
    """The paper's smoothed accuracy, e <- 0.9 e + 0.1 value, seeded with the first value."""
    return value if previous is None else keep * previous + (1 - keep) * value
