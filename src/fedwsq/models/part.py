"""Train a part of a model: what is frozen never travels, so it must be the same everywhere to begin with."""

import re
from itertools import islice
from typing import TypeVar

from torch import nn

from fedwsq.core.errors import ConfigError
from fedwsq.core.types import Params

M = TypeVar("M", bound=nn.Module)


def train_only(model: M, pattern: str) -> M:
    """Freeze, in place, every parameter in whose name `re.search` does not find `pattern`; "" freezes none.

    A tied parameter goes by any of its names. What the model's own code froze stays frozen.
    """
    named = dict(model.named_parameters(remove_duplicate=False))
    chosen = {p for name, p in named.items() if re.search(pattern, name)}
    if not chosen and named:
        some = ", ".join(islice(named, 5)) + (", ..." if len(named) > 5 else "")
        raise ConfigError(f"model.train = {pattern!r} finds none of the model's parameters; their names are {some}")
    for p in named.values():
        p.requires_grad_(p.requires_grad and p in chosen)
    if not trainable(model):
        raise ConfigError(
            "nothing to train: the model has no parameters" if not named
            else "nothing to train: the model's own code froze every parameter that model.train leaves; "
            "call requires_grad_() on some of them"
        )  # fmt: skip
    return model


def trainable(model: nn.Module) -> Params:
    """The model's own parameters that learn and travel, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def frozen(model: nn.Module) -> Params:
    """The others."""
    return {name: p for name, p in model.named_parameters() if not p.requires_grad}
