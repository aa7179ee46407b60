"""Models and data as users bring them, nothing like the package's own.

`model.name=own_models:Tied` and the like.
"""

import os

import torch
from torch import Tensor, nn

from fedwsq.data import Dataset, Examples

WORDS = 20
LENGTH = 6
CLASSES = 3


def sequences() -> Dataset:
    """Integers [60, 6]; the class is the first word's remainder."""
    x = torch.randint(0, WORDS, (60, LENGTH), generator=torch.Generator().manual_seed(0))
    y = x[:, 0] % CLASSES
    return Dataset(Examples([x[:48]], y[:48]), Examples([x[48:]], y[48:]), classes=CLASSES)


def volumes() -> Dataset:
    """Floats [24, 1, 4, 4, 4]."""
    x = torch.randn(24, 1, 4, 4, 4, generator=torch.Generator().manual_seed(0))
    y = (x.mean(dim=(1, 2, 3, 4)) > 0).long()
    return Dataset(Examples([x[:18]], y[:18]), Examples([x[18:]], y[18:]), classes=2)


def scalars() -> Dataset:
    """One number an example, [30]."""
    x = torch.linspace(-1, 1, 30)
    return Dataset(Examples([x], (x > 0).long()), Examples([x], (x > 0).long()), classes=2)


class Tied(nn.Module):
    """A GRU whose output is read with the input's word vectors: one tensor, two names."""

    def __init__(self, classes: int, width: int = 8) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.output = nn.Linear(width, WORDS, bias=False)
        self.output.weight = self.words.weight
        self.classes = classes

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the first words stand for the classes."""
        logits: Tensor = self.output(self.memory(self.words(x))[0][:, -1])
        return logits[:, : self.classes]


def dropping(classes, channels, share=0.5, norm=nn.LayerNorm):
    """Dropout, and arguments without annotations, one of which no TOML can say."""
    return nn.Sequential(
        nn.Embedding(WORDS, 4),
        nn.Flatten(),
        nn.Dropout(share),
        norm(4 * channels),
        nn.Linear(4 * channels, classes),
    )


def volumetric(classes: int, channels: int) -> nn.Module:
    """Convolutions in three dimensions."""
    return nn.Sequential(nn.Conv3d(channels, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, classes))


def line(classes: int, channels: int) -> nn.Module:
    """A linear layer on single numbers."""
    return nn.Sequential(nn.Unflatten(0, (-1, channels)), nn.Linear(channels, classes))


def adapted(classes: int, channels: int) -> nn.Module:
    """The code itself freezes all but the last layer.

    $TEST_FROZEN stands for another version of this code.
    """
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64 * channels, 8), nn.ReLU(), nn.Linear(8, classes)
    )
    model[1].requires_grad_(False).weight.mul_(float(os.environ.get("TEST_FROZEN", "1")))
    return model


def all_frozen(classes: int, channels: int) -> nn.Module:
    """Nothing left to learn."""
    return adapted(classes, channels).requires_grad_(False)


def half(classes: int, channels: int) -> nn.Module:
    """Half precision throughout."""
    return adapted(classes, channels).half()
