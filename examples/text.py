"""Six clients learn which module a passage of code is from: words instead of pixels, 4-bit updates.

    python examples/text.py [OUT] [ROUNDS]

The text is what every machine has: the source of Python's own library. A word becomes a number by a hash, so that
clients need not agree on a vocabulary first.
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
WORDS, LENGTH = 1024, 12  # numbers that a word can become; words in a passage


def passages() -> Dataset:
    """Passages as integers [n, 12] and the modules they are from; every fifth is for testing."""
    x, y = [], []
    for label, module in enumerate(MODULES):
        words = re.findall("[a-z]+", inspect.getsource(importlib.import_module(module)).lower())
        numbers = [zlib.crc32(word.encode()) % WORDS for word in words]
        cut = [
            numbers[start : start + LENGTH] for start in range(0, len(numbers) - LENGTH + 1, LENGTH)
        ]
        x, y = x + cut, y + [label] * len(cut)
    inputs, labels = torch.tensor(x), torch.tensor(y)
    held_out = torch.arange(len(labels)) % 5 == 4
    train, test = (Examples([inputs[chosen]], labels[chosen]) for chosen in (~held_out, held_out))
    return Dataset(train, test, classes=len(MODULES))


class Reader(nn.Module):
    """Word vectors, a convolution over neighbouring words, the mean over the passage."""

    def __init__(self, classes: int, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.phrases = nn.Conv1d(width, width, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(2, width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:  # [batch, words] of integers
        """Logits."""
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
    out, rounds = (
        sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp(),
        int(sys.argv[2]) if sys.argv[2:] else 20,
    )
    summary = fedwsq.run("quickstart", {**SETTINGS, "rounds": rounds}, out=out, workers=1)
    print(
        f"test accuracy {summary.accuracy:.3f}, {summary.uplink_factor:.1f} times fewer bytes up; see {out}"
    )
