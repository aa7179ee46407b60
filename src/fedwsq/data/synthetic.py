"""Pictures made up on the spot, as many as wanted: for tests of scale and for trying things."""

import math

import numpy as np
import torch

from fedwsq.core.errors import ConfigError
from fedwsq.core.seeds import numpy_rng
from fedwsq.data.dataset import Dataset, Examples

ROWS = 2**14  # made at once
MAX_BYTES = 2**48  # of all pictures


def synthetic(
    samples: int = 10_000,
    test_samples: int = 1_000,
    classes: int = 10,
    size: int = 8,
    channels: int = 1,
    noise: float = 0.75,
    seed: int = 0,
) -> Dataset:
    """A random picture for each class under noise; any number of samples, one byte a pixel."""
    sizes = {"samples": samples, "test_samples": test_samples, "size": size, "channels": channels}
    for name, value in sizes.items():
        if value < 1:
            raise ConfigError(f"synthetic {name} is {value}, must be at least 1")
    if math.prod((max(samples, test_samples), channels, size, size)) > MAX_BYTES:
        raise ConfigError(f"synthetic pixels are {sizes}: no machine holds so many")
    if not 1 <= classes <= samples:
        raise ConfigError(
            f"synthetic classes is {classes}, must be 1 to the number of samples, {samples}"
        )
    if not 0 <= noise <= 1:
        raise ConfigError(f"synthetic noise is {noise}, must be a share of the brightness, 0 to 1")
    faces = numpy_rng(seed, "synthetic", "pattern").random((classes, channels, size, size))
    pattern = ((1 - noise) * 255 * faces).astype(np.uint8)
    # Together at most 255: bytes add up without overflow.
    grain = (noise * np.arange(256)).astype(np.uint8)

    def make(count: int, name: str) -> Examples:
        rng = numpy_rng(seed, "synthetic", name)
        y = np.arange(count) % classes
        x = np.empty((count, channels, size, size), np.uint8)
        for start in range(0, count, ROWS):
            rows = x[start : start + ROWS]
            dice = np.frombuffer(rng.bytes(rows.size), np.uint8)
            np.take(grain, dice.reshape(rows.shape), out=rows)
            rows += pattern[y[start : start + ROWS]]
        return Examples([torch.from_numpy(x)], torch.from_numpy(y))

    return Dataset(make(samples, "train"), make(test_samples, "test"), classes)
