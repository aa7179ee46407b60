"""Objects in a plan: by name where other processes can import them, else held in this process."""

import copy
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import tomli_w
from torch import nn

from fedwsq.algorithms import Algorithm
from fedwsq.codecs import BitPolicy, Codec
from fedwsq.core.errors import ConfigError, did_you_mean
from fedwsq.core.recipe import Recipe
from fedwsq.evaluation import Metric
from fedwsq.plan import TABLES, BuildModel, LoadData, Plan, SplitData, entry_settings
from fedwsq.runs import here
from fedwsq.runs.arrays import as_dataset, as_split, given_split, is_pair
from fedwsq.training import Criterion, Optimizer
from fedwsq.wire.channels import Channels

# Keywords of `run` that stand for a setting with another name.
SHORT = {
    "model": "model.name",
    "data": "data.name",
    "split": "data.partition",
    "clients": "data.clients",
    "codec": "uplink.codec",
    "bits": "uplink.bits",
}
TOP = (*(f.name for f in fields(Plan)), "method")
# With settings below them; the last is not there by default.
GROUPS = (*(f.name for f in fields(Plan) if is_dataclass(f.default)), "privacy")
# The settings that take an object, and the table that its name would be looked up in.
KINDS: dict[str, Any] = {
    "model.name": BuildModel,
    "data.name": LoadData,
    "data.partition": SplitData,
    "algorithm": Algorithm,
    "uplink.codec": Codec,
    "uplink.bits": BitPolicy,
    "downlink.codec": Codec,
    "training.criterion": Criterion,
    "training.optimizer": Optimizer,
    "metric": Metric,
    "channels": Channels,
}
PLAIN = (str, bool, int, float, Mapping)  # what a config says itself


def setting(keyword: str) -> str:
    """The dotted key that a keyword means: `training_lr` is training.lr, `bits` is uplink.bits."""
    if keyword in SHORT:
        return SHORT[keyword]
    if keyword in TOP:
        return keyword
    group, _, rest = keyword.partition("_")
    if group in GROUPS and rest:
        return f"{group}.{rest}"
    known = (*SHORT, *TOP)
    raise ConfigError(
        f"unknown keyword {keyword}; settings are {', '.join(known)}, and those of a table with an "
        f"underscore, such as training_lr{did_you_mean(keyword, known)}"
    )


class Objects:
    """The settings of a call, with a name for every object, and the objects that need `here`."""

    def __init__(self, given: Mapping[str, object]) -> None:
        """`given` is by dotted key."""
        self.held: dict[str, object] = {}
        self.roles: list[str] = []  # the settings that hold them, in words
        self.start: nn.Module | None = None  # whose weights the run is to start from
        self.settings: dict[str, object] = {}
        self.given: set[str] = set()  # the settings that came with an object
        if "data.partition" in given:
            _require_known_examples(given)
        self._pair = is_pair(given.get("data.name"))
        for key, value in given.items():
            self._add(key, value, given)

    def _add(self, key: str, value: object, given: Mapping[str, object]) -> None:
        # `model = {"name": ...}` is a table of its own.
        if isinstance(value, Mapping) and key.endswith(".name"):
            self.settings[key.removesuffix(".name")] = value
            return
        if key == "data.partition" and isinstance(value, Mapping):
            _require_named(value)
        if key not in KINDS or isinstance(value, PLAIN):
            self.settings[key] = value
            return
        self.given.add(key)
        if key == "model.name" and isinstance(value, nn.Module):
            self._model(value, given)
        elif key == "data.name" and not callable(value):
            dataset = as_dataset(value)
            self.settings[key] = self._hold("data", lambda: dataset)
        elif key == "data.partition" and not callable(value):
            split = as_split(value)
            self.settings[key] = self._hold("split", given_split(split))
            self._count_clients(len(split), given)
        else:
            self.settings[key] = self._entry(key, value)

    def _model(self, model: nn.Module, given: Mapping[str, object]) -> None:
        """Train a copy: what the caller does with the model later is no part of the run."""
        kept = copy.deepcopy(model).cpu()
        # Said out loud, an empty `model.init` means what it means in a config: from the seed.
        fresh = given.get("model.init") == ""
        if "model.init" not in given:
            self.start = kept

        def build() -> nn.Module:
            network = copy.deepcopy(kept)
            if fresh:
                _draw_anew(network)
            return network

        build.__name__ = type(model).__name__
        self.settings["model.name"] = self._hold("model", build)

    def _count_clients(self, count: int, given: Mapping[str, object]) -> None:
        asked = given.get("data.clients", count)
        if asked != count:
            raise ConfigError(
                f"clients is {asked}, but split has {count} lists, one for each client; "
                "leave clients out"
            )
        self.settings["data.clients"] = count
        self.given |= {"data.clients", "clients_per_round"}
        # What the config says suits its own clients.
        if "clients_per_round" not in given:
            self.settings["clients_per_round"] = min(count, Plan().clients_per_round)

    def _entry(self, key: str, value: object) -> object:
        """A function, a class or a dataclass with its fields."""
        kind = KINDS[key]
        role = key.removesuffix(".name").rpartition(".")[2]
        if issubclass(kind, Recipe):
            if not callable(value):
                raise ConfigError(f"{key} is of type {type(value).__name__}, must be a function")
            return self._name(kind, role, value)
        target = value if isinstance(value, type) else type(value)
        if not is_dataclass(target):
            raise ConfigError(
                f"{key} is of type {target.__name__}, which is not a dataclass; its fields are "
                "what a config can set, so write @dataclass(frozen=True) above it"
            )
        if target not in TABLES[kind].values() and not importable(target):
            # Under a name of its own, by which the plan finds it again.
            named = {"__module__": here.__name__, "__qualname__": target.__name__}
            target = type(target.__name__, (target,), named)
            self._hold(role, target)
        if isinstance(value, type):
            return self._name(kind, role, target)
        return _written(key, kind, value, target)

    def _name(self, kind: Any, role: str, target: Callable[..., object]) -> str:
        for name, listed in TABLES[kind].items():
            if listed is target:
                return name
        if getattr(target, "__module__", "") == here.__name__:
            return f"{here.__name__}:{target.__name__}"
        if importable(target):
            return f"{target.__module__}:{target.__name__}"
        return self._hold(role, target)

    def _hold(self, role: str, target: Callable[..., object]) -> str:
        name = getattr(target, "__name__", role)
        taken = name in self.held or name in vars(here)
        if taken or not name.isidentifier():
            name = f"own_{role}"
        self.held[name] = _with_a_signature(target)
        self.roles.append(role)
        return f"{here.__name__}:{name}"

    def notes(self, resumed: bool) -> list[str]:
        """What the caller may not have thought of."""
        notes = []
        if self.held:
            notes.append(
                f"other processes cannot import these objects: {', '.join(self.roles)}; so all "
                "clients train in this one. In a module of their own they would use all cores"
            )
        if self.start is not None and not resumed:
            notes.append("the model starts from its own weights; from the seed with model_init=''")
        if self._pair and not resumed:
            notes.append("of data=(x, y) a fifth is held out for testing")
        return notes


def importable(target: Any) -> bool:
    """Whether a fresh process finds this very object by module and name."""
    home = getattr(target, "__module__", None)
    module = sys.modules.get(home) if isinstance(home, str) else None
    if module is None or home == "__main__":
        return False
    # A class in a class or in a function is not to be had by one name.
    if getattr(module, getattr(target, "__qualname__", ""), None) is not target:
        return False
    root = module.__name__.partition(".")[0]
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
    return any(finder.find_spec(root, None) is not None for finder in finders)


def _with_a_signature(target: Callable[..., object]) -> Callable[..., object]:
    """A function or a class: of anything else that can be called a plan cannot read the types."""
    if isinstance(target, type) or inspect.isfunction(target):
        return target

    def call(**given: Any) -> object:
        return target(**given)

    return functools.update_wrapper(call, target)


def _written(key: str, kind: Any, value: Any, target: type) -> dict[str, Any]:
    """An instance as settings; of the class by which the plan will find it."""
    own = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
    settings = entry_settings(kind, target(**own))
    try:
        tomli_w.dumps(settings)
    except TypeError as error:
        raise ConfigError(
            f"{key} is {value!r}, and a config cannot say one of its fields: {error}; "
            "numbers, strings and lists of them it can"
        ) from None
    return settings


def _require_known_examples(given: Mapping[str, object]) -> None:
    """Indices are those of training examples, so it must be clear which these are."""
    split = given["data.partition"]
    if isinstance(split, PLAIN) or callable(split):
        return
    if is_pair(given.get("data.name")):
        raise ConfigError(
            "split names training examples, and of data=(x, y) a part is held out for testing; "
            "give data=(x_train, y_train, x_test, y_test)"
        )
    if given.get("data.validation"):
        raise ConfigError(
            "split names training examples, and data.validation holds some of them out; "
            "hold them out before, as x_test and y_test"
        )


def _require_named(split: Mapping[Any, object]) -> None:
    """A table is a split by name with its settings; one of clients and indices is none."""
    for key in split:
        if not isinstance(key, str):
            raise ConfigError(
                f"split is a dictionary with the key {key!r}; give the indices of every client as "
                "a list of lists, in the order of the clients: list(split.values())"
            )


def _draw_anew(network: nn.Module) -> None:
    for name, module in network.named_modules():
        reset = getattr(module, "reset_parameters", None)
        if reset is not None:
            reset()
        elif next(module.parameters(recurse=False), None) is not None:
            raise ConfigError(
                f"model_init is '', but layer '{name}' ({type(module).__name__}) has no "
                "reset_parameters() to draw its weights anew; give the class instead of an instance"
            )
