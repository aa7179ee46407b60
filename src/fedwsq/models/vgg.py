"""VGG-9 (Simonyan and Zisserman, 2015, arXiv:1409.1556) for small images.

With GroupNorm, as federated papers use it.
"""

import math

import torch.nn.functional as F
from torch import Tensor, nn

from fedwsq.models.staged import Staged, conv_norm


class VGG(Staged):
    """A staged network that ends in linear layers: there is nothing left to average over space."""

    def _pool(self, feature: Tensor) -> Tensor:  # [batch, width]
        return F.relu(feature)


def vgg9(classes: int = 10, channels: int = 3) -> VGG:
    """Six convolutions and three linear layers, 3.5 million parameters; no dropout.

    Cuts: after the first convolution and its norm, after the second, before the second and the
    third max-pool, and after each of the first two linear layers, whose features are [batch, 512].
    Convolutions have biases; images of any size are averaged to 4x4 before the linear layers.
    """
    stages = [
        nn.Sequential(nn.ReLU(), _conv(32, 64)),
        nn.Sequential(
            nn.ReLU(),
            nn.MaxPool2d(2),
            _conv(64, 128),
            nn.ReLU(),
            _conv(128, 128),
        ),
        nn.Sequential(
            nn.ReLU(),
            nn.MaxPool2d(2),
            _conv(128, 256),
            nn.ReLU(),
            _conv(256, 256),
        ),
        nn.Sequential(
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.AdaptiveAvgPool2d(4),  # nothing to do for images of 32x32
            nn.Flatten(),
            nn.Linear(4096, 512),
        ),
        nn.Sequential(nn.ReLU(), nn.Linear(512, 512)),
    ]
    return VGG(_conv(channels, 32), stages, nn.Linear(512, classes))


def _conv(inputs: int, outputs: int) -> nn.Sequential:
    layer = conv_norm(inputs, outputs, bias=True)
    weight, bias, *_ = layer.parameters()
    # By the fan-out, as published.
    nn.init.normal_(weight, std=math.sqrt(2 / (9 * outputs)))
    nn.init.zeros_(bias)
    return layer
