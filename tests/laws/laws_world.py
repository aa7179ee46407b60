"""A tiny world for laws over whole rounds: forty digits, a network of a few hundred weights, with stages."""

from torch import nn

from fedwsq.data import Dataset, Examples
from fedwsq.data.digits import digits
from fedwsq.models.staged import Staged, conv_norm


def tiny_digits() -> Dataset:
    whole = digits()
    x, y = whole.train.take(whole.train.labels.argsort(stable=True)[::36])
    return Dataset(Examples([x], y), Examples([x], y), classes=10)


def tiny_net(classes: int = 10, channels: int = 1) -> Staged:
    stages = [nn.Sequential(nn.ReLU(), conv_norm(4, 6, stride=2)), nn.Sequential(nn.ReLU(), conv_norm(6, 8, stride=2))]
    return Staged(conv_norm(channels, 4), stages, nn.Linear(8, classes))
