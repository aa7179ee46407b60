"""The user's own arrays in one .npz file."""

import math
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedwsq.core.errors import ConfigError, DataError
from fedwsq.data.dataset import Dataset, Examples, check_share, pixel_stats
from fedwsq.data.partition import hold_out

HELP = "write it with numpy.savez(path, x_train=..., y_train=..., x_test=..., y_test=...)"


def npz(path: str = "", test: float = 0.2, classes: int = 0) -> Dataset:
    """Your arrays: x_train, y_train, x_test, y_test, or x, y with a share `test` held out; and group, if known.

    `x` has an example in each row; images are uint8 or float with channels first, [n, c, h, w], and those of uint8 are
    normalized by their own mean and std. Integers of 16 bits or more are indices, such as words of a vocabulary.
    Integer `y` are classes, numbered from 0 (`classes`: how many; 0: as many as occur); float `y` are targets of a
    regression. `group` or `group_train` names the user or device that each training
    example is from, by integers or strings. Every process holds a copy: large image sets fit better in folders.
    """
    if not path:
        raise ConfigError(f"npz has no file to read; name it with data.path=FILE, and {HELP}")
    if classes < 0:
        raise ConfigError(
            f"classes is {classes}, must be 0 (as many as occur) or the number of classes"
        )
    source = Path(path).expanduser()
    arrays = _load(source)
    whole = "x_train" not in arrays
    x, y = _pair(arrays, source, "x" if whole else "x_train", "y" if whole else "y_train")
    groups = _groups(arrays, source, len(y))
    if whole:
        check_share(test, len(y))
        kept, held = hold_out(len(y), test, seed=0)
        x, y, test_x, test_y = x[kept], y[kept], x[held], y[held]
        groups = None if groups is None else groups[kept]
    else:
        test_x, test_y = _pair(arrays, source, "x_test", "y_test")
        if _kind(x) != _kind(test_x) or _kind(y) != _kind(test_y):
            raise DataError(
                f"{source}: training and test arrays must agree in kind and in the shape of an example"
            )
    train = Examples([x], y)
    mean, std = pixel_stats(train) if x.dtype == torch.uint8 and x.dim() == 4 else ((), ())
    count = _count(torch.cat([y, test_y]), classes, source)
    return Dataset(train, Examples([test_x], test_y), count, mean, std, groups=groups)


def _load(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a file from anywhere: nothing in it is run."""
    if not path.is_file():
        raise DataError(f"no arrays: {path} is not a file; {HELP}")
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path} is not an .npz file, or is cut short; {HELP}")
    try:
        with np.load(path, allow_pickle=False) as file:
            members: dict[str, Any] = {name: file[name] for name in file.files}
    except Exception as error:  # a damaged archive can raise nearly anything
        raise DataError(f"cannot read {path}: {error}; {HELP}") from error
    for name, array in members.items():
        if not isinstance(
            array, np.ndarray
        ):  # numpy gives the bytes of a member that is no .npy file
            raise DataError(f"{path} holds {name!r}, which is not an array; {HELP}")
    return members


def _pair(arrays: dict[str, npt.NDArray[Any]], path: Path, x: str, y: str) -> tuple[Tensor, Tensor]:
    """Inputs and targets of one set."""
    for name in (x, y):
        if name not in arrays:
            raise DataError(f"{path} holds {', '.join(arrays) or 'nothing'}, but no {name}; {HELP}")
    inputs, targets = _inputs(arrays[x], f"{path}: {x}"), _targets(arrays[y], f"{path}: {y}")
    if len(inputs) != len(targets):
        raise DataError(
            f"{path}: {x} has {len(inputs)} rows but {y} {len(targets)}; each example needs one target"
        )
    return inputs, targets


def _kind(x: Tensor) -> tuple[torch.dtype, torch.Size]:
    return x.dtype, x.shape[1:]


def _inputs(array: npt.NDArray[Any], name: str) -> Tensor:
    if array.ndim < 2 or not array.size:
        raise DataError(
            f"{name} has the shape {list(array.shape)}, must be [examples, ...] and not empty"
        )
    if array.ndim == 4 and array.shape[3] in (1, 3) and array.shape[1] not in (1, 3):
        warnings.warn(
            f"{name} is {list(array.shape)}; images should be [n, channels, height, width]",
            stacklevel=2,
        )
    if array.dtype == np.uint8:
        return torch.from_numpy(np.ascontiguousarray(array))
    return (
        _indices(array, name)
        if array.dtype.kind in "iu" and array.itemsize > 1
        else _floats(array, name)
    )


def _indices(array: npt.NDArray[Any], name: str) -> Tensor:
    if array.ndim == 4:
        warnings.warn(
            f"{name} is {array.dtype} and taken for indices; images should be uint8 or floats",
            stacklevel=2,
        )
    if int(array.max()) >= 2**63:
        raise DataError(f"{name} holds the index {int(array.max())}, which is beyond int64")
    return torch.from_numpy(array.astype(np.int64))


def _targets(array: npt.NDArray[Any], name: str) -> Tensor:
    """Labels [n] int64, or float32 targets of a regression."""
    if array.dtype.kind not in "iub":
        return _floats(array, name)
    if array.ndim != 1:
        raise DataError(f"{name} has the shape {list(array.shape)}, but labels must be [examples]")
    if array.size and not 0 <= int(array.min()) <= int(array.max()) < 2**31:
        bad = int(array.min()) if array.min() < 0 else int(array.max())
        raise DataError(f"{name} holds the label {bad}; number the classes from 0")
    return torch.from_numpy(array.astype(np.int64))


def _floats(array: npt.NDArray[Any], name: str) -> Tensor:
    if array.dtype.kind != "f":
        kinds = (
            "integers (classes) or floats (a regression)"
            if array.ndim == 1
            else "uint8, wider integers or floats"
        )
        raise DataError(f"{name} is {array.dtype}, must be {kinds}; convert it with .astype")
    with np.errstate(over="ignore"):
        floats = np.ascontiguousarray(array, dtype=np.float32)
    if not np.isfinite(floats).all():
        raise DataError(
            f"{name} holds values that are infinite, not a number or beyond float32; clean it first"
        )
    return torch.from_numpy(floats)


def _groups(arrays: dict[str, npt.NDArray[Any]], path: Path, count: int) -> Tensor | None:
    """The groups of the training examples, numbered in the order of their names."""
    name = next((name for name in ("group_train", "group") if name in arrays), None)
    if name is None:
        return None
    array = arrays[name]
    if array.shape != (count,) or array.dtype.kind not in "iuUS":
        raise DataError(
            f"{path}: {name} is {array.dtype} {list(array.shape)}, must be integers or strings, one for each of the "
            f"{count} examples"
        )
    return torch.from_numpy(np.unique(array, return_inverse=True)[1].astype(np.int64))


def _count(y: Tensor, classes: int, path: Path) -> int:
    """How many outputs a model of these targets has."""
    if y.is_floating_point():
        return math.prod(y.shape[1:])
    largest = int(y.max())
    if largest >= (classes or len(y)):
        rule = (
            f"classes = {classes} allows 0 to {classes - 1}"
            if classes
            else "it has fewer examples than that"
        )
        raise DataError(f"{path} holds the label {largest}, but {rule}; number the classes from 0")
    return classes or largest + 1
