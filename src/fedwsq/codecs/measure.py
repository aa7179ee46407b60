"""What a codec costs and loses, measured on data that everyone can draw again."""

import functools
import math
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwsq.codecs.base import Codec
from fedwsq.core.seeds import numpy_rng
from fedwsq.core.types import Rate

SAMPLE = 2**16  # elements; the error measured on them is within about one percent
REMEMBERED = 1024  # errors of a codec at a rate, of which a policy may choose any
DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, int], NDArray[np.float64]]] = {
    "normal": lambda rng, numel: rng.standard_normal(numel),
    "laplace": lambda rng, numel: rng.laplace(size=numel),
    "student": lambda rng, numel: rng.standard_t(3, numel),  # three degrees of freedom: heavy tails
}


class Measured(NamedTuple):
    """One codec at one rate on one vector."""

    error: float  # |decoded - x|^2 / |x|^2
    bits_per_parameter: float  # the code, and four bytes for each side value
    encode_seconds: float
    decode_seconds: float


def samples(numel: int = SAMPLE) -> dict[str, Tensor]:
    """The same vector of each distribution every time, scaled to a mean square of 1."""
    found = {}
    for name, draw in DISTRIBUTIONS.items():
        x = draw(numpy_rng(0, "measure", name), numel)
        scaled = x / np.sqrt(np.mean(x * x))
        found[name] = torch.from_numpy(scaled.astype(np.float32))
    return found


def measure(codec: Codec, rate: Rate, x: Tensor, repeats: int = 3) -> Measured:
    """Encode and decode `x`, flat and of unit variance, against shared scales of 1.

    Times are medians, NaN of none.
    """
    shared = torch.ones_like(codec.init(x.numel()))
    # Once before the clock runs, which also fills the codec's tables.
    packet = codec.encode(x, shared, rate, seed=0)
    decoded = codec.decode(packet, shared, seed=0)
    sent_bytes = len(packet.code) + 4 * len(packet.side)
    return Measured(
        _energy(decoded - x) / _energy(x),
        8 * sent_bytes / x.numel(),
        median_seconds(lambda: codec.encode(x, shared, rate, seed=0), repeats),
        median_seconds(lambda: codec.decode(packet, shared, seed=0), repeats),
    )


def _energy(x: Tensor) -> float:
    # numpy: the last bits of a torch sum depend on the number of threads
    return float(np.square(x.numpy(), dtype=np.float64).sum())


def median_seconds(work: Callable[[], object], repeats: int) -> float:
    """The median time of some runs."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times) if times else math.nan


@functools.lru_cache(maxsize=REMEMBERED)
def normal_error(codec: Codec, rate: Rate) -> float:
    """The codec's squared error on N(0, 1), with shared scales that are right.

    What was asked for lately is not measured again.
    """
    return measure(codec, rate, _normal(), repeats=0).error


@functools.lru_cache(maxsize=REMEMBERED)
def normal_zeros(codec: Codec, rate: Rate) -> float:
    """The share of values of N(0, 1) that are 0 once decoded."""
    x = _normal()
    shared = torch.ones_like(codec.init(x.numel()))
    decoded = codec.decode(codec.encode(x, shared, rate, seed=0), shared, seed=0)
    return float((decoded == 0).float().mean())


@functools.cache
def _normal() -> Tensor:
    return samples()["normal"]


def usual_rates(codec: Codec) -> list[Rate]:
    """The rates to compare codecs at: 1, 2, 4, 8, or 0.5, 1, 2, 4 of an interval; else all."""
    rates = codec.rates
    usual = (1, 2, 4, 8) if rates.fixed_length else (0.5, 1, 2, 4)
    return [rate for rate in usual if rate in rates] or list(rates.listed)
