"""The tables that a config chooses from: a name stands for an entry, and an entry has a name."""

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import BuiltinFunctionType, FunctionType
from typing import Any, get_type_hints

from torch import nn

from fedwsq.algorithms import ALGORITHMS, SERVER_OPTIMIZERS, Algorithm, ServerOptimizer
from fedwsq.codecs import BITS, CODECS, BitPolicy, Codec
from fedwsq.core.errors import ConfigError, did_you_mean
from fedwsq.core.recipe import Recipe
from fedwsq.data import DATASETS, PARTITIONS, Dataset, Split
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


# What the functions of these kinds must give.
RESULTS: dict[Any, type] = {LoadData: Dataset, SplitData: Split, BuildModel: nn.Module}

# The `module:name` that may be imported. None is any: who writes Python runs what they like.
_trusted: ContextVar[frozenset[str] | None] = ContextVar("trusted", default=None)


@contextmanager
def importing_only(names: Iterable[str]) -> Iterator[None]:
    """Within, settings that name other code than this are refused."""
    token = _trusted.set(frozenset(names))
    try:
        yield
    finally:
        _trusted.reset(token)


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
    _require_result(kind, found, f"{where} is {name!r}")
    return found


def _require_result(kind: Any, found: Callable[..., object], said: str) -> None:
    """Refuse, before it is called, what cannot give what is wanted of it."""
    # Where it was defined; what it says of its module may be copied from another function.
    home = None
    if isinstance(found, FunctionType):
        home = found.__globals__.get("__name__")
    elif isinstance(found, type | BuiltinFunctionType):
        home = found.__module__
    if isinstance(home, str):
        _require_foreign(home, said)
    wanted = RESULTS.get(kind, object)
    try:
        given = found if isinstance(found, type) else get_type_hints(found).get("return", wanted)
    except (NameError, TypeError, AttributeError):  # annotations that cannot be read say nothing
        return
    if isinstance(given, type) and not issubclass(given, wanted) and given is not object:
        raise ConfigError(f"{said}, which gives {given.__name__}, not a {wanted.__name__}")


def _require_foreign(module: str, said: str) -> None:
    """Refuse `os:system` and the like: Python's own library has nothing that a plan needs."""
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise ConfigError(f"{said}, of Python's own library; name code that was made for a plan")


def _import(name: str, where: str) -> object:
    module, _, attribute = name.partition(":")
    if module == "__main__":
        raise ConfigError(
            f"{where} is {name!r}, in the script that runs; put it into a file that can be imported"
        )
    trusted = _trusted.get()
    if trusted is not None and name not in trusted:
        raise ConfigError(f"{where} is {name!r}, code outside the package; give --trust to run it")
    _require_foreign(module, f"{where} is {name!r}")
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
