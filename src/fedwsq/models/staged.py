"""A network in stages, for the methods that look inside a model: FedMLB, FedRCL and FedDecorr."""

from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice

import torch.nn.functional as F
from torch import Tensor, nn


class Staged(nn.Module):
    """Stem, stages, linear head.

    A cut carries the pre-activation feature; whatever comes after applies the ReLU. A backbone with
    another activation, or whose last feature has no image to average over, has a `_pool` of its
    own. Level 0 is the stem's output and level k that of the k-th stage, so
    `resume(k, features(x)[k])` is `forward(x)`.
    """

    def __init__(self, stem: nn.Module, stages: Iterable[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.stem = stem
        self.stages = nn.ModuleList(stages)
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        return self.resume(0, self.stem(x))

    def features(self, x: Tensor) -> list[Tensor]:
        """The pre-activation output of the stem and of every stage, in order."""
        outputs = [self.stem(x)]
        for stage in self.stages:
            outputs.append(stage(outputs[-1]))
        return outputs

    def resume(self, level: int, feature: Tensor) -> Tensor:
        """Logits from the pre-activation feature of `level`."""
        logits: Tensor = self.head(self._pool(self._run(level, feature)))
        return logits

    def pooled(self, x: Tensor) -> Tensor:
        """The penultimate feature: what the head sees."""
        return self._pool(self._run(0, self.stem(x)))

    def _run(self, level: int, feature: Tensor) -> Tensor:
        for stage in islice(self.stages, level, None):
            feature = stage(feature)
        return feature

    def _pool(self, feature: Tensor) -> Tensor:
        """[batch, channels, height, width] to [batch, channels]."""
        return F.relu(feature).mean(dim=(2, 3))


def conv_norm(
    inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1, bias: bool = False
) -> nn.Sequential:
    """A convolution that keeps the size up to its stride, then GroupNorm.

    Two groups and an eps of 1e-5, as published.
    """
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=bias)
    norm = nn.GroupNorm(2, outputs, eps=1e-5)
    return nn.Sequential(OrderedDict(conv=conv, norm=norm))
