"""The user's own arrays in one .npz file."""

import math
import warnings
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedwsq.core.errors import ConfigError, DataError
from fedwsq.data.dataset import Dataset, Examples, check_share, pixel_stats
from fedwsq.data.partition import hold_out

MAX_MEMBER_BYTES = 2**30  # of one array: every process holds a copy
MAX_CLASSES = 1_000_000  # a model has an output for each
KNOWN = ("x", "y", "group", "x_train", "y_train", "group_train", "x_test", "y_test")
HELP = "write it with numpy.savez(path, x_train=..., y_train=..., x_test=..., y_test=...)"
Array = npt.NDArray[Any]
Sets = tuple[Examples, Examples, Tensor | None]  # for training, for tests; groups


class File(NamedTuple):
    """The arrays of a file by name, and where it is."""

    path: Path
    arrays: dict[str, Array]


def npz(path: str = "", test: float = 0.2, classes: int = 0) -> Dataset:
    """Your arrays: x_train, y_train, x_test, y_test, or x, y with a share `test` held out.

    `x` has an example in each row; images are uint8 or float with channels first, [n, c, h, w], and
    those of uint8 are normalized by their own mean and std. Integers of 16 bits or more are
    indices, such as words of a vocabulary. Integer `y` are classes, numbered from 0 (`classes`: how
    many; 0: as many as occur); float `y` are targets of a regression. `group` or `group_train`, if
    there, names the user or device that each training example is from, by integers or strings.
    Every process holds a copy: large image sets fit better in folders.
    """
    if not path:
        raise ConfigError(f"npz has no file to read; name it with data.path=FILE, and {HELP}")
    if not 0 <= classes <= MAX_CLASSES:
        raise ConfigError(
            f"classes is {classes}, must be 0 (as many as occur) or the number of classes, at most "
            f"{MAX_CLASSES:,}"
        )
    return from_arrays(_load(Path(path).expanduser()), test, classes)


def from_arrays(file: File, test: float = 0.2, classes: int = 0) -> Dataset:
    """The data set of arrays by name, as `npz` has them."""
    if "x_train" in file.arrays:
        train, tested, groups = _as_given(file)
    else:
        train, tested, groups = _held_out(file, test)
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    if train.dtype == torch.uint8 and len(train.shape) == 3:
        mean, std = pixel_stats(train)
    count = _count(torch.cat([train.labels, tested.labels]), classes, file.path)
    return Dataset(train, tested, count, mean, std, groups=groups)


def _load(path: Path) -> File:
    """The arrays of a file from anywhere: nothing in it is run."""
    if not path.is_file():
        raise DataError(f"no arrays: {path} is not a file; {HELP}")
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path} is not an .npz file, or is cut short; {HELP}")
    try:
        with zipfile.ZipFile(path) as packed:
            for each in packed.infolist():
                # A bound, whatever is in it: zipfile reads no more than is declared.
                if each.file_size > MAX_MEMBER_BYTES:
                    most = f"at most {MAX_MEMBER_BYTES:,} are read"
                    raise ValueError(f"{each.filename!r} has {each.file_size:,} bytes, {most}")
        with np.load(path, allow_pickle=False) as file:
            # The others stay packed: there may be any number of them.
            members: dict[str, Any] = {name: file[name] for name in file.files if name in KNOWN}
            there = file.files
    except Exception as error:  # a damaged archive can raise nearly anything
        raise DataError(f"cannot read {path}: {error}; {HELP}") from error
    for name, array in members.items():
        # numpy gives the bytes of a member that is no .npy file.
        if not isinstance(array, np.ndarray):
            raise DataError(f"{path} holds {name!r}, which is not an array; {HELP}")
    if not members:
        listed = ", ".join(there[:20]) or "nothing"
        raise DataError(f"{path} holds {listed}, but no x; {HELP}")
    return File(path, members)


def _as_given(file: File) -> Sets:
    train = _examples(file, "x_train", "y_train")
    groups = _groups(file, len(train))
    test = _examples(file, "x_test", "y_test")
    if _kind(train) != _kind(test):
        raise DataError(
            f"{file.path}: training and test arrays must agree in kind and in the shape of an "
            "example"
        )
    return train, test, groups


def _held_out(file: File, share: float) -> Sets:
    found = _examples(file, "x", "y")
    groups = _groups(file, len(found))
    check_share(share, len(found))
    # The same share in every run: what is tested must not depend on a seed.
    kept, held = hold_out(len(found), share, seed=0)
    if groups is not None:
        groups = groups[kept]
    x, y = found.take(kept)
    test_x, test_y = found.take(held)
    return Examples([x], y), Examples([test_x], test_y), groups


def _examples(file: File, x: str, y: str) -> Examples:
    """Inputs and targets of one set."""
    for name in (x, y):
        if name not in file.arrays:
            there = ", ".join(file.arrays) or "nothing"
            raise DataError(f"{file.path} holds {there}, but no {name}; {HELP}")
    inputs = _inputs(file.arrays[x], f"{file.path}: {x}")
    targets = _targets(file.arrays[y], f"{file.path}: {y}")
    if len(inputs) != len(targets):
        raise DataError(
            f"{file.path}: {x} has {len(inputs)} rows but {y} {len(targets)}; "
            "each example needs one target"
        )
    return Examples([inputs], targets)


def _kind(examples: Examples) -> tuple[object, ...]:
    labels = examples.labels
    return examples.dtype, examples.shape, labels.dtype, labels.shape[1:]


def _inputs(array: Array, name: str) -> Tensor:
    if array.ndim < 2 or not array.size:
        raise DataError(
            f"{name} has the shape {list(array.shape)}, must be [examples, ...] and not empty"
        )
    # Channels last would train, with rows for channels.
    if array.ndim == 4 and array.shape[3] in (1, 3) and array.shape[1] not in (1, 3):
        warnings.warn(
            f"{name} is {list(array.shape)}; images should be [n, channels, height, width]",
            stacklevel=2,
        )
    if array.dtype == np.uint8:
        return torch.from_numpy(np.ascontiguousarray(array))
    if array.dtype.kind in "iu" and array.itemsize > 1:
        return _indices(array, name)
    return _floats(array, name)


def _indices(array: Array, name: str) -> Tensor:
    if array.ndim == 4:
        warnings.warn(
            f"{name} is {array.dtype} and taken for indices; images should be uint8 or floats",
            stacklevel=2,
        )
    if int(array.max()) >= 2**63:
        raise DataError(f"{name} holds the index {int(array.max())}, which is beyond int64")
    return torch.from_numpy(array.astype(np.int64))


def _targets(array: Array, name: str) -> Tensor:
    """Labels [n] int64, or float32 targets of a regression."""
    if array.dtype.kind not in "iub":
        return _floats(array, name)
    if array.ndim != 1:
        raise DataError(f"{name} has the shape {list(array.shape)}, but labels must be [examples]")
    if array.size:
        for label in (int(array.min()), int(array.max())):
            if not 0 <= label < 2**31:
                raise DataError(f"{name} holds the label {label}; number the classes from 0")
    return torch.from_numpy(array.astype(np.int64))


def _floats(array: Array, name: str) -> Tensor:
    if array.dtype.kind != "f":
        kinds = "uint8, wider integers or floats"
        if array.ndim == 1:
            kinds = "integers (classes) or floats (a regression)"
        raise DataError(f"{name} is {array.dtype}, must be {kinds}; convert it with .astype")
    with np.errstate(over="ignore"):  # what is beyond float32 becomes infinite, and is refused
        floats = np.ascontiguousarray(array, dtype=np.float32)
    if not np.isfinite(floats).all():
        raise DataError(
            f"{name} holds values that are infinite, not a number or beyond float32; clean it first"
        )
    return torch.from_numpy(floats)


def _groups(file: File, count: int) -> Tensor | None:
    """The groups of the training examples, numbered in the order of their names."""
    array = file.arrays.get("group_train", file.arrays.get("group"))
    if array is None:
        return None
    if array.shape != (count,) or array.dtype.kind not in "iuUS":
        raise DataError(
            f"{file.path}: group is {array.dtype} {list(array.shape)}, must be integers or "
            f"strings, one for each of the {count} examples"
        )
    _, numbers = np.unique(array, return_inverse=True)
    return torch.from_numpy(numbers.astype(np.int64))


def _count(y: Tensor, classes: int, path: Path) -> int:
    """How many outputs a model of these targets has."""
    if y.is_floating_point():
        return math.prod(y.shape[1:])
    largest = int(y.max())
    # Unless told, no more classes than examples: a stray label must not size the model.
    rule = "it has fewer examples than that"
    if classes:
        rule = f"classes = {classes} allows 0 to {classes - 1}"
    if largest >= (classes or len(y)):
        raise DataError(f"{path} holds the label {largest}, but {rule}; number the classes from 0")
    return classes or largest + 1
