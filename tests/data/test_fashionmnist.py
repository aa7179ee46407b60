import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from fedwsq.core.errors import DataError
from fedwsq.data.fashionmnist import fashionmnist

pytestmark = pytest.mark.filterwarnings("ignore:Fashion-MNIST.*published:UserWarning")
MAPS = Path("/proc/self/maps")  # what this process has mapped; Linux
SIZES = {"train": 7, "t10k": 4}


def content(stem: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(SIZES[stem])
    return rng.integers(0, 256, (SIZES[stem], 28, 28), dtype=np.uint8), rng.integers(
        0, 10, SIZES[stem], dtype=np.uint8
    )


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def pack(path: Path) -> None:
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()


def write(folder: Path, packed: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for stem in SIZES:
        for name, array in zip(("images-idx3", "labels-idx1"), content(stem), strict=True):
            path = folder / f"{stem}-{name}-ubyte"
            path.write_bytes(idx(array))
            if packed:
                pack(path)
    return folder


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("place", [".", "FashionMNIST/raw", "fashion-mnist"])
def test_every_layout_gives_the_stored_records(tmp_path, packed, place):
    write(tmp_path / place, packed)
    data = fashionmnist(str(tmp_path))
    for stem, examples in (("train", data.train), ("t10k", data.test)):
        images, labels = content(stem)
        x, y = examples.take(torch.arange(len(labels)))
        assert torch.equal(x, torch.from_numpy(images).unsqueeze(1))
        assert (y.tolist(), y.dtype) == (labels.tolist(), torch.int64)
    assert (data.classes, data.shape, data.mean, data.std) == (10, (1, 28, 28), (0.286,), (0.353,))
    assert (data.class_names[0], data.class_names[-1]) == ("T-shirt", "boot")


def test_an_unpacked_file_is_mapped_and_never_written(tmp_path):
    path = write(tmp_path) / "train-images-idx3-ubyte"
    before = path.read_bytes()
    images = fashionmnist(str(tmp_path)).train._parts[0]
    if MAPS.exists():
        assert str(path) in MAPS.read_text()
    images.zero_()
    assert path.read_bytes() == before


def edit(content: bytes, offset: int, value: int) -> bytes:
    return content[:offset] + bytes([value]) + content[offset + 1 :]


IMAGES = "train-images-idx3-ubyte"
LABELS = "t10k-labels-idx1-ubyte"
START = "does not start as an idx file"
DAMAGE = {
    "cut short": (IMAGES, lambda c: c[:-1], "announces 7 records, but is shorter or longer"),
    "too long": (IMAGES, lambda c: c + b"x", "announces 7 records, but is shorter or longer"),
    "header alone": (IMAGES, lambda c: c[:16], "announces 7 records, but is shorter or longer"),
    "half a header": (IMAGES, lambda c: c[:9], START),
    "empty": (IMAGES, lambda c: b"", START),
    "another type": (IMAGES, lambda c: edit(c, 2, 9), START),
    "labels as images": (IMAGES, lambda c: idx(content("train")[1]), START),
    "images as labels": (LABELS, lambda c: idx(content("t10k")[0]), START),
    "another width": (IMAGES, lambda c: edit(c, 15, 27), START),
    "another count": (
        IMAGES,
        lambda c: edit(c, 7, 6),
        "announces 6 records, but is shorter or longer",
    ),
    "a huge count": (
        IMAGES,
        lambda c: edit(c, 4, 255),
        f"{START} of at most 60000 images of 28x28",
    ),
    "no records": (IMAGES, lambda c: idx(np.zeros((0, 28, 28), np.uint8)), START),
    "fewer labels": (
        LABELS,
        lambda c: idx(content("t10k")[1][:3]),
        "holds 4 images but .* 3 labels",
    ),
    "label out of range": (
        LABELS,
        lambda c: edit(c, 9, 10),
        "holds the label 10, but Fashion-MNIST labels are 0 to 9",
    ),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("name", "damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_one_clear_error(tmp_path, packed, name, damage, message):
    path = write(tmp_path) / name
    path.write_bytes(damage(path.read_bytes()))
    if packed:
        for each in tmp_path.iterdir():
            pack(each)
    with pytest.raises(DataError, match=message):
        fashionmnist(str(tmp_path))


@pytest.mark.parametrize(
    "damage", [lambda c: c[:-20], lambda c: b"", lambda c: edit(c, 1, 0), lambda c: edit(c, 40, 1)]
)
def test_a_damaged_packing_is_refused(tmp_path, damage):
    path = write(tmp_path, packed=True) / (IMAGES + ".gz")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=rf"{IMAGES}\.gz"):
        fashionmnist(str(tmp_path))


def test_missing_data_says_how_to_get_it(tmp_path):
    with pytest.raises(
        DataError,
        match=r"no Fashion-MNIST: .* FashionMNIST/raw or fashion-mnist; `fedwsq fetch.*=DIR",
    ):
        fashionmnist(str(tmp_path))
    (write(tmp_path) / LABELS).unlink()
    with pytest.raises(DataError, match=rf"incomplete: neither .*{LABELS} nor {LABELS}\.gz"):
        fashionmnist(str(tmp_path))


def test_fewer_records_than_published_is_a_warning(tmp_path):
    write(tmp_path)
    with pytest.warns(
        UserWarning, match="Fashion-MNIST: 7 records in train-images-idx3-ubyte.* 60000"
    ):
        fashionmnist(str(tmp_path))
