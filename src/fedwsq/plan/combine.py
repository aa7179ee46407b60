"""How a round's updates become one: by their mean, or by what a few bad ones cannot move far.

All but the mean count every client alike. They see the updates in blocks, [clients, coordinates],
so that no more than a block has to be in memory.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedwsq.core.errors import ConfigError

Block: TypeAlias = NDArray[np.float32]  # [updates, coordinates]
Doubles: TypeAlias = NDArray[np.float64]
NOTHING: Doubles = np.zeros(())


class Combine(ABC):
    """A frozen dataclass whose fields are its settings.

    `survey` is asked of every block first, and its answers are added up: that is what is known of
    the updates as a whole. Then `merge` makes one update of each block.

        known = sum(combine.survey(block) for block in blocks)
        update = np.concatenate([combine.merge(block, known) for block in blocks])
    """

    # Whether each coordinate is looked at by itself: then codes that are mostly zeros cancel out.
    by_coordinate: ClassVar[bool] = False

    @property
    def bucket(self) -> int:
        """How many updates, drawn at random, are averaged to one beforehand; 1: none are."""
        return 1

    def check(self, updates: int) -> None:
        """Raise `ConfigError` where so many updates a round are too few."""
        return  # one will do

    @abstractmethod
    def survey(self, block: Block) -> Doubles:
        """What has to be known of all coordinates; it adds up over blocks."""

    @abstractmethod
    def merge(self, block: Block, known: Doubles) -> Block:
        """One update: [coordinates]."""


@dataclass(frozen=True)
class Mean(Combine):
    """sum(p x) / sum(p), with the weights p of `aggregation`; each is added as it comes."""

    def survey(self, block: Block) -> Doubles:
        return NOTHING

    def merge(self, block: Block, known: Doubles) -> Block:
        return _mean(block)


@dataclass(frozen=True)
class Robust(Combine):
    """What the others share.

    With `bucket` above 1, updates are averaged at random in groups of so many first: the averages
    are closer to each other than updates of clients with skewed classes are, and as many of them
    are bad as there are attackers, at most (Karimireddy et al., 2022, arXiv:2006.09365).
    """

    bucket: int = 1

    def __post_init__(self) -> None:
        if self.bucket < 1:
            raise ConfigError(f"bucket is {self.bucket}, must be at least 1")

    def check(self, updates: int) -> None:
        found = math.ceil(updates / self.bucket)
        if found < 3:
            buckets = f" in buckets of {self.bucket}" if self.bucket > 1 else ""
            raise ConfigError(
                f"combine needs 3 updates a round, of which one may be bad; {updates} "
                f"clients{buckets} are {found}: ask more with clients_per_round, or use "
                "combine=mean"
            )

    def survey(self, block: Block) -> Doubles:
        return NOTHING


@dataclass(frozen=True)
class TrimmedMean(Robust):
    """The mean of each coordinate without its largest and its smallest values.

    `cut` is the share that goes at each end, rounded up (Yin et al., 2018, arXiv:1803.01498).
    """

    cut: float = 0.2
    by_coordinate = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.cut < 0.5:
            raise ConfigError(f"cut is {self.cut}, must be above 0 and below 0.5")

    def merge(self, block: Block, known: Doubles) -> Block:
        count = len(block)
        each = math.ceil(self.cut * count - 1e-9)  # 0.1 * 30 is a little above 3
        each = min(each, (count - 1) // 2)
        return _mean(np.sort(block, axis=0)[each : count - each])


@dataclass(frozen=True)
class Median(Robust):
    """The median of each coordinate (Yin et al., 2018, arXiv:1803.01498)."""

    by_coordinate = True

    def merge(self, block: Block, known: Doubles) -> Block:
        return _median(block)


@dataclass(frozen=True)
class CentredClipping(Robust):
    """The mean of updates that are pulled towards a centre where they are far from it.

    c + mean((x - c) min(1, radius / |x - c|)), after Karimireddy et al. (2021, arXiv:2012.10333).
    The centre is the median of each coordinate, where theirs is the round before; `radius` is in
    medians of the distances, where theirs is a number.
    """

    radius: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.radius > 0:
            raise ConfigError(f"radius is {self.radius}, must be above 0")

    def survey(self, block: Block) -> Doubles:
        """The squared distances to the centre."""
        found: Doubles = np.square(block - _median(block), dtype=np.float64).sum(1)
        return found

    def merge(self, block: Block, known: Doubles) -> Block:
        distances = np.sqrt(known)
        limit = self.radius * np.median(distances)
        shares = np.ones(len(block))
        far = distances > limit
        shares[far] = limit / distances[far]
        centre = _median(block)
        return centre + _mean((block - centre) * shares[:, None].astype(np.float32))


@dataclass(frozen=True)
class Krum(Robust):
    """The mean of all updates but the `bad` ones that are farthest from their neighbours.

    Multi-Krum (Blanchard et al., 2017, arXiv:1703.02757): an update's score is the sum of its
    squared distances to the nearest n - bad - 2 others.
    """

    bad: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bad < 1:
            raise ConfigError(f"bad is {self.bad}, must be at least 1")

    def check(self, updates: int) -> None:
        super().check(updates)
        found = math.ceil(updates / self.bucket)
        if found < 2 * self.bad + 3:
            raise ConfigError(
                f"krum with bad = {self.bad} needs {2 * self.bad + 3} updates a round, and there "
                f"are {found}: ask more with clients_per_round, or use combine=median"
            )

    def survey(self, block: Block) -> Doubles:
        """The inner products of all pairs."""
        wide = block.astype(np.float64)
        products: Doubles = wide @ wide.T
        return products

    def merge(self, block: Block, known: Doubles) -> Block:
        return _mean(block[self.chosen(known)])

    def chosen(self, products: Doubles) -> NDArray[np.intp]:
        """Who counts, in order; of fewer replies than asked, at least one."""
        squares = np.diag(products)
        distances = squares[:, None] + squares - 2 * products
        count = len(distances)
        near = max(count - self.bad - 2, 1)
        # The nearest of all is the update itself.
        scores = np.sort(distances, axis=1)[:, 1 : 1 + near].sum(1)
        kept = max(count - self.bad, 1)
        return np.sort(np.argsort(scores, kind="stable")[:kept])


def _mean(block: Block) -> Block:
    found: Block = block.mean(0)
    return found


def _median(block: Block) -> Block:
    found: Block = np.median(block, axis=0)
    return found


COMBINES: dict[str, type[Combine]] = {
    "mean": Mean,
    "trimmed_mean": TrimmedMean,
    "median": Median,
    "centred_clipping": CentredClipping,
    "krum": Krum,
}


def combine_name(combine: Combine) -> str:
    """What errors call it."""
    for name, listed in COMBINES.items():
        if listed is type(combine):
            return name
    return type(combine).__name__
