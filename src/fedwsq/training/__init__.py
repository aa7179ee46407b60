"""Local training: the only training loop in the package."""

from fedwsq.training.local import LocalTask, Shard, Trained
from fedwsq.training.losses import CRITERIA, Criterion, Loss
from fedwsq.training.optimizers import OPTIMIZERS, AdamW, Optimizer, Sgd
from fedwsq.training.settings import Training, learning_rates

__all__ = [
    "CRITERIA",
    "OPTIMIZERS",
    "AdamW",
    "Criterion",
    "LocalTask",
    "Loss",
    "Optimizer",
    "Sgd",
    "Shard",
    "Trained",
    "Training",
    "learning_rates",
]
