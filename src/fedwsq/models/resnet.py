"""ResNets for small images as in the published code: 3x3 stem, no max-pool, GroupNorm (He et al., arXiv:1512.03385)."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from fedwsq.models.staged import Staged, conv_norm


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut. ReLU on entry instead of exit: the sum leaves pre-activation."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = conv_norm(inputs, outputs, stride=stride)
        self.second = conv_norm(outputs, outputs)
        same = inputs == outputs and stride == 1
        self.shortcut = (
            nn.Identity() if same else conv_norm(inputs, outputs, kernel=1, stride=stride)
        )

    def forward(self, x: Tensor) -> Tensor:
        """The pre-activation sum."""
        x = F.relu(x)
        out: Tensor = self.second(F.relu(self.first(x))) + self.shortcut(x)
        return out


class ResNet(Staged):
    """Cuts: the stem and each stage, `blocks` blocks of equal width; every stage but the first halves the image."""

    def __init__(
        self, widths: Sequence[int], blocks: Sequence[int], classes: int, channels: int
    ) -> None:
        stages, inputs = [], widths[0]
        for index, (width, count) in enumerate(zip(widths, blocks, strict=True)):
            first = BasicBlock(inputs, width, stride=1 if index == 0 else 2)
            stages.append(
                nn.Sequential(
                    first, *(BasicBlock(width, width, stride=1) for _ in range(count - 1))
                )
            )
            inputs = width
        super().__init__(conv_norm(channels, widths[0]), stages, nn.Linear(inputs, classes))


def resnet18(classes: int = 10, channels: int = 3) -> ResNet:
    """The paper's backbone: 20 convolutions, 11.2 million parameters."""
    return ResNet((64, 128, 256, 512), blocks=(2, 2, 2, 2), classes=classes, channels=channels)


def resnet34(classes: int = 10, channels: int = 3) -> ResNet:
    """Its deeper sibling: 36 convolutions, 21.3 million parameters."""
    return ResNet((64, 128, 256, 512), blocks=(3, 4, 6, 3), classes=classes, channels=channels)


def resnet8(classes: int = 10, channels: int = 3) -> ResNet:
    """Its CPU-sized sibling: 9 convolutions, 78 thousand parameters."""
    return ResNet((16, 32, 64), blocks=(1, 1, 1), classes=classes, channels=channels)
