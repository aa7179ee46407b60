"""Arrays and index lists as people have them, made into a data set and a split."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedwsq.core.errors import ConfigError, DataError
from fedwsq.data import Dataset, Split
from fedwsq.data.npz import File, from_arrays
from fedwsq.data.split import split_of
from fedwsq.data.split_files import check_range

PAIR = ("x", "y")
QUARTET = ("x_train", "y_train", "x_test", "y_test")


def as_dataset(value: object) -> Dataset:
    """A data set as it is; arrays by the rules of `npz`."""
    if isinstance(value, Dataset):
        return value
    given = list(value) if isinstance(value, tuple | list) else []
    if isinstance(value, torch.utils.data.Dataset):
        raise ConfigError(
            f"data is a torch {type(value).__name__}, which a run would have to read again and "
            "again; stack it once: x = torch.stack([x for x, _ in data]), "
            "y = torch.tensor([y for _, y in data]), then data=(x, y)"
        )
    if len(given) not in (len(PAIR), len(QUARTET)):
        raise ConfigError(
            f"data is {_kind(value)}; it can be a fedwsq Dataset, a function that returns one, "
            f"({', '.join(PAIR)}) or ({', '.join(QUARTET)}) as arrays or tensors, or a name"
        )
    names = PAIR if is_pair(value) else QUARTET
    arrays = map(_array, given)
    return from_arrays(File(Path("data"), dict(zip(names, arrays, strict=True))))


def is_pair(value: object) -> bool:
    """Whether these are arrays of which some have to be held out for testing."""
    return isinstance(value, tuple | list) and len(value) == len(PAIR)


def as_split(value: object) -> Split:
    """A list with the indices of every client, checked as far as it can be without the data."""
    if isinstance(value, Split):
        split = value
    elif isinstance(value, Sequence) and len(value):
        split = split_of(value)
    else:
        raise ConfigError(
            f"split is {_kind(value)}; it can be a list with an array of indices for each client, "
            "a function of labels and clients that returns such a list, or a name"
        )
    sizes = split.sizes.tolist()
    if 0 in sizes:
        raise ConfigError(
            f"split leaves client {sizes.index(0)} without examples; every client needs one"
        )
    if split.repeats:
        raise ConfigError(
            f"split gives {split.repeats} examples out twice; each may have one client at most"
        )
    return split


def given_split(split: Split) -> Callable[..., Split]:
    """The function that a plan calls for it."""

    def own_split(labels: Tensor) -> Split:
        if len(split.indices):
            check_range(split, None, len(labels), "split")
        return split

    return own_split


def _array(value: object) -> npt.NDArray[Any]:
    if isinstance(value, Tensor):
        plain = value.detach().cpu()
        # numpy has no such numbers.
        return np.asarray(plain.float() if plain.dtype == torch.bfloat16 else plain)
    if isinstance(value, np.ndarray):
        return value
    raise DataError(f"data holds {_kind(value)}; it takes numpy arrays and tensors")


def _kind(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"of type {type(value).__name__}"
