"""Who holds which examples: every client gets the same number, no example is given out twice."""

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedwsq.core.errors import ConfigError
from fedwsq.core.seeds import numpy_rng

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Split:
    """The example indices of every client: one array and offsets, so a large population costs no objects."""

    def __init__(self, indices: Ints | Tensor, offsets: Ints | Tensor) -> None:
        self.indices = torch.as_tensor(indices, dtype=torch.int64)
        self.offsets = torch.as_tensor(offsets, dtype=torch.int64)  # [clients + 1]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> Tensor:
        if not 0 <= client < len(self):
            raise IndexError(f"client {client} is not one of the {len(self)} clients 0 to {len(self) - 1}")
        return self.indices[int(self.offsets[client]) : int(self.offsets[client + 1])]

    def counts(self, labels: Tensor, classes: int) -> Tensor:
        """How many examples of each class each client holds: [clients, classes]."""
        mine = labels[self.indices]
        if len(mine) and not 0 <= int(mine.min()) <= int(mine.max()) < classes:
            raise ConfigError(
                f"labels run from {int(mine.min())} to {int(mine.max())}; {classes} classes allow 0 to {classes - 1}"
            )
        owner = torch.bucketize(torch.arange(len(mine)), self.offsets[1:], right=True)
        return torch.bincount(owner * classes + mine, minlength=len(self) * classes).view(-1, classes)


def iid(labels: Tensor, clients: int, seed: int) -> Split:
    """Examples dealt at random."""
    each = _share(len(labels), clients)
    order = numpy_rng(seed, "partition").permutation(len(labels))
    return Split(order[: clients * each], np.arange(clients + 1) * each)


def dirichlet(labels: Tensor, clients: int, seed: int, alpha: float = 0.3) -> Split:
    """The balanced Dirichlet split of FedACG, FedRCL and FedWSQ, without its repeated indices.

    Clients come in order. Each draws p ~ Dir(alpha) over the classes, then its examples one by one without replacement,
    every example still free with odds p of its class. So late clients get what is left, but nobody gets it twice.
    """
    if not (math.isfinite(alpha) and alpha > 0):
        raise ConfigError(f"dirichlet alpha is {alpha}, but must be positive and finite; 0.3 is usual, iid has no skew")
    each = _share(len(labels), clients)
    rng = numpy_rng(seed, "partition")
    _, kinds = np.unique(labels.numpy(), return_inverse=True)
    order = rng.permutation(len(kinds))
    order = order[np.argsort(kinds[order], kind="stable")]  # class by class, shuffled within a class
    sizes = np.bincount(kinds)
    taken = _quotas(sizes, clients, each, alpha, rng)
    # Each class is served from its front, in client order: its first taken[0] examples go to client 0, and so on.
    rank = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    order = order[rank < np.repeat(taken.sum(axis=0), sizes)]
    owner = np.repeat(np.tile(np.arange(clients), len(sizes)), taken.T.ravel())
    mix = rng.permutation(len(order))
    mix = mix[np.argsort(owner[mix], kind="stable")]  # client by client, shuffled within a client
    return Split(order[mix], np.arange(clients + 1) * each)


def hold_out(count: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """The indices kept and the `share` of them held out for validation, both sorted."""
    if not 0 <= share < 1:
        raise ConfigError(f"the validation share is {share}, but must be in [0, 1); 0 holds nothing out")
    order = torch.from_numpy(numpy_rng(seed, "hold_out").permutation(count))
    held = round(count * share)
    return order[held:].sort().values, order[:held].sort().values


def _share(samples: int, clients: int) -> int:
    """How many examples each client gets."""
    if clients < 1:
        raise ConfigError(f"clients is {clients}, but a run needs at least 1")
    if clients > samples:
        raise ConfigError(
            f"{clients} clients cannot share {samples} samples: each needs one; use at most {samples} clients"
        )
    return samples // clients


def _quotas(sizes: Ints, clients: int, each: int, alpha: float, rng: np.random.Generator) -> Ints:
    """How many examples of each class each client draws: [clients, classes]."""
    left = sizes.copy()
    taken = np.zeros((clients, len(sizes)), dtype=np.int64)
    with np.errstate(divide="ignore", over="ignore"):
        for row in taken:
            row[:] = race(_log_dirichlet(alpha, len(sizes), rng), left, each, rng)
            left -= row
    return taken


def _log_dirichlet(alpha: float, classes: int, rng: np.random.Generator) -> Floats:
    """log p up to a constant, p ~ Dir(alpha), by Gamma(a) = Gamma(a + 1) U^(1/a): no p underflows at small alpha."""
    log_p: Floats = np.log(rng.standard_gamma(alpha + 1, classes)) - rng.standard_exponential(classes) / alpha
    return np.clip(log_p, -1e300, 1e300)


def race(log_p: Floats, left: Ints, draws: int, rng: np.random.Generator) -> Ints:
    """Class counts of sequential draws without replacement, each example free having odds p of its class.

    Examples with odds p arriving at rate p are drawn in their order of arrival. Of class c with r examples left, the
    waits for the next one are Exp(1) / (p r), Exp(1) / (p (r - 1)), ...; the draws are the earliest arrivals of all.
    """
    width = min(draws, int(left.max()))
    rates = np.maximum(left[:, None] - np.arange(width), 0)  # none left: the next arrival is at infinity
    arrivals = np.cumsum(rng.standard_exponential(rates.shape) / rates, axis=1)
    times = np.log(arrivals) - log_p[:, None]
    first = np.argpartition(times, draws - 1, axis=None)[:draws]
    return np.bincount(first // width, minlength=len(left))
