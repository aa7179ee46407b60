"""How much a client counts in the mean update, sum(p x) / sum(p): where its weight p comes from."""

from collections.abc import Callable
from typing import Literal, TypeAlias

Aggregation: TypeAlias = Literal["examples", "uniform", "error"]


def by_examples(examples: float, error: float) -> float:
    """The paper's Eq. 1: as much as it has examples."""
    return examples


def all_alike(examples: float, error: float) -> float:
    """The published code, and the mean that FedDyn, FedSMOO and SCAFFOLD are derived for."""
    return 1.0


def by_error(examples: float, error: float) -> float:
    """FedHQ+: the less, the more its code lost. `error` is squared, relative to the update."""
    return 1 / (1 + error)


WEIGH: dict[Aggregation, Callable[[float, float], float]] = {
    "examples": by_examples,
    "uniform": all_alike,
    "error": by_error,
}
