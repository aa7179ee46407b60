"""`fedwsq bench`: how fast the hot paths are, as ratios within one run; one group a file."""

from collections.abc import Callable

from fedwsq.bench import codec, fold, population, round, start, step
from fedwsq.bench.figure import Figure

GROUPS: dict[str, Callable[[], list[Figure]]] = {
    "codec": codec.measure,
    "fold": fold.measure,
    "step": step.measure,
    "round": round.measure,
    "population": population.measure,
    "start": start.measure,
}
