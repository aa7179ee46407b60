"""The tables that a config chooses from: a name stands for an entry, and an entry has a name."""

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from fedwsq.algorithms import ALGORITHMS, SERVER_OPTIMIZERS, Algorithm, ServerOptimizer
from fedwsq.codecs import BITS, CODECS, BitPolicy, Codec
from fedwsq.core.errors import ConfigError, did_you_mean
from fedwsq.core.recipe import Recipe
from fedwsq.data import DATASETS, PARTITIONS
from fedwsq.evaluation import METRICS, Metric
from fedwsq.models import MODELS, STANDARDIZATIONS, Standardization
from fedwsq.plan.combine import COMBINES, Combine
from fedwsq.plan.settings import BuildModel, LoadData, SplitData
from fedwsq.training import CRITERIA, OPTIMIZERS, Criterion, Optimizer
from fedwsq.wire.channels import CHANNELS, Channels

# The type that a field is annotated with -> what may stand there, by name.
TABLES: dict[Any, Mapping[str, Callable[..., Any]]] = {
    Algorithm: ALGORITHMS,
    BitPolicy: BITS,
    BuildModel: MODELS,
    Channels: CHANNELS,
    Codec: CODECS,
    Combine: COMBINES,
    Criterion: CRITERIA,
    LoadData: DATASETS,
    Metric: METRICS,
    Optimizer: OPTIMIZERS,
    ServerOptimizer: SERVER_OPTIMIZERS,
    SplitData: PARTITIONS,
    Standardization: STANDARDIZATIONS,
}


def bits_by_number(value: object) -> object:
    """`bits = 4` is the policy that gives everyone 4 bits."""
    if isinstance(value, int | float):
        return {"name": "fixed", "bits": value}
    return value


def standardization_by_truth(value: object) -> object:
    """`standardize = true` is weight standardization, `false` is none."""
    if isinstance(value, bool):
        return "ws" if value else "none"
    return value


# What stands for a name or a table in some places; other values stay as they are.
SHORTHANDS: dict[Any, Callable[[object], object]] = {
    BitPolicy: bits_by_number,
    Standardization: standardization_by_truth,
}


def find_entry(kind: Any, name: object, where: str) -> Any:
    """The entry of a name: one of the table of its kind, or `module:name` from outside."""
    table = TABLES[kind]
    if not isinstance(name, str):
        raise ConfigError(f"{where}.name is {name!r}, must be a string")
    if name in table:
        return table[name]
    if ":" not in name:
        offer = f"{', '.join(table)} or module:name{did_you_mean(name, table)}"
        raise ConfigError(f"{where} is {name!r}; it can be {offer}")

    found = _import(name, where)
    if not callable(found):
        kind_found = type(found).__name__
        raise ConfigError(f"{where} is {name!r}, which is {kind_found}, not a function or a class")
    return found


def _import(name: str, where: str) -> object:
    module, _, attribute = name.partition(":")
    if module == "__main__":
        raise ConfigError(
            f"{where} is {name!r}, in the script that runs; put it into a file that can be imported"
        )
    # An installed `fedwsq` does not look for modules in the folder that it is started in.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"{where} is {name!r}, which cannot be imported: {error}") from None


def name_of(kind: Any, entry: object) -> str:
    """The name that `find_entry` would find it by."""
    if isinstance(entry, Recipe):
        return entry.name
    target = type(entry)
    # By identity: a subclass of an entry is another entry.
    for name, listed in TABLES[kind].items():
        if listed is target:
            return name
    if target.__module__ == "__main__":
        raise ConfigError(
            f"{target.__qualname__} is defined in the script that runs, where workers and a later "
            "resume cannot find it; put it into a file that can be imported"
        )
    return f"{target.__module__}:{target.__qualname__}"
