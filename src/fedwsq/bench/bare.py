"""What a run is held against: a bare PyTorch loop over batches that are ready, nothing else."""

import dataclasses
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from fedwsq.data import Dataset
from fedwsq.data.batches import normalize
from fedwsq.data.synthetic import synthetic
from fedwsq.models import MODELS, init_standardized, standardize
from fedwsq.training import Training
from fedwsq.training.precision import Precision, autocast

BATCH = 50
MEAN = (0.5, 0.5, 0.5)
STD = (0.25, 0.25, 0.25)
PROTOCOL = Training()


def images(samples: int = 1000, test_samples: int = 100) -> Dataset:
    """Made-up pictures of CIFAR's shape, augmented and normalized as CIFAR's are."""
    made = synthetic(samples, test_samples, size=32, channels=3)
    return dataclasses.replace(made, mean=MEAN, std=STD, augment=True)


def network(name: str, ws: bool = True) -> nn.Module:
    """A backbone as a run trains it."""
    model = MODELS[name](classes=10)
    if ws:
        init_standardized(standardize(model))
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def steps(model: nn.Module, count: int, precision: Precision) -> Callable[[], None]:
    """`count` steps of SGD with clipping and decay, over batches made beforehand."""
    # All that a run does for each batch is done here once: only steps are timed.
    made = images(BATCH * count).train
    stored, labels = made.take(torch.arange(len(made)))
    x = normalize(stored, MEAN, STD).contiguous(memory_format=torch.channels_last)
    batches = list(zip(torch.split(x, BATCH), torch.split(labels, BATCH), strict=True))
    optimizer = torch.optim.SGD(model.parameters(), PROTOCOL.lr, weight_decay=PROTOCOL.weight_decay)

    def train() -> None:
        model.train()
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(x.device, precision):
                loss = F.cross_entropy(model(x).float(), y)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), PROTOCOL.clip_norm)
            optimizer.step()

    return train


class Loop(NamedTuple):
    """What one bare loop trains, in a process of its own."""

    model: str
    steps: int
    precision: Precision
    ws: bool = True


def main(loop: Loop) -> None:
    """Train on one thread: all steps for every line on the input, answered with their seconds."""
    torch.set_num_threads(1)
    train = steps(network(loop.model, loop.ws), loop.steps, loop.precision)
    for _ in sys.stdin:
        began = time.perf_counter()
        train()
        print(time.perf_counter() - began, flush=True)
