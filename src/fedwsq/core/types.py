"""The vocabulary of the package: what algorithms, codecs, links and backends hand each other."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from torch import Tensor

Params: TypeAlias = dict[str, Tensor]  # parameter name -> float32 tensor, model-shaped
Vectors: TypeAlias = dict[str, Params]  # named model-shaped vectors: {"delta": ..., "control": ...}
State: TypeAlias = Vectors  # server and client memory are plain data: saved, shipped, compared
Rate: TypeAlias = float  # bits per parameter
Shape: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = dict[str, Shape]  # parameter name -> shape, in the model's order


class Key(NamedTuple):
    """One piece of client work; all randomness is addressed by it.

    Rounds count from 1, clients from 0.
    """

    seed: int
    round: int
    client: int


class Cohort(NamedTuple):
    """Who took part in a round: FedDyn and SCAFFOLD scale by `replied / population`."""

    round: int
    sampled: int
    replied: int
    population: int


class Channel(NamedTuple):
    """A client's link and speed: drawn, read from a trace, or measured."""

    up_bytes_per_second: float
    down_bytes_per_second: float
    latency_seconds: float
    seconds_per_step: float


@dataclass(frozen=True, slots=True)
class Update:
    """What one client learned in one round, before compression.

    `vectors` always holds "delta" = local - received: the server adds it.
    `weight` is the client's share in the mean, its number of examples.
    """

    vectors: Vectors
    weight: float
    metrics: Mapping[str, float] = field(default_factory=dict)
