"""Start from given weights: a safetensors file with the model's own names and shapes."""

import json
import math
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import safetensors
import torch
from torch import Tensor, nn

from fedwsq.core.errors import ConfigError
from fedwsq.core.files import file_digest
from fedwsq.core.tree import shapes
from fedwsq.core.types import Params, Shapes
from fedwsq.models.scaled import ScaledWSLayer
from fedwsq.models.standardize import WSLayer

BAKED = "baked"  # the metadata key that marks weights which `bake` has standardized
RHO = "rho"  # beside it: what `bake` has multiplied biases by, as JSON, for each layer that was standardized
CHECKPOINT = "server/params/"  # what a checkpoint of a run puts before the names of its raw weights


def load_weights(model: nn.Module, path: str, classes: int = 0) -> None:
    """Copy a file's parameters into the model, or raise `ConfigError` that says what does not fit.

    Any state_dict as safetensors will do, and so will a run's `model.safetensors`, `best.safetensors` and checkpoints.
    A WS layer of a baked file is given the spread of a fresh one: what it computes is the same, but as it stands, at
    a spread of rho, the first training steps would be thousands of times too long for it. Its bias is divided by the
    rho that `bake` multiplied it by: the one that the file names, else the layer's own.
    """
    given, metadata, checkpoint = _read(path)
    baked, rhos = BAKED in metadata, _rhos(metadata, path)
    names: dict[nn.Parameter, list[str]] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        names.setdefault(p, []).append(name)
    _require_fit(model, names, shapes(given), path, classes, checkpoint)
    values = {p: _value(given, tied, path) for p, tied in names.items()}
    stored = dict(values)  # a tied bias is divided once
    for name, layer in model.named_modules():
        if baked and isinstance(layer, WSLayer):
            values[layer.weight] = _spread_like(layer.weight, stored[layer.weight])  # type: ignore[index]
            if layer.bias is not None:
                rho = layer.rho if rhos is None else rhos.get(name, 1.0)
                values[layer.bias] = stored[layer.bias] / rho  # type: ignore[index]
    with torch.no_grad():
        for p, value in values.items():
            p.copy_(value)


def baked_metadata(model: nn.Module) -> dict[str, str]:
    """What a file of the weights that `bake` makes of this model, not baked yet, has to say of them."""
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, WSLayer)}
    rhos = {
        name: 1.0 if isinstance(layer, ScaledWSLayer) else layer.rho
        for name, layer in layers.items()
    }
    return {BAKED: "true", RHO: json.dumps(rhos)} if layers else {}


def weights_digest(path: str) -> str:
    """A hash of the file that `model.init` names."""
    return file_digest(weights_file(path))


def weights_file(path: str) -> Path:
    """The file that `model.init` names."""
    source = Path(path).expanduser()
    if not source.is_file():
        raise ConfigError(
            f"model.init = {path}: there is no such file; every process reads it from that path"
        )
    return source


def _read(path: str) -> tuple[Params, dict[str, str], bool]:
    """The tensors of a file from anywhere, of which nothing is run, its metadata, and whether it is a checkpoint."""
    try:
        with safetensors.safe_open(weights_file(path), "pt") as file:
            keys = list(file.keys())
            raw = [key for key in keys if key.startswith(CHECKPOINT)]
            tensors = {key.removeprefix(CHECKPOINT): file.get_tensor(key) for key in raw or keys}
            return tensors, file.metadata() or {}, bool(raw)
    except ConfigError:
        raise
    except Exception as error:  # whatever a damaged file makes the reader say
        raise ConfigError(
            f"model.init = {path} is not a safetensors file, or damaged ({error}); "
            "write one with safetensors.torch.save_file(model.state_dict(), path)"
        ) from None


def _rhos(metadata: dict[str, str], path: str) -> dict[str, float] | None:
    """What the bias of each baked layer was multiplied by; None where the file does not say."""
    if RHO not in metadata:
        return None
    try:
        rhos = {str(name): float(rho) for name, rho in json.loads(metadata[RHO]).items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        rhos = {"": math.nan}
    if not all(math.isfinite(rho) and rho > 0 for rho in rhos.values()):
        raise ConfigError(
            f"model.init = {path} is damaged: its entry {RHO} must give each layer a number above 0"
        )
    return rhos


def _require_fit(
    model: nn.Module,
    names: dict[nn.Parameter, list[str]],
    given: Shapes,
    path: str,
    classes: int,
    checkpoint: bool,
) -> None:
    """Raise unless the file has every parameter under one of its names, in its shape, and nothing that is unknown."""
    known = {name for tied in names.values() for name in tied} | set(
        model.state_dict()
    )  # buffers may be there
    missing = [tied[0] for tied in names.values() if not any(name in given for name in tied)]
    extra = [name for name in given if name not in known]
    differ = {
        name: (given[name], tuple(p.shape))
        for p, tied in names.items()
        for name in tied
        if name in given and given[name] != tuple(p.shape)
    }
    if not (missing or extra or differ):
        return
    outputs = {
        theirs[0] if theirs[1:] == ours[1:] and ours[:1] == (classes,) else 0
        for theirs, ours in differ.values()
    }
    if not missing and not extra and len(outputs) == 1 and 0 not in outputs:
        raise ConfigError(
            f"model.init = {path} has a classifier of {outputs.pop()} classes ({', '.join(differ)}), the data has "
            f"{classes}; to keep the other layers only, load them in a function of your own, model.name = module:name"
        )
    said = [f"it lacks {_few(missing)}"] if missing else []
    said += [f"it has {_few(extra)}, which the model has not"] if extra else []
    said += [
        f"{name} is {list(a)} there and {list(b)} in the model"
        for name, (a, b) in islice(differ.items(), 3)
    ]
    if missing and all(name.endswith(".gain") for name in missing):
        way_out = "gains were folded into its weights: take the run's checkpoints/last.safetensors instead"
    elif checkpoint and not (extra or differ):
        way_out = "this checkpoint holds only what was trained; use the run's model.safetensors"
    else:
        way_out = (
            "set model.name and model.standardize to what it was saved from, or rename its tensors"
        )
    raise ConfigError(f"model.init = {path} does not fit the model: {'; '.join(said)}; {way_out}")


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _value(given: Params, tied: Sequence[str], path: str) -> Tensor:
    """The value of a parameter that has these names; half precision becomes float32."""
    first, *others = (name for name in tied if name in given)
    x = given[first]
    for other in others:
        if not torch.equal(x, given[other]):
            raise ConfigError(
                f"model.init = {path}: {first} and {other} differ, but are one tensor in the model"
            )
    if not x.is_floating_point() or not torch.isfinite(x).all():
        wrong = f"is {x.dtype}" if not x.is_floating_point() else "holds values that are not finite"
        raise ConfigError(f"model.init = {path}: {first} {wrong}; weights must be finite floats")
    return x.float()


def _spread_like(fresh: Tensor, weight: Tensor) -> Tensor:
    """`weight` times what gives it the standard deviation of `fresh`; in numpy, whose sums do not depend on threads."""
    ours, theirs = (float(np.std(x.detach().numpy(), dtype=np.float64)) for x in (fresh, weight))
    return weight * (ours / theirs) if theirs else weight
