"""A three-convolution network for the 8x8 handwritten digits of the quick start."""

from torch import nn

from fedwsq.models.staged import Staged, conv_norm


def cnn(classes: int = 10, channels: int = 1) -> Staged:
    """Widths 16, 32, 64, the last at half size; cuts after each convolution and its norm."""
    stages = [
        nn.Sequential(nn.ReLU(), conv_norm(16, 32)),
        nn.Sequential(nn.ReLU(), conv_norm(32, 64, stride=2)),
    ]
    return Staged(conv_norm(channels, 16), stages, nn.Linear(64, classes))
