"""The two CIFAR sets (Krizhevsky, 2009) from either published archive: what they share."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedwsq.core.errors import DataError
from fedwsq.core.text import read_bytes
from fedwsq.data.cifar_pickle import read_pickle, uint8_rows
from fedwsq.data.dataset import Dataset, Examples, data_root, warn_if_partial

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
MAX_PICKLE_BYTES = 256 << 20  # the largest published file has 155 MB
MAX_NAMES_BYTES = 1 << 16  # 100 names have some 1,600
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
    # Of the binary layout: labels, the last of them the class, then the pixels by channel.
    record_bytes: int
    label_key: str  # of the python layout
    names_file: Mapping[str, str]  # suffix of a layout -> the file that names its classes
    names_key: str  # of the python layout
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
    """The set as stored: uint8, mapped from the binary layout or read from the python one."""
    folder, suffix = _find(kind, data_root(root).absolute())
    train = [folder / f"{name}{suffix}" for name in kind.train]
    test = [folder / f"{name}{suffix}" for name in kind.test]
    return Dataset(
        train=_load(kind, train, published=50_000),
        test=_load(kind, test, published=10_000),
        classes=kind.classes,
        mean=kind.mean,
        std=kind.std,
        augment=True,
        class_names=_class_names(kind, folder / kind.names_file[suffix]),
    )


def _class_names(kind: Cifar, path: Path) -> tuple[str, ...]:
    """As the archive names them; none where its file of names is missing, or of something else."""
    if not path.is_file():
        return ()
    if path.suffix == ".txt":
        listed: object = _content(path, MAX_NAMES_BYTES).split()
    else:
        listed = _entries(path, MAX_NAMES_BYTES).get(kind.names_key.encode())
    names = listed if isinstance(listed, list) else []
    found = tuple(name.decode(errors="replace") for name in names if isinstance(name, bytes))
    return found if len(found) == kind.classes else ()


def _find(kind: Cifar, root: Path) -> tuple[Path, str]:
    """The folder that holds the files, a known one under `root` or itself, and their suffix."""
    for name, suffix in kind.layouts.items():
        for folder in (root / name, root):
            # Any file will do: which others are missing is said later, by name.
            if any((folder / f"{stem}{suffix}").is_file() for stem in (*kind.train, *kind.test)):
                return folder, suffix
    folders = " nor ".join(kind.layouts)
    raise DataError(f"no {kind.title}: {root} holds neither {folders}; {kind.help}")


def _load(kind: Cifar, paths: list[Path], published: int) -> Examples:
    """The files of one set, in order, as one set of examples."""
    pairs = [_read(kind, path) for path in paths]
    labels = torch.cat([labels for _, labels in pairs])
    warn_if_partial(kind.title, len(labels), published, ", ".join(path.name for path in paths))
    return Examples([images for images, _ in pairs], labels)


def _read(kind: Cifar, path: Path) -> tuple[Tensor, Tensor]:
    """Images [n, 3, 32, 32] uint8 and labels [n] int64 of one file."""
    if not path.is_file():
        raise DataError(f"{kind.title} is incomplete: {path} is missing; {kind.help}")
    read = _read_binary if path.suffix == ".bin" else _read_python
    try:
        images, labels = read(kind, path)
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror or error}; check the file and its permissions"
        ) from error
    if int(labels.max()) >= kind.classes:
        raise DataError(
            f"{path} holds the label {int(labels.max())}, but {kind.title} labels are 0 to "
            f"{kind.classes - 1}; it is damaged, or another data set"
        )
    return images, labels


def _read_binary(kind: Cifar, path: Path) -> tuple[Tensor, Tensor]:
    """The file mapped, so that all processes of a machine share its pages."""
    size = path.stat().st_size
    record = kind.record_bytes
    if size == 0 or size % record:
        raise DataError(
            f"{path} is truncated: {size} bytes are not a whole number of {record}-byte records; "
            "unpack it again"
        )
    # Mode "c" (private, copy on write): torch wants writable memory, and the file must not change.
    mapped = np.memmap(path, np.uint8, mode="c", shape=(size // record, record))
    records = torch.from_numpy(mapped)
    images = records[:, -PIXELS:].view(-1, *SHAPE)
    return images, records[:, -PIXELS - 1].long()


def _read_python(kind: Cifar, path: Path) -> tuple[Tensor, Tensor]:
    """The published pickle, read without trusting it."""
    found = _entries(path, MAX_PICKLE_BYTES)
    pixels = uint8_rows(found.get(b"data"), PIXELS)
    if not pixels:
        raise DataError(
            f"{path} must hold a dict with 'data', a uint8 array [n, {PIXELS}]; unpack it again"
        )
    count = len(pixels) // PIXELS
    labels = found.get(kind.label_key.encode())
    if not _are_bytes(labels, count):
        raise DataError(
            f"{path} must hold a dict with '{kind.label_key}', a list of {count} integers "
            f"0 to {kind.classes - 1}; unpack it again"
        )
    # A copy: torch wants writable memory.
    images = torch.frombuffer(bytearray(pixels), dtype=torch.uint8)
    return images.view(-1, *SHAPE), torch.tensor(labels)


def _entries(path: Path, most: int) -> dict[object, object]:
    """The dict that a published pickle holds; empty if it holds something else."""
    try:
        found = read_pickle(_content(path, most))
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except (ValueError, LookupError) as error:
        raise DataError(f"{path} is not a readable pickle; unpack it again") from error
    return found if isinstance(found, dict) else {}


def _content(path: Path, most: int) -> bytes:
    try:
        return read_bytes(path, most)
    except ValueError:
        raise DataError(f"{path} is larger than any published file; unpack it again") from None


def _are_bytes(labels: object, count: int) -> bool:
    if not isinstance(labels, list) or len(labels) != count:
        return False
    return all(type(label) is int and 0 <= label < 256 for label in labels)
