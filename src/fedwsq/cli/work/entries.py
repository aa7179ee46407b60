"""The tables of `fedwsq ls` whose entries are code: their settings are read from it."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from fedwsq.algorithms import ALGORITHMS, SERVER_OPTIMIZERS
from fedwsq.codecs import BITS, CODECS
from fedwsq.data import DATASETS, PARTITIONS
from fedwsq.evaluation import METRICS
from fedwsq.models import MODELS, STANDARDIZATIONS
from fedwsq.plan import COMBINES
from fedwsq.training import CRITERIA, OPTIMIZERS
from fedwsq.wire.channels import CHANNELS

TABLES: dict[str, Mapping[str, Callable[..., Any]]] = {
    "algorithms": ALGORITHMS,
    "codecs": CODECS,
    "bits": BITS,
    "channels": CHANNELS,
    "combines": COMBINES,
    "models": MODELS,
    "standardizations": STANDARDIZATIONS,
    "datasets": DATASETS,
    "partitions": PARTITIONS,
    "server-optimizers": SERVER_OPTIMIZERS,
    "optimizers": OPTIMIZERS,
    "criteria": CRITERIA,
    "metrics": METRICS,
}
# Arguments that a run gives to a model, a split, a criterion or a metric; no config can.
GIVEN = ("classes", "channels", "labels", "clients", "groups", "outputs", "targets")
NEEDED = "(needed)"
# What an empty default stands for.
SOURCES = {"root": "$FEDWSQ_DATA or ./data", "path": NEEDED}


def settings(entry: Callable[..., Any]) -> dict[str, Any]:
    """What a config can set, the defaults, and what has none: `{"alpha": 0.3}`."""
    if is_dataclass(entry):
        return {f.name: f.default for f in fields(entry)}
    found = {}
    for name, parameter in inspect.signature(entry).parameters.items():
        needed = parameter.default is parameter.empty
        # A seed without a default is that of the run.
        if name in GIVEN or (needed and name == "seed"):
            continue
        if needed:
            found[name] = NEEDED
        elif parameter.default == "" and name in SOURCES:
            found[name] = SOURCES[name]
        else:
            found[name] = repr(parameter.default)
    return found
