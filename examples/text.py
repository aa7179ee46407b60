"""Six clients learn which module a passage of code is from: words instead of pixels.

    python examples/text.py [OUT] [ROUNDS]

The text is what every machine has: the source of Python's own library. A word becomes a number by a
hash, so that clients need not agree on a vocabulary first. Updates have 4 bits.
"""

import importlib
import inspect
import re
import sys
import tempfile
import zlib

import torch
from torch import Tensor, nn

import fedwsq
from fedwsq import Dataset, Examples

MODULES = ("argparse", "ast", "mailbox", "statistics", "tarfile", "zipfile")
WORDS = 1024  # numbers that a word can become
LENGTH = 12  # words in a passage


def passages() -> Dataset:
    """Passages as integers [n, 12] and the modules they are from; every fifth is for testing."""
    parts = []
    labels = []
    for label, module in enumerate(MODULES):
        source = inspect.getsource(importlib.import_module(module)).lower()
        words = re.findall("[a-z]+", source)
        numbers = [zlib.crc32(word.encode()) % WORDS for word in words]
        part = torch.tensor(numbers).unfold(0, LENGTH, LENGTH)
        parts.append(part)
        labels += [label] * len(part)
    x = torch.cat(parts)
    y = torch.tensor(labels)
    test = torch.arange(len(y)) % 5 == 4
    examples = [Examples([x[chosen]], y[chosen]) for chosen in (~test, test)]
    return Dataset(*examples, classes=len(MODULES))


class Reader(nn.Module):
    """Word vectors, a convolution over neighbouring words, the mean over the passage."""

    def __init__(self, classes: int, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.phrases = nn.Conv1d(width, width, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(2, width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:  # [batch, words] of integers
        features = self.phrases(self.words(x).transpose(1, 2))
        logits: Tensor = self.head(self.norm(features).relu().mean(dim=2))
        return logits


SETTINGS = {
    "data": {
        "name": "text:passages",
        "clients": 6,
        "partition": {"name": "dirichlet", "alpha": 1.0},
    },
    "model": {"name": "text:Reader", "standardize": "ws"},
    "training.optimizer": "adamw",
    "training.lr": 0.003,
    "uplink.select": "weights",
}

if __name__ == "__main__":
    given = dict(enumerate(sys.argv))
    out = given.get(1) or tempfile.mkdtemp()
    settings = {**SETTINGS, "rounds": int(given.get(2, 20))}
    summary = fedwsq.run("quickstart", settings, out=out, workers=1)
    fewer = f"{summary.uplink_factor:.1f} times fewer bytes up"
    print(f"test accuracy {summary.accuracy:.3f}, {fewer}; see {out}")
