"""Train a part of a model: what is frozen never travels, so it must be the same everywhere."""

import re
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fedwsq.core.errors import ConfigError
from fedwsq.core.types import Params

M = TypeVar("M", bound=nn.Module)


def train_only(model: M, pattern: str) -> M:
    """Freeze, in place, every parameter in whose name `re.search` does not find `pattern`.

    The empty pattern freezes none. A tied parameter goes by any of its names. What the model's own
    code froze stays frozen.
    """
    named = dict(model.named_parameters(remove_duplicate=False))
    chosen = {p for name, p in named.items() if re.search(pattern, name)}
    if not named:
        raise ConfigError("nothing to train: the model has no parameters")
    if not chosen:
        some = ", ".join(islice(named, 5))
        if len(named) > 5:
            some += ", ..."
        raise ConfigError(
            f"model.train = {pattern!r} finds none of the model's parameters; "
            f"their names are {some}"
        )

    for p in named.values():
        p.requires_grad_(p.requires_grad and p in chosen)
    if not trainable(model):
        raise ConfigError(
            "nothing to train: the model's own code froze every parameter that model.train leaves; "
            "call requires_grad_() on some of them"
        )

    if frozen(model):
        for layer in model.modules():
            if isinstance(layer, nn.GroupNorm):
                layer.register_forward_pre_hook(_with_gradient)
    return model


def _with_gradient(norm: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The input of a norm that learns as one that needs a gradient.

    On a CPU, torch 2.13 crashes in the backward pass of a GroupNorm whose channels-last input needs
    none, as behind frozen layers. A norm that is frozen too is left alone: a gradient through it
    would be for nothing.
    """
    x: Tensor = inputs[0]
    learns = any(p.requires_grad for p in norm.parameters(recurse=False))
    if not learns or x.requires_grad or not torch.is_grad_enabled():
        return None
    return (x.detach().requires_grad_(), *inputs[1:])


def trainable(model: nn.Module) -> Params:
    """The model's own parameters that learn and travel, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def frozen(model: nn.Module) -> Params:
    """The others: they stay as they were built."""
    return {name: p for name, p in model.named_parameters() if not p.requires_grad}
