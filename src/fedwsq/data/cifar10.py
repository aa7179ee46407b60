"""CIFAR-10 (Krizhevsky, 2009) from either published archive, unpacked under the data root."""

import io
import pickle
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedwsq.core.errors import DataError
from fedwsq.data.dataset import Dataset, Examples, data_root

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
RECORD_BYTES = 1 + PIXELS  # the binary layout: a label, then the pixels, channel by channel
TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = ("test_batch",)
LAYOUTS = {"cifar-10-batches-bin": ".bin", "cifar-10-batches-py": ""}  # folder -> suffix of its files
HELP = (
    "unpack cifar-10-binary.tar.gz or cifar-10-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html there, "
    "or point elsewhere with data.root=DIR or the environment variable FEDWSQ_DATA"
)


def cifar10(root: str = "") -> Dataset:
    """CIFAR-10 as stored: uint8 images, mapped from the binary layout or read from the python one."""
    folder, suffix = _find(data_root(root).absolute())
    return Dataset(
        train=_load([folder / (name + suffix) for name in TRAIN], published=50_000),
        test=_load([folder / (name + suffix) for name in TEST], published=10_000),
        classes=10,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),  # the published code's; the true std over pixels is about .247, .243, .262
        augment=True,
    )


def _find(root: Path) -> tuple[Path, str]:
    """The folder that holds the files, and their suffix: a known folder under `root`, or `root` itself."""
    for name, suffix in LAYOUTS.items():
        for folder in (root / name, root):
            if any((folder / (stem + suffix)).is_file() for stem in (*TRAIN, *TEST)):
                return folder, suffix
    state = "holds neither of the folders" if root.is_dir() else "is no folder; it should hold one of"
    raise DataError(f"no CIFAR-10: {root} {state} {', '.join(LAYOUTS)}; {HELP}")


def _load(paths: Sequence[Path], published: int) -> Examples:
    """The files of one set, in order, as one set of examples."""
    pairs = [_read(path) for path in paths]
    examples = Examples([images for images, _ in pairs], torch.cat([labels for _, labels in pairs]))
    if len(examples) < published:
        names = ", ".join(path.name for path in paths)
        warnings.warn(f"CIFAR-10: {len(examples)} records in {names}; the published set has {published}", stacklevel=3)
    return examples


def _read(path: Path) -> tuple[Tensor, Tensor]:
    """Images [n, 3, 32, 32] uint8 and labels [n] int64 of one file."""
    if not path.is_file():
        raise DataError(f"CIFAR-10 is incomplete: {path} is missing; {HELP}")
    try:
        images, labels = _read_binary(path) if path.suffix == ".bin" else _read_python(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}; check the file and its permissions") from error
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) <= 9:
        bad = next(label for label in labels.tolist() if not 0 <= label <= 9)
        raise DataError(
            f"{path} holds the label {bad}, but CIFAR-10 labels are 0 to 9; it is damaged, or another data set"
        )
    return images, labels


def _read_binary(path: Path) -> tuple[Tensor, Tensor]:
    """The file mapped, so that all processes of a machine share its pages."""
    size = path.stat().st_size
    if size == 0 or size % RECORD_BYTES:
        raise DataError(
            f"{path} is truncated: {size} bytes are not a whole number of {RECORD_BYTES}-byte records; unpack it again"
        )
    # Mode "c" (private, copy on write): torch wants writable memory, and the file must not change.
    records = torch.from_numpy(np.memmap(path, np.uint8, mode="c", shape=(size // RECORD_BYTES, RECORD_BYTES)))
    return records[:, 1:].view(-1, *SHAPE), records[:, 0].long()


def _read_python(path: Path) -> tuple[Tensor, Tensor]:
    """The published pickle, read without trusting it."""
    content = path.read_bytes()
    try:
        batch = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise DataError(f"{path} is not a readable pickle ({error}); unpack it again") from error
    data, labels = (batch.get(b"data"), batch.get(b"labels")) if isinstance(batch, dict) else (None, None)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (PIXELS,):
        raise DataError(f"{path} must hold a dict with 'data', a uint8 array [n, {PIXELS}]; unpack it again")
    if (
        not isinstance(labels, list)
        or len(labels) != len(data)
        or not all(type(y) is int and 0 <= y < 256 for y in labels)
    ):
        raise DataError(
            f"{path} must hold a dict with 'labels', a list of {len(data)} integers 0 to 9; unpack it again"
        )
    images = torch.from_numpy(np.require(data, requirements=["C", "W"])).view(-1, *SHAPE)
    return images, torch.from_numpy(np.array(labels, dtype=np.int64))


def _encode(text: str, encoding: str) -> bytes:
    """How protocol 2 spells bytes: `_codecs.encode(text, "latin1")`; no other codec is reachable."""
    if encoding != "latin1":
        raise DataError(f"the pickle asks for the codec {encoding!r}; only latin1 is allowed: do not trust this file")
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
            raise DataError(f"the pickle asks for {module}.{name}; only arrays are allowed: do not trust this file")
        return _ALLOWED[module, name]
