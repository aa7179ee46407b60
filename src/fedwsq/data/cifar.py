"""The two CIFAR sets (Krizhevsky, 2009) from either published archive: what they share is read here."""

import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedwsq.core.errors import DataError
from fedwsq.data.dataset import Dataset, Examples, data_root, warn_if_partial

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
SITE = "https://www.cs.toronto.edu/~kriz/cifar.html"


@dataclass(frozen=True)
class Cifar:
    """How one of the sets is laid out."""

    title: str
    name: str  # in DATASETS
    classes: int
    layouts: Mapping[str, str]  # folder -> suffix of its files; the binary layout's is ".bin"
    archives: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    record_bytes: int  # of the binary layout: labels, the last of them the class, then the pixels, channel by channel
    label_key: str  # of the python layout
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def help(self) -> str:
        """Where the files come from, and where they go."""
        return (
            f"`fedwsq fetch {self.name}` gets it, or unpack {self.archives} from {SITE} there, "
            "or point elsewhere with data.root=DIR or the environment variable FEDWSQ_DATA"
        )


def read_cifar(kind: Cifar, root: str) -> Dataset:
    """The set as stored: uint8 images, mapped from the binary layout or read from the python one."""
    folder, suffix = _find(kind, data_root(root).absolute())
    return Dataset(
        train=_load(kind, [folder / (name + suffix) for name in kind.train], published=50_000),
        test=_load(kind, [folder / (name + suffix) for name in kind.test], published=10_000),
        classes=kind.classes,
        mean=kind.mean,
        std=kind.std,
        augment=True,
    )


def _find(kind: Cifar, root: Path) -> tuple[Path, str]:
    """The folder that holds the files, and their suffix: a known folder under `root`, or `root` itself."""
    for name, suffix in kind.layouts.items():
        for folder in (root / name, root):
            if any((folder / (stem + suffix)).is_file() for stem in (*kind.train, *kind.test)):
                return folder, suffix
    state = (
        "holds neither of the folders" if root.is_dir() else "is no folder; it should hold one of"
    )
    raise DataError(f"no {kind.title}: {root} {state} {', '.join(kind.layouts)}; {kind.help}")


def _load(kind: Cifar, paths: list[Path], published: int) -> Examples:
    """The files of one set, in order, as one set of examples."""
    pairs = [_read(kind, path) for path in paths]
    examples = Examples([images for images, _ in pairs], torch.cat([labels for _, labels in pairs]))
    warn_if_partial(kind.title, len(examples), published, ", ".join(path.name for path in paths))
    return examples


def _read(kind: Cifar, path: Path) -> tuple[Tensor, Tensor]:
    """Images [n, 3, 32, 32] uint8 and labels [n] int64 of one file."""
    if not path.is_file():
        raise DataError(f"{kind.title} is incomplete: {path} is missing; {kind.help}")
    try:
        images, labels = (
            _read_binary(kind, path) if path.suffix == ".bin" else _read_python(kind, path)
        )
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror or error}; check the file and its permissions"
        ) from error
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < kind.classes:
        bad = next(label for label in labels.tolist() if not 0 <= label < kind.classes)
        raise DataError(
            f"{path} holds the label {bad}, but {kind.title} labels are 0 to {kind.classes - 1}; "
            "it is damaged, or another data set"
        )
    return images, labels


def _read_binary(kind: Cifar, path: Path) -> tuple[Tensor, Tensor]:
    """The file mapped, so that all processes of a machine share its pages."""
    size, record = path.stat().st_size, kind.record_bytes
    if size == 0 or size % record:
        raise DataError(
            f"{path} is truncated: {size} bytes are not a whole number of {record}-byte records; unpack it again"
        )
    # Mode "c" (private, copy on write): torch wants writable memory, and the file must not change.
    records = torch.from_numpy(np.memmap(path, np.uint8, mode="c", shape=(size // record, record)))
    return records[:, -PIXELS:].view(-1, *SHAPE), records[:, -PIXELS - 1].long()


def _read_python(kind: Cifar, path: Path) -> tuple[Tensor, Tensor]:
    """The published pickle, read without trusting it."""
    content = path.read_bytes()
    try:
        batch = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise DataError(f"{path} is not a readable pickle ({error}); unpack it again") from error
    found = batch if isinstance(batch, dict) else {}
    data, labels = found.get(b"data"), found.get(kind.label_key.encode())
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (PIXELS,):
        raise DataError(
            f"{path} must hold a dict with 'data', a uint8 array [n, {PIXELS}]; unpack it again"
        )
    if (
        not isinstance(labels, list)
        or len(labels) != len(data)
        or not all(type(y) is int and 0 <= y < 256 for y in labels)
    ):
        raise DataError(
            f"{path} must hold a dict with '{kind.label_key}', a list of {len(data)} integers "
            f"0 to {kind.classes - 1}; unpack it again"
        )
    images = torch.from_numpy(np.require(data, requirements=["C", "W"])).view(-1, *SHAPE)
    return images, torch.from_numpy(np.array(labels, dtype=np.int64))


def _encode(text: str, encoding: str) -> bytes:
    """How protocol 2 spells bytes: `_codecs.encode(text, "latin1")`; no other codec is reachable."""
    if encoding != "latin1":
        raise DataError(
            f"the pickle asks for the codec {encoding!r}; only latin1 is allowed: do not trust this file"
        )
    return text.encode("latin1")


_REBUILD = np.empty(0).__reduce__()[0]  # numpy's private _reconstruct, wherever this numpy keeps it
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _REBUILD,
    ("numpy._core.multiarray", "_reconstruct"): _REBUILD,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode,
}


class _ArraysOnly(pickle.Unpickler):
    """Builds arrays, bytes, strings, numbers, lists and dicts; any other global is refused, and nothing is imported."""

    def find_class(self, module: str, name: str) -> Any:
        """Our object for an allowed name."""
        if (module, name) not in _ALLOWED:
            raise DataError(
                f"the pickle asks for {module}.{name}; only arrays are allowed: do not trust this file"
            )
        return _ALLOWED[module, name]
