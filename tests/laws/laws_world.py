"""A tiny world for laws over whole rounds: forty digits, a staged net of a few hundred weights."""

import itertools
import os
import signal

from torch import nn

from fedwsq.data import Dataset, Examples
from fedwsq.data.digits import digits
from fedwsq.models.staged import Staged, conv_norm


def tiny_digits() -> Dataset:
    whole = digits()
    x, y = whole.train.take(whole.train.labels.argsort(stable=True)[::36])
    return Dataset(Examples([x], y), Examples([x], y), classes=10)


def tiny_net(classes: int = 10, channels: int = 1) -> Staged:
    stages = [
        nn.Sequential(nn.ReLU(), conv_norm(4, 6, stride=2)),
        nn.Sequential(nn.ReLU(), conv_norm(6, 8, stride=2)),
    ]
    return Staged(conv_norm(channels, 4), stages, nn.Linear(8, classes))


def mortal_net(classes: int = 10, channels: int = 1) -> Staged:
    """The same network; the training pass with the number $TEST_KILLED_IN kills its process."""
    model = tiny_net(classes, channels)
    passes = itertools.count(1)

    def kill(module: nn.Module, inputs: object) -> None:
        if module.training and str(next(passes)) == os.environ.get("TEST_KILLED_IN"):
            os.kill(os.getpid(), signal.SIGKILL)

    model.register_forward_pre_hook(kill)
    return model
