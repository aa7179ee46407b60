"""Batches of an epoch, and what happens to images on the way to the model."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedwsq.core.errors import ConfigError

ANGLE_DEGREES = 10.0
PADDING = 4
INDICES = (torch.int16, torch.int32, torch.int64)


def batches(count: int, size: int, rng: torch.Generator) -> list[Tensor]:
    """A reshuffled epoch over `count` examples; the last batch is kept, even when smaller."""
    if size < 1:
        raise ConfigError(f"the batch size is {size}, but must be at least 1")
    order = torch.randperm(count, generator=rng)
    return [order[start : start + size] for start in range(0, count, size)]


def augment(x: Tensor, rng: torch.Generator) -> Tensor:
    """The published augmentation of images [n, c, h, w], dtype kept: rotation by up to 10 degrees, padded crop, flip.

    Draws from `rng`, in this order: n angles, n pairs of crop offsets (down, right), n flips.
    """
    angles = torch.empty(len(x)).uniform_(-ANGLE_DEGREES, ANGLE_DEGREES, generator=rng)
    offsets = torch.randint(2 * PADDING + 1, (len(x), 2), generator=rng)
    flips = torch.rand(len(x), generator=rng) < 0.5
    return warp(x, angles.to(x.device), offsets.to(x.device), flips.to(x.device))


def warp(x: Tensor, angles: Tensor, offsets: Tensor, flips: Tensor) -> Tensor:
    """Rotate by `angles` [n] degrees counter-clockwise, crop at `offsets` [n, 2] of the padded image, flip: one gather.

    Every output pixel is traced back: unflip, uncrop, unrotate about the centre, nearest pixel; zero if there is none.
    """
    (_, channels, height, width), device = x.shape, x.device
    down = torch.arange(height, device=device) + (
        offsets[:, :1] - PADDING
    )  # [n, h] rows of the rotated image
    right = torch.arange(width, device=device)
    right = torch.where(flips[:, None], width - 1 - right, right) + (
        offsets[:, 1:] - PADDING
    )  # [n, w] columns
    turn = angles[:, None] * (math.pi / 180)
    cos, sin = turn.cos(), turn.sin()
    dy, dx = down - (height - 1) / 2, right - (width - 1) / 2
    # A rotation is a sum of a row term and a column term; outside the crop one of them is moved out of the image.
    outside = -4.0 * (height + width)
    row = (cos * dy + height / 2).masked_fill_(
        (down < 0) | (down >= height), outside
    )  # (h - 1) / 2, and 1/2 to round
    column = (cos * dx + width / 2).masked_fill_((right < 0) | (right >= width), outside)
    row = (row[:, :, None] + (sin * dx)[:, None, :]).floor_()  # [n, h, w]
    column = (column[:, None, :] - (sin * dy)[:, :, None]).floor_()
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    index = row.mul_(width).add_(column).mul_(inside).long().view(-1, 1, height * width)
    pixels = x.flatten(2).gather(2, index.expand(-1, channels, -1)).view_as(x)
    return pixels.mul_(inside[:, None])


def normalize(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Float32 input for a model: uint8 pixels to [0, 1], then (x - mean) / std per channel unless `mean` is empty.

    Signed integers without a `mean` are indices, such as words of a vocabulary: they stay integers.
    """
    if not mean and x.dtype in INDICES:
        return x.long()
    out = x.float().div_(255) if x.dtype == torch.uint8 else x.float()
    if not mean:
        return out
    per_channel = (-1, *[1] * (x.dim() - 2))  # [c, 1, 1] for images, [c] for the columns of a table
    shift, scale = (
        torch.tensor(values, device=x.device).view(per_channel) for values in (mean, std)
    )
    return out.sub(shift).div_(scale)
