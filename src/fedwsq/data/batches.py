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
    """The published augmentation of images [n, c, h, w]: rotation, padded crop, flip.

    Draws from `rng`, in this order: n angles of up to 10 degrees, n pairs of crop offsets (down,
    right), n flips.
    """
    angles = torch.empty(len(x)).uniform_(-ANGLE_DEGREES, ANGLE_DEGREES, generator=rng)
    offsets = torch.randint(2 * PADDING + 1, (len(x), 2), generator=rng)
    flips = torch.rand(len(x), generator=rng) < 0.5
    return warp(x, angles.to(x.device), offsets.to(x.device), flips.to(x.device))


def warp(x: Tensor, angles: Tensor, offsets: Tensor, flips: Tensor) -> Tensor:
    """Rotate, crop, flip, in one gather; the dtype is kept.

    `angles` [n] are degrees counter-clockwise, `offsets` [n, 2] the crop's corner in the padded
    image. Every output pixel is traced back: unflip, uncrop, unrotate about the centre, nearest
    pixel; zero if there is none.
    """
    _, channels, height, width = x.shape
    # Where the output pixels lie in the rotated image: rows [n, h], columns [n, w].
    down = torch.arange(height, device=x.device) + (offsets[:, :1] - PADDING)
    right = torch.arange(width, device=x.device)
    right = torch.where(flips[:, None], width - 1 - right, right)
    right = right + (offsets[:, 1:] - PADDING)

    # A rotation about the centre is the sum of a row term and a column term.
    turn = angles[:, None] * (math.pi / 180)
    cos = turn.cos()
    sin = turn.sin()
    dy = down - (height - 1) / 2
    dx = right - (width - 1) / 2
    row = cos * dy + height / 2  # the centre is (h - 1) / 2, and 1/2 rounds
    column = cos * dx + width / 2

    # Outside the crop one of the terms is moved so far that no other brings it back.
    beyond = -4.0 * (height + width)
    row.masked_fill_(~_within(down, height), beyond)
    column.masked_fill_(~_within(right, width), beyond)
    row = row[:, :, None] + (sin * dx)[:, None, :]  # [n, h, w]
    column = column[:, None, :] - (sin * dy)[:, :, None]
    row.floor_()
    column.floor_()

    inside = _within(row, height) & _within(column, width)
    index = row.mul_(width).add_(column).mul_(inside).long()
    index = index.view(-1, 1, height * width).expand(-1, channels, -1)
    pixels = x.flatten(2).gather(2, index).view_as(x)
    return pixels.mul_(inside[:, None])


def _within(places: Tensor, size: int) -> Tensor:
    return (places >= 0) & (places < size)


def normalize(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Float32 input for a model: bytes to [0, 1], then (x - mean) / std if there is a `mean`.

    Signed integers without a `mean` are indices, such as words of a vocabulary: they stay integers.
    """
    if not mean and x.dtype in INDICES:
        return x.long()
    out = x.float()
    if x.dtype == torch.uint8:
        out = out.div_(255)
    if not mean:
        return out
    per_channel = (-1, *[1] * (x.dim() - 2))  # [c, 1, 1] for images, [c] for columns of a table
    shift = torch.tensor(mean, device=x.device).view(per_channel)
    scale = torch.tensor(std, device=x.device).view(per_channel)
    return out.sub(shift).div_(scale)
