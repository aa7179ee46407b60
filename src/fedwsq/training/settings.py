"""The settings of local work, and the learning rates that follow from them."""

import math
from dataclasses import dataclass
from typing import Literal

from fedwsq.core.errors import ConfigError
from fedwsq.core.ranges import ABOVE_0, FROM_0_FINITE, require
from fedwsq.training.losses import CROSS_ENTROPY, Criterion
from fedwsq.training.optimizers import Optimizer, Sgd
from fedwsq.training.precision import Precision


@dataclass(frozen=True)
class Training:
    """Local work: SGD with clipping and weight decay; the defaults are the paper's protocol."""

    epochs: int = 5
    batches_per_epoch: int = 10  # sets the batch size from the shard, unless `batch_size` is given
    batch_size: int = 0
    lr: float = 0.1
    lr_decay: float = 0.995  # per round, and again per local epoch
    schedule: Literal["plain", "published"] = "plain"
    weight_decay: float = 1e-3
    # Who pulls the weights towards zero: clients at every step, or the server once a round.
    decay_on: Literal["clients", "server"] = "clients"
    clip_norm: float = 10.0  # of all gradients together; 0 is off
    agc: float = 0.0  # adaptive clipping of each output unit's gradient, before the norm; 0 is off
    criterion: Criterion = CROSS_ENTROPY
    optimizer: Optimizer = Sgd()
    precision: Precision = "auto"

    def __post_init__(self) -> None:
        momentum = self.optimizer.momentum if isinstance(self.optimizer, Sgd) else 0.0
        if self.decay_on == "server" and momentum:
            raise ConfigError(
                "decay_on = server takes what plain steps would; momentum multiplies decay too, so "
                "use optimizer.momentum=0, or decay_on=clients"
            )
        for name in ("epochs", "batches_per_epoch"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, must be at least 1")
        require(ABOVE_0, lr=self.lr)
        if not 0 < self.lr_decay <= 1:
            raise ConfigError(
                f"lr_decay is {self.lr_decay}, must be above 0 and at most 1 (1: no decay)"
            )
        require(FROM_0_FINITE, batch_size=self.batch_size, weight_decay=self.weight_decay)
        require(FROM_0_FINITE, clip_norm=self.clip_norm, agc=self.agc)

    @property
    def local_decay(self) -> float:
        """What is left to clients."""
        return self.weight_decay if self.decay_on == "clients" else 0.0

    def shrinkage(self, lr_sum: float) -> float:
        """What the server adds to weights, as a share of them, for steps of so much in all.

        Next to an update a decay is small and the same everywhere: a code of less than a bit drops
        it. Standardized weights then never get shorter, and learn ever more slowly.
        """
        return math.expm1(-(self.weight_decay - self.local_decay) * lr_sum)

    def batch_size_for(self, examples: int) -> int:
        """As given, or so that an epoch over a shard has at most `batches_per_epoch` batches."""
        return self.batch_size or max(1, -(-examples // self.batches_per_epoch))

    def steps(self, examples: int) -> int:
        return self.epochs * -(-examples // self.batch_size_for(examples))


def learning_rates(training: Training, round_: int, rounds: int) -> list[float]:
    """The rate of each local epoch of a round, lr * decay^(round - 1) * decay^epoch.

    Rounds count from 1. The published schedule stretches or squeezes the decay to what 1000
    rounds would have, in whole steps.
    """
    exponent = round_ - 1
    if training.schedule == "published":
        if rounds < 1000:
            exponent *= 1000 // rounds
        else:
            exponent //= rounds // 1000
    exponents = range(exponent, exponent + training.epochs)
    return [training.lr * training.lr_decay**power for power in exponents]


def sum_of_rates(training: Training, round_: int, rounds: int, examples: int) -> float:
    """The learning rates of all local steps on so many examples, added up."""
    steps_an_epoch = training.steps(examples) // training.epochs
    return steps_an_epoch * math.fsum(learning_rates(training, round_, rounds))
