"""What a loader returns: examples as they are stored, and how to turn them into a model's input."""

import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from fedwsq.core.errors import ConfigError, DataError


class Examples:
    """Examples in memory or memory-mapped: several tensors read as one, never copied as a whole."""

    def __init__(self, parts: Sequence[Tensor], labels: Tensor) -> None:
        if not parts:
            raise DataError("examples need at least one tensor of them; got none")
        kinds = {f"{part.dtype} {tuple(part.shape[1:])}" for part in parts}
        if len(kinds) > 1:
            raise DataError(
                "parts of one set must agree in dtype and shape of an example; "
                f"got {', '.join(sorted(kinds))}"
            )
        self._ends = list(accumulate(len(part) for part in parts))
        if self._ends[-1] != len(labels):
            raise DataError(
                f"{self._ends[-1]} examples but {len(labels)} labels; each example needs one label"
            )
        self._parts = tuple(parts)
        self.labels = labels
        self.dtype = parts[0].dtype
        self.shape = tuple(parts[0].shape[1:])

    def __len__(self) -> int:
        return len(self.labels)

    def relabelled(self, labels: Tensor) -> "Examples":
        """The same examples with other labels."""
        return Examples(self._parts, labels)

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The examples at `indices`, in that order, as stored, and their labels."""
        # Labels first: this also refuses an index out of range.
        y = self.labels.index_select(0, indices)
        if len(self._parts) == 1:
            return self._parts[0].index_select(0, indices), y
        x = self._parts[0].new_empty((len(indices), *self.shape))
        owner = torch.bucketize(indices, torch.tensor(self._ends), right=True)
        for number, part in enumerate(self._parts):
            (here,) = torch.nonzero(owner == number, as_tuple=True)
            start = self._ends[number] - len(part)
            x.index_copy_(0, here, part.index_select(0, indices[here] - start))
        return x, y


@dataclass(frozen=True)
class Dataset:
    """A training and a test set with what preprocessing needs."""

    train: Examples
    test: Examples
    classes: int
    # Per channel or column, of pixels in [0, 1]; empty: neither shifted nor scaled.
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    augment: bool = False  # whether the published augmentation suits this data
    # int64 [training examples]: whose each one is, numbered from 0; None: nobody knows.
    groups: Tensor | None = None
    class_names: tuple[str, ...] = ()  # in the order of the labels, for people; empty: unknown

    def __post_init__(self) -> None:
        if self.class_names and len(self.class_names) != self.classes:
            raise DataError(
                f"{len(self.class_names)} class names but {self.classes} classes; "
                "name all of them or none"
            )
        if self.groups is not None and len(self.groups) != len(self.train):
            raise DataError(
                f"{len(self.groups)} groups but {len(self.train)} training examples; "
                "each needs one group"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example."""
        return self.train.shape


def data_root(root: str) -> Path:
    """Where data sets live: the config's `data.root`, else `$FEDWSQ_DATA`, else `./data`."""
    return Path(root or os.environ.get("FEDWSQ_DATA") or "data").expanduser()


def warn_if_partial(title: str, count: int, published: int, where: str) -> None:
    """A part of a published set is good to train on, but nobody should take it for the whole."""
    if count < published:
        warnings.warn(
            f"{title}: {count} records in {where}; the published set has {published}", stacklevel=2
        )


def check_share(share: float, count: int) -> None:
    """Refuse a test share that leaves either side of `count` examples empty."""
    if not 0 < share < 1 or not 0 < round(count * share) < count:
        raise ConfigError(
            f"test = {share:g} of {count} examples must leave some on both sides; "
            "0.2 holds a fifth out for testing"
        )


def pixel_stats(examples: Examples) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of every channel of uint8 images [n, c, h, w], for pixels in [0, 1]."""
    # Sums of integers are exact, in whatever order and however many.
    sums = torch.zeros(examples.shape[0], dtype=torch.int64)
    squares = torch.zeros_like(sums)
    at_once = max(1, 2**22 // math.prod(examples.shape))  # 16 MB of int32
    for start in range(0, len(examples), at_once):
        rows = torch.arange(start, min(start + at_once, len(examples)))
        x = examples.take(rows)[0].int()
        sums += x.sum(dim=(0, 2, 3))
        squares += x.square().sum(dim=(0, 2, 3))

    count = len(examples) * math.prod(examples.shape[1:])
    mean = []
    std = []
    for total, square in zip(sums.tolist(), squares.tolist(), strict=True):
        variance = (square * count - total * total) / count**2
        mean.append(total / count / 255)
        # A constant channel says nothing whatever it is divided by.
        std.append(math.sqrt(variance) / 255 or 1.0)
    return tuple(mean), tuple(std)
