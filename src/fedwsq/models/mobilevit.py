"""MobileViT (Mehta and Rastegari, 2022, arXiv:2110.02178) for small images, with GroupNorm.

Against the original, made for 256x256: the stem and the second stage keep the image at full size
(stride 1 in place of 2), so the total stride is 8, not 32, and 64x64 images meet the transformers
at the original's sizes: 32x32, 16x16 and 8x8. BatchNorm is GroupNorm with 2 groups; there is no
dropout. Depths, widths, patches and the number of parameters are the original's.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedwsq.models.staged import Staged, conv_norm

HEADS = 4  # of every transformer, as in the original
PATCH = 2  # pixels, high and wide


class InvertedResidual(nn.Module):
    """MobileNetV2's block: widen, depthwise 3x3, narrow; plus its input where shapes allow."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        self.residual = stride == 1 and inputs == outputs
        wide = inputs * expansion
        self.expand = conv_norm(inputs, wide, kernel=1)
        self.depthwise = conv_norm(wide, wide, stride=stride, groups=wide)
        self.project = conv_norm(wide, outputs, kernel=1)

    def forward(self, x: Tensor) -> Tensor:
        """A linear output: nothing activates it."""
        wide = F.silu(self.expand(x))
        out: Tensor = self.project(F.silu(self.depthwise(wide)))
        if self.residual:
            return x + out
        return out


class Encoder(nn.Module):
    """A transformer layer, normalized on entry: self-attention, then a network twice as wide."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.merge = nn.Linear(dim, dim)
        self.feed_norm = nn.LayerNorm(dim)
        self.widen = nn.Linear(dim, 2 * dim)
        self.narrow = nn.Linear(2 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:  # [sequences, tokens, dim]
        seen = self._attend(self.qkv(self.attention_norm(x)))
        x = x + self.merge(seen)
        wide = F.silu(self.widen(self.feed_norm(x)))
        out: Tensor = x + self.narrow(wide)
        return out

    def _attend(self, qkv: Tensor) -> Tensor:
        # Written out: torch's fused attention has no second derivative on a CPU.
        split = qkv.view(*qkv.shape[:2], 3, HEADS, -1)
        q, k, v = split.permute(2, 0, 3, 1, 4)  # each [sequences, heads, tokens, -1]
        scale = q.shape[-1] ** -0.5
        scores = (q * scale) @ k.transpose(-2, -1)
        seen: Tensor = scores.softmax(dim=-1) @ v
        return seen.transpose(1, 2).flatten(2)


class MobileViTBlock(nn.Module):
    """Local features by convolution, global ones by a transformer over patches, merged.

    Their SiLU is left to what follows.
    """

    def __init__(self, width: int, dim: int, depth: int) -> None:
        super().__init__()
        self.local = conv_norm(width, width)
        # The original's 1x1 convolution: no norm follows, so it is not for weight standardization.
        self.embed = nn.Linear(width, dim, bias=False)
        encoders = [Encoder(dim) for _ in range(depth)]
        self.encoders = nn.Sequential(*encoders, nn.LayerNorm(dim))
        self.project = conv_norm(dim, width, kernel=1)
        self.merge = conv_norm(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        local = F.silu(self.local(x))
        size = local.shape[2:]
        even = [-(-n // PATCH) * PATCH for n in size]  # rounded up to whole patches

        tokens = self.embed(unfold(resize(local, even)))
        seen = resize(fold(self.encoders(tokens), even), size)
        both = torch.cat([x, F.silu(self.project(seen))], dim=1)
        out: Tensor = self.merge(both)
        return out


def unfold(x: Tensor) -> Tensor:
    """[batch, dim, height, width] to [batch * 4, patches, dim].

    There is one sequence for each of a 2x2 patch's four pixels.
    """
    batch, dim, height, width = x.shape
    rows = height // PATCH
    columns = width // PATCH
    tiles = x.movedim(1, -1).reshape(batch, rows, PATCH, columns, PATCH, dim)
    by_pixel = tiles.permute(0, 2, 4, 1, 3, 5)
    return by_pixel.reshape(batch * PATCH**2, -1, dim)


def fold(sequences: Tensor, size: Sequence[int]) -> Tensor:
    """The inverse of `unfold`, for images of this height and width."""
    dim = sequences.shape[-1]
    rows, columns = (n // PATCH for n in size)
    tiles = sequences.reshape(-1, PATCH, PATCH, rows, columns, dim)
    by_row = tiles.permute(0, 3, 1, 4, 2, 5)
    return by_row.reshape(-1, *size, dim).movedim(-1, 1)


def resize(x: Tensor, size: Sequence[int]) -> Tensor:
    """Bilinear, as the original does it for images that patches do not cover evenly."""
    if list(x.shape[2:]) == list(size):
        return x
    return F.interpolate(x, list(size), mode="bilinear")


class MobileViT(Staged):
    """Cuts: the stem, two stages of inverted residuals, three with a transformer, the last 1x1.

    A stage with a transformer halves the image in an inverted residual before its MobileViT block.
    Features are before their SiLU; those of the first two stages are linear and never get one.
    Sizes that 2x2 patches do not cover are resized for the transformer and back.
    """

    def __init__(
        self,
        widths: Sequence[int],
        dims: Sequence[int],
        expansion: int,
        classes: int,
        channels: int,
    ) -> None:
        first, second, *wider, last = widths
        opening = nn.Sequential(nn.SiLU(), InvertedResidual(16, first, 1, expansion))
        linear = [InvertedResidual(n, second, 1, expansion) for n in (first, second, second)]
        stages = [opening, nn.Sequential(*linear)]
        inputs = second
        for width, dim, depth in zip(wider, dims, (2, 4, 3), strict=True):
            stage = nn.Sequential()
            if inputs != second:  # what enters the first of them is linear, and stays so
                stage.append(nn.SiLU())
            stage.append(InvertedResidual(inputs, width, 2, expansion))
            stage.append(MobileViTBlock(width, dim, depth))
            stages.append(stage)
            inputs = width
        stages.append(nn.Sequential(nn.SiLU(), conv_norm(inputs, last, kernel=1)))
        super().__init__(conv_norm(channels, 16), stages, nn.Linear(last, classes))

    def _pool(self, feature: Tensor) -> Tensor:
        return F.silu(feature).mean(dim=(2, 3))


def mobilevit_xxs(classes: int = 10, channels: int = 3) -> MobileViT:
    """The smallest, 1.0 million parameters; cuts as `MobileViT` says."""
    return MobileViT((16, 24, 48, 64, 80, 320), (64, 80, 96), 2, classes, channels)


def mobilevit_xs(classes: int = 10, channels: int = 3) -> MobileViT:
    """The middle one, 1.9 million parameters; cuts as `MobileViT` says."""
    return MobileViT((32, 48, 64, 80, 96, 384), (96, 120, 144), 4, classes, channels)


def mobilevit_s(classes: int = 10, channels: int = 3) -> MobileViT:
    """The largest, 4.9 million parameters; cuts as `MobileViT` says."""
    return MobileViT((32, 64, 96, 128, 160, 640), (144, 192, 240), 4, classes, channels)
