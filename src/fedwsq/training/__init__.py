"""Local training: the only training loop in the package."""

from fedwsq.training.local import LocalTask, Shard, Trained, Training, learning_rates
from fedwsq.training.losses import Loss, cross_entropy

__all__ = ["LocalTask", "Loss", "Shard", "Trained", "Training", "cross_entropy", "learning_rates"]
