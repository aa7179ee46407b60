"""ShuffleNet v1 (Zhang et al., 2018, arXiv:1707.01083) for small images, with GroupNorm."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedwsq.models.staged import Staged, conv_norm

GROUPS = 3


class ShuffleUnit(nn.Module):
    """Grouped 1x1, shuffle, depthwise 3x3, grouped 1x1, next to a shortcut.

    With stride 2 the shortcut is averaged and the outputs are appended to it; otherwise they are
    added. ReLU on entry instead of exit, as a cut wants it.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        narrow = outputs // 4
        fresh = outputs
        if stride != 1:
            fresh -= inputs  # those are there already
        self.reduce = conv_norm(inputs, narrow, kernel=1, groups=GROUPS, bias=True)
        self.depthwise = conv_norm(narrow, narrow, stride=stride, groups=narrow, bias=True)
        self.expand = conv_norm(narrow, fresh, kernel=1, groups=GROUPS, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(x)
        # A grouped convolution sees its own group only: the shuffle gives it a part of each.
        shuffled = F.channel_shuffle(F.relu(self.reduce(x)), GROUPS)
        out: Tensor = self.expand(self.depthwise(shuffled))
        if self.stride == 1:
            return x + out
        smaller = F.avg_pool2d(x, 3, stride=2, padding=1)
        return torch.cat([smaller, out], dim=1)


def shufflenet(classes: int = 10, channels: int = 3) -> Staged:
    """Three groups, 0.9 million parameters.

    Cuts: the stem (stride 1, no max-pool) and each stage of 240, 480 and 960 channels: 4, 8 and 4
    units, the first of which halves the image. Convolutions have biases. Unlike in the paper, the
    very first 1x1 convolution is grouped.
    """
    stages = []
    inputs = 24
    for outputs, units in ((240, 4), (480, 8), (960, 4)):
        first = ShuffleUnit(inputs, outputs, stride=2)
        rest = [ShuffleUnit(outputs, outputs, stride=1) for _ in range(units - 1)]
        stages.append(nn.Sequential(first, *rest))
        inputs = outputs
    return Staged(conv_norm(channels, 24, bias=True), stages, nn.Linear(960, classes))
