"""Start from given weights: a safetensors file with the model's own names and shapes."""

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import numpy as np
import safetensors
import torch
from torch import Tensor, nn

from fedwsq.core.errors import ConfigError
from fedwsq.core.files import file_digest
from fedwsq.core.types import Params, Shape
from fedwsq.models.scaled import ScaledWSLayer
from fedwsq.models.standardize import WSLayer

BAKED = "baked"  # the metadata key that marks weights which `bake` has standardized
RHO = "rho"  # beside it: what `bake` has multiplied biases by, as JSON, for each WS layer
CHECKPOINT = "server/params/"  # what a run's checkpoint puts before the names of its raw weights

Names: TypeAlias = dict[Tensor, list[str]]  # parameter -> all its names, several if it is tied


def load_weights(model: nn.Module, path: str, classes: int = 0) -> None:
    """Copy a file's parameters into the model, or raise `ConfigError` that says what does not fit.

    Any state_dict as safetensors will do, and so will a run's `model.safetensors`,
    `best.safetensors` and checkpoints. A WS layer of a baked file is given the spread of a fresh
    one: what it computes is the same, but as it stands, at a spread of rho, the first training
    steps would be thousands of times too long for it. Its bias is divided by the rho that `bake`
    multiplied it by: the one that the file names, else the layer's own.
    """
    file = _read(path)
    rhos = _rhos(file)
    names: Names = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        names.setdefault(p, []).append(name)
    _require_fit(file, model, names, classes)

    stored = {p: _value(file, tied) for p, tied in names.items()}
    values = dict(stored)  # from `stored`, so that a tied bias is divided once
    if BAKED in file.metadata:
        for name, layer in model.named_modules():
            if isinstance(layer, WSLayer):
                values[layer.weight] = _spread_like(layer.weight, stored[layer.weight])
                if layer.bias is not None:
                    rho = layer.rho if rhos is None else rhos.get(name, 1.0)
                    values[layer.bias] = stored[layer.bias] / rho

    with torch.no_grad():
        for parameter, value in values.items():
            parameter.copy_(value)


def baked_metadata(model: nn.Module) -> dict[str, str]:
    """What a file of the weights that `bake` makes of this model has to say of them."""
    rhos = {}
    for name, layer in model.named_modules():
        if isinstance(layer, WSLayer):
            rhos[name] = 1.0 if isinstance(layer, ScaledWSLayer) else layer.rho
    if not rhos:
        return {}
    return {BAKED: "true", RHO: json.dumps(rhos)}


def weights_digest(path: str) -> str:
    """A hash of the file that `model.init` names."""
    return file_digest(weights_file(path))


def weights_file(path: str) -> Path:
    source = Path(path).expanduser()
    if not source.is_file():
        raise ConfigError(
            f"model.init = {path}: there is no such file; every process reads it from that path"
        )
    return source


@dataclass(frozen=True)
class _File:
    """What was read from a file of weights."""

    path: str
    tensors: Params
    metadata: dict[str, str]
    checkpoint: bool  # of a run, with the raw weights of what was trained


def _read(path: str) -> _File:
    """The file may come from anywhere: nothing of it is run."""
    source = weights_file(path)
    try:
        with safetensors.safe_open(source, "pt") as file:
            keys = list(file.keys())
            raw = [key for key in keys if key.startswith(CHECKPOINT)]
            tensors = {key.removeprefix(CHECKPOINT): file.get_tensor(key) for key in raw or keys}
            return _File(path, tensors, file.metadata() or {}, bool(raw))
    except Exception as error:  # whatever a damaged file makes the reader say
        raise ConfigError(
            f"model.init = {path} is not a safetensors file, or damaged ({error}); "
            "write one with safetensors.torch.save_file(model.state_dict(), path)"
        ) from None


def _rhos(file: _File) -> dict[str, float] | None:
    """What the bias of each baked layer was multiplied by; None where the file does not say."""
    if RHO not in file.metadata:
        return None
    rhos = {"": math.nan}  # what cannot be read is refused with what makes no sense
    with contextlib.suppress(ValueError, TypeError, AttributeError, RecursionError):
        given = json.loads(file.metadata[RHO]).items()
        rhos = {str(name): float(rho) for name, rho in given}
    if not all(math.isfinite(rho) and rho > 0 for rho in rhos.values()):
        raise ConfigError(
            f"model.init = {file.path} is damaged: "
            f"its entry {RHO} must give each layer a number above 0"
        )
    return rhos


def _require_fit(file: _File, model: nn.Module, names: Names, classes: int) -> None:
    """Raise unless the file has each parameter under one of its names, and nothing unknown."""
    known = set(model.state_dict())  # buffers may be there
    missing = []
    differ: dict[str, tuple[Shape, Shape]] = {}  # the shapes in the file and in the model
    for p, tied in names.items():
        known.update(tied)
        given = [name for name in tied if name in file.tensors]
        if not given:
            missing.append(tied[0])
        for name in given:
            shape = file.tensors[name].shape
            if shape != p.shape:
                differ[name] = (shape, p.shape)
    extra = [name for name in file.tensors if name not in known]

    if not missing and not extra:
        _require_same_classes(file, differ, classes)
    said = []
    if missing:
        said.append(f"it lacks {_few(missing)}")
    if extra:
        said.append(f"it has {_few(extra)}, which the model has not")
    for name, (there, here) in islice(differ.items(), 3):
        said.append(f"{name} is {list(there)} there and {list(here)} in the model")
    if not said:
        return

    way_out = (
        "set model.name and model.standardize to what it was saved from, or rename its tensors"
    )
    if missing and all(name.endswith(".gain") for name in missing):
        way_out = (
            "gains were folded into its weights: "
            "take the run's checkpoints/last.safetensors instead"
        )
    elif file.checkpoint and not (extra or differ):
        way_out = "this checkpoint holds only what was trained; use the run's model.safetensors"
    raise ConfigError(
        f"model.init = {file.path} does not fit the model: {'; '.join(said)}; {way_out}"
    )


def _require_same_classes(
    file: _File, differ: Mapping[str, tuple[Shape, Shape]], classes: int
) -> None:
    """Raise if the shapes that differ are those of a classifier for other classes."""
    outputs = set()
    for there, here in differ.values():
        if not there or there[1:] != here[1:] or here[:1] != (classes,):
            return
        outputs.add(there[0])
    if len(outputs) == 1 and 0 not in outputs:
        raise ConfigError(
            f"model.init = {file.path} has a classifier of {outputs.pop()} classes "
            f"({', '.join(differ)}), the data has {classes}; to keep the other layers only, "
            "load them in a function of your own, model.name = module:name"
        )


def _few(names: Sequence[str]) -> str:
    text = ", ".join(names[:3])
    if len(names) > 3:
        text += f" and {len(names) - 3} more"
    return text


def _value(file: _File, tied: Sequence[str]) -> Tensor:
    """The value of a parameter that has these names; half precision becomes float32."""
    first, *others = (name for name in tied if name in file.tensors)
    x = file.tensors[first]
    for other in others:
        if not torch.equal(x, file.tensors[other]):
            raise ConfigError(
                f"model.init = {file.path}: {first} and {other} differ, "
                "but are one tensor in the model"
            )

    if x.is_floating_point() and torch.isfinite(x).all():
        return x.float()
    wrong = f"is {x.dtype}"
    if x.is_floating_point():
        wrong = "holds values that are not finite"
    raise ConfigError(f"model.init = {file.path}: {first} {wrong}; weights must be finite floats")


def _spread_like(fresh: Tensor, weight: Tensor) -> Tensor:
    """`weight` times what gives it the standard deviation of `fresh`."""
    theirs = _deviation(weight)
    if not theirs:
        return weight
    return weight * (_deviation(fresh) / theirs)


def _deviation(x: Tensor) -> float:
    # In numpy, whose sums do not depend on the number of threads.
    return float(np.std(x.detach().numpy(), dtype=np.float64))
