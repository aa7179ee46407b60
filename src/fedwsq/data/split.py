"""The examples of every client, and how skewed they are."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedwsq.core.errors import ConfigError

Ints = npt.NDArray[np.int64]


def offsets(sizes: npt.ArrayLike) -> Ints:
    """Where runs of these sizes begin, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(sizes)])


class Statistics(NamedTuple):
    """How skewed a split is: a number a client each."""

    sizes: Tensor  # examples
    classes: Tensor  # classes present
    largest: Tensor  # share of the largest class
    effective: Tensor  # exp of the entropy of the class shares: as many classes, were they even


class Split:
    """The example indices of every client: one array and offsets, no objects however many."""

    def __init__(self, indices: Ints | Tensor, offsets: Ints | Tensor) -> None:
        self.indices = torch.as_tensor(indices, dtype=torch.int64)
        self.offsets = torch.as_tensor(offsets, dtype=torch.int64)  # [clients + 1]

    def __len__(self) -> int:
        return self.offsets.numel() - 1

    def __getitem__(self, client: int) -> Tensor:
        if not 0 <= client < len(self):
            raise IndexError(
                f"client {client} is not one of the {len(self)} clients 0 to {len(self) - 1}"
            )
        start, end = self.offsets[client : client + 2].tolist()
        return self.indices[start:end]

    @property
    def sizes(self) -> Tensor:
        """How many examples each client holds: [clients]."""
        return self.offsets.diff()

    @property
    def owners(self) -> Tensor:
        """Which client each entry of `indices` belongs to."""
        return torch.from_numpy(np.repeat(np.arange(len(self)), self.sizes.numpy()))

    @property
    def repeats(self) -> int:
        """How many entries of `indices` name an example that an earlier entry names."""
        in_order = np.sort(self.indices.numpy())
        return int(np.count_nonzero(np.diff(in_order) == 0))

    def counts(self, labels: Tensor, classes: int) -> Tensor:
        """How many examples of each class each client holds: [clients, classes]."""
        mine = labels[self.indices]
        if len(mine) and not 0 <= int(mine.min()) <= int(mine.max()) < classes:
            raise ConfigError(
                f"labels run from {int(mine.min())} to {int(mine.max())}; "
                f"{classes} classes allow 0 to {classes - 1}"
            )
        pairs = self.owners * classes + mine
        counts = torch.bincount(pairs, minlength=len(self) * classes)
        return counts.view(-1, classes)

    def statistics(self, labels: Tensor, classes: int) -> Statistics:
        """Size and skew of every client."""
        counts = self.counts(labels, classes)
        shares = counts / self.sizes.clamp(min=1).double()[:, None]
        entropy = -torch.xlogy(shares, shares).sum(dim=1)
        return Statistics(
            sizes=self.sizes,
            classes=(counts > 0).sum(dim=1),
            largest=shares.amax(dim=1),
            effective=entropy.exp(),
        )


def split_of(clients: Sequence[object]) -> Split:
    """A split of a list with the indices of every client."""
    parts = [_indices(each, client) for client, each in enumerate(clients)]
    return Split(np.concatenate(parts), offsets([len(part) for part in parts]))


def _indices(value: object, client: int) -> Ints:
    found = np.asarray(value)
    whole = found.dtype.kind in "iu" or not found.size
    if found.ndim != 1 or not whole:
        raise ConfigError(
            f"split: client {client} has {found.dtype} {list(found.shape)}, "
            "must be a list of whole numbers, the indices of its training examples"
        )
    if found.size and found.min() < 0:
        raise ConfigError(f"split: client {client} has index {found.min()}, must be 0 or more")
    return found.astype(np.int64)
