"""Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017, arXiv:1708.07747): idx files, packed or not."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedwsq.core.errors import DataError
from fedwsq.data.dataset import Dataset, Examples, data_root, warn_if_partial

TITLE = "Fashion-MNIST"
# As its authors list them; no file of the archive does.
CLASS_NAMES = "T-shirt trouser pullover dress coat sandal shirt sneaker bag boot"
FOLDERS = ("FashionMNIST/raw", "fashion-mnist", ".")
HELP = (
    "`fedwsq fetch fashionmnist` gets it, or put the four idx files, .gz or unpacked, from "
    "https://github.com/zalandoresearch/fashion-mnist there, "
    "or point elsewhere with data.root=DIR or the environment variable FEDWSQ_DATA"
)


def fashionmnist(root: str = "") -> Dataset:
    """Fashion-MNIST: 28x28 gray pictures of 10 kinds of clothes, from its idx files."""
    folder = _find(data_root(root).absolute())
    return Dataset(
        train=_load(folder, "train", published=60_000),
        test=_load(folder, "t10k", published=10_000),
        classes=10,
        mean=(0.2860,),  # over the training pixels, as commonly published; std too
        std=(0.3530,),
        class_names=tuple(CLASS_NAMES.split()),
    )


def _find(root: Path) -> Path:
    for name in FOLDERS:
        if any((root / name).glob("t*-idx[13]-ubyte*")):
            return root / name
    raise DataError(
        f"no {TITLE}: no train-images-idx3-ubyte in {root} or its "
        f"{' or '.join(FOLDERS[:2])}; {HELP}"
    )


def _load(folder: Path, stem: str, published: int) -> Examples:
    """One set: its images and its labels, as many of the one as of the other."""
    images_path = _present(folder / f"{stem}-images-idx3-ubyte")
    labels_path = _present(folder / f"{stem}-labels-idx1-ubyte")
    images = _read(images_path, (28, 28), published)
    labels = _read(labels_path, (), published)
    if len(images) != len(labels):
        raise DataError(
            f"{images_path} holds {len(images)} images but {labels_path} {len(labels)} labels; "
            "get both again"
        )
    if int(labels.max()) > 9:
        raise DataError(
            f"{labels_path} holds the label {int(labels.max())}, but {TITLE} labels are 0 to 9; "
            "get it again"
        )
    warn_if_partial(TITLE, len(images), published, images_path.name)
    return Examples([images.unsqueeze(1)], labels.long())


def _present(path: Path) -> Path:
    """The file, or the same packed."""
    packed = path.with_name(path.name + ".gz")
    for found in (path, packed):
        if found.is_file():
            return found
    raise DataError(f"{TITLE} is incomplete: neither {path} nor {packed.name} is there; {HELP}")


def _read(path: Path, shape: tuple[int, ...], published: int) -> Tensor:
    """The array of one idx file, uint8 [n, *shape]; an unpacked file is mapped."""
    # An idx header: two zero bytes, 8 for uint8, the number of dimensions, then each of them; all
    # big-endian.
    header = struct.Struct(f">{2 + len(shape)}I")
    unpacked = path.suffix != ".gz"
    try:
        with open(path, "rb") if unpacked else gzip.open(path) as file:
            head = file.read(header.size).ljust(header.size, b"\0")
            magic, count, *rest = header.unpack(head)
            size = count * math.prod(shape)
            as_announced = (magic, tuple(rest)) == (0x0801 + len(shape), shape)
            if not as_announced or not 0 < count <= published:
                what = "images of 28x28" if shape else "labels"
                raise DataError(
                    f"{path} does not start as an idx file of at most {published} {what}; "
                    "it is damaged, or another data set"
                )
            if unpacked:
                # Mode "c": torch wants writable memory, and the file must not change.
                body = np.memmap(path, np.uint8, mode="c")[header.size :]
            else:
                body = np.frombuffer(bytearray(file.read(size + 1)), np.uint8)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}; get it again") from error
    if len(body) != size:
        raise DataError(
            f"{path} announces {count} records, but is shorter or longer than that; get it again"
        )
    return torch.from_numpy(body).view(count, *shape)
