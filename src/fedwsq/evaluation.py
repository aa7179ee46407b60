"""How good a model is: loss and metric over a data set, per class, and for each client."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedwsq.core.errors import ConfigError, DataError
from fedwsq.training.losses import CROSS_ENTROPY, Criterion, OfOutputs


class Metric(OfOutputs):
    """An entry of METRICS: one value an example, [n] or [n, 1]; higher is better.

    Values are finite for finite outputs. One that is not, as of a model that has diverged, leaves
    the round without a mean.
    """

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The values, [n]; of another shape, a sum of them would be no sum over examples."""
        values: object = self(outputs, targets)
        n = len(targets)
        if isinstance(values, Tensor) and tuple(values.shape) in ((n,), (n, 1)):
            return values.reshape(n)
        found = type(values).__name__
        if isinstance(values, Tensor):
            found = f"a tensor of shape {list(values.shape)}"
        raise ConfigError(
            f"metric = {self.name} gave {found} for {n} examples; it must give one value an "
            f"example, a tensor of shape [{n}]: return (outputs.argmax(1) == targets).float(), "
            "not its mean"
        )


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where the largest logit is the target's."""
    return (outputs.argmax(dim=1) == targets).float()


def minus_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The negative squared error, for regression."""
    if outputs.numel() != targets.numel():
        raise ConfigError(
            "metric = minus_squared_error needs as many targets as outputs for each example, "
            f"but targets are {list(targets.shape)} and outputs {list(outputs.shape)}; "
            "use metric=accuracy where targets are classes"
        )
    errors = (outputs.reshape(targets.shape) - targets).square()
    return -errors.reshape(len(targets), -1).mean(dim=1)


METRICS: dict[str, Callable[..., Tensor]] = {
    "accuracy": accuracy,
    "minus_squared_error": minus_squared_error,
}
ACCURACY = Metric("accuracy", accuracy)
NO_CLASSES = torch.zeros(0, dtype=torch.int64)


@dataclass(frozen=True)
class Scoring:
    """What outputs are held against: the number of classes, the loss and the metric."""

    classes: int
    criterion: Criterion = CROSS_ENTROPY
    metric: Metric = ACCURACY


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
        """What each client would see on test data with its own mix of classes.

        `label_counts` are [clients, classes]. A client without examples has no mix and is left out,
        so that there may be none.
        """
        counts = label_counts[label_counts.sum(dim=1) > 0]
        shares = counts / counts.sum(dim=1, keepdim=True)
        return shares @ torch.tensor(self.per_class)


@torch.inference_mode()
def score(model: nn.Module, x: Tensor, y: Tensor, scoring: Scoring) -> Scores:
    """Score one batch of prepared input."""
    outputs = model(x).float()
    values = scoring.metric.each(outputs, y).double()
    loss = float(scoring.criterion(outputs, y))

    correct = NO_CLASSES
    count = NO_CLASSES
    # Only accuracy says of an example whether it is right, and only a label says of which class.
    if scoring.metric.name == "accuracy" and not y.is_floating_point():
        correct = torch.bincount(y[values > 0], minlength=scoring.classes).cpu()
        count = torch.bincount(y, minlength=scoring.classes).cpu()
    return Scores(len(y), float(values.sum()), loss * len(y), correct, count)


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


def worst_decile(accuracies: Tensor) -> float:
    """The mean accuracy of the worst tenth of the clients (at least one)."""
    worst = max(1, len(accuracies) // 10)
    return float(accuracies.sort().values[:worst].mean())


def moving_average(previous: float | None, value: float, keep: float = 0.9) -> float:
    """The paper's smoothed accuracy, e <- 0.9 e + 0.1 value, seeded with the first value."""
    if previous is None:
        return value
    return keep * previous + (1 - keep) * value
