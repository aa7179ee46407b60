"""ResNets (He et al., 2016, arXiv:1512.03385) for small images, as in the published code.

Against the original: a 3x3 stem, no max-pool, GroupNorm.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from fedwsq.models.staged import Staged, conv_norm

WIDTHS = (64, 128, 256, 512)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut.

    ReLU on entry instead of exit: the sum leaves pre-activation, as a cut wants it.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = conv_norm(inputs, outputs, stride=stride)
        self.second = conv_norm(outputs, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs or stride != 1:
            self.shortcut = conv_norm(inputs, outputs, kernel=1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(x)
        inner = F.relu(self.first(x))
        out: Tensor = self.second(inner) + self.shortcut(x)
        return out


class ResNet(Staged):
    """Cuts: the stem and each stage, `blocks` blocks of equal width.

    Every stage but the first halves the image.
    """

    def __init__(
        self, widths: Sequence[int], blocks: Sequence[int], classes: int, channels: int
    ) -> None:
        stages: list[nn.Module] = []
        inputs = widths[0]
        for width, count in zip(widths, blocks, strict=True):
            first = BasicBlock(inputs, width, stride=2 if stages else 1)
            rest = [BasicBlock(width, width, stride=1) for _ in range(count - 1)]
            stages.append(nn.Sequential(first, *rest))
            inputs = width
        stem = conv_norm(channels, widths[0])
        super().__init__(stem, stages, nn.Linear(inputs, classes))


def resnet18(classes: int = 10, channels: int = 3) -> ResNet:
    """The paper's backbone: 20 convolutions, 11.2 million parameters."""
    return ResNet(WIDTHS, (2, 2, 2, 2), classes, channels)


def resnet34(classes: int = 10, channels: int = 3) -> ResNet:
    """Deeper than the paper's: 36 convolutions, 21.3 million parameters."""
    return ResNet(WIDTHS, (3, 4, 6, 3), classes, channels)


def resnet8(classes: int = 10, channels: int = 3) -> ResNet:
    """Small enough for a CPU: 9 convolutions, 78 thousand parameters."""
    return ResNet((16, 32, 64), (1, 1, 1), classes, channels)


def resnet18_quarter(classes: int = 10, channels: int = 3) -> ResNet:
    """ResNet-18 a quarter as wide, between the two in size: 0.7 million parameters."""
    return ResNet([width // 4 for width in WIDTHS], (2, 2, 2, 2), classes, channels)
