"""SqueezeNet with simple bypass (Iandola et al., 2016, arXiv:1602.07360) and GroupNorm."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedwsq.models.staged import Staged, conv_norm


class Fire(nn.Module):
    """A 1x1 convolution to few channels, then half the outputs from 1x1 and half from 3x3."""

    def __init__(self, inputs: int, outputs: int, squeeze: int) -> None:
        super().__init__()
        self.squeeze = conv_norm(inputs, squeeze, kernel=1, bias=True)
        self.small = conv_norm(squeeze, outputs // 2, kernel=1, bias=True)
        self.large = conv_norm(squeeze, outputs // 2, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.squeeze(x))
        return torch.cat([self.small(x), self.large(x)], dim=1)


class Bypass(nn.Module):
    """A fire module around which its input goes too; both are past their ReLU when they meet."""

    def __init__(self, width: int, squeeze: int) -> None:
        super().__init__()
        self.fire = Fire(width, width, squeeze)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.relu(self.fire(x))


def squeezenet(classes: int = 10, channels: int = 3) -> Staged:
    """Eight fire modules, 0.7 million parameters.

    Cuts: the stem, and the pre-activation outputs of the fire modules without a bypass: the first,
    third, fifth, seventh and eighth. Convolutions have biases. The published 1x1 convolution to the
    classes, then averaged, is a linear layer here: the same function, but no norm follows it, so it
    is not for weight standardization.
    """
    stages = [
        nn.Sequential(
            nn.ReLU(),
            nn.MaxPool2d(2),
            Fire(96, 128, 16),
        ),
        nn.Sequential(
            nn.ReLU(),
            Bypass(128, 16),
            Fire(128, 256, 32),
        ),
        nn.Sequential(
            nn.ReLU(),
            nn.MaxPool2d(2),
            Bypass(256, 32),
            Fire(256, 384, 48),
        ),
        nn.Sequential(
            nn.ReLU(),
            Bypass(384, 48),
            Fire(384, 512, 64),
        ),
        nn.Sequential(
            nn.ReLU(),
            nn.MaxPool2d(2),
            Fire(512, 512, 64),
        ),
    ]
    return Staged(conv_norm(channels, 96, bias=True), stages, nn.Linear(512, classes))
