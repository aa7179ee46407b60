import os
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from fedwsq.core.errors import DataError
from fedwsq.data.cifar100 import CIFAR100, cifar100
from fedwsq.data.dataset import pixel_stats

BINARY, PYTHON = CIFAR100.layouts
pytestmark = pytest.mark.filterwarnings("ignore:CIFAR-100.*published:UserWarning")


def records(number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Coarse labels, fine labels and pixels of four records; no label is both coarse and fine."""
    rng = np.random.default_rng(number)
    return (
        rng.integers(0, 20, 4),
        rng.integers(20, 100, 4),
        rng.integers(0, 256, (4, 3072), dtype=np.uint8),
    )


def write_binary(root: Path) -> Path:
    folder = root / BINARY
    folder.mkdir(parents=True)
    for number, name in enumerate(("train", "test")):
        rows = [bytes([c, f]) + row.tobytes() for c, f, row in zip(*records(number), strict=True)]
        (folder / f"{name}.bin").write_bytes(b"".join(rows))
    return folder


def write_python(root: Path) -> Path:
    folder = root / PYTHON
    folder.mkdir(parents=True)
    for number, name in enumerate(("train", "test")):
        coarse, fine, pixels = records(number)
        batch = {b"coarse_labels": coarse.tolist(), b"fine_labels": fine.tolist(), b"data": pixels}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    return folder


@pytest.mark.parametrize("write", [write_binary, write_python])
def test_the_fine_label_is_the_class(tmp_path, write):
    folder = write(tmp_path)
    for root in (tmp_path, folder):
        data = cifar100(str(root))
        for number, examples in enumerate((data.train, data.test)):
            _, fine, pixels = records(number)
            x, y = examples.take(torch.arange(4))
            assert torch.equal(x, torch.from_numpy(pixels).view(4, 3, 32, 32))
            assert y.tolist() == fine.tolist()
    assert (data.classes, data.shape, data.augment) == (100, (3, 32, 32), True)
    assert (data.mean, data.std) == ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))


def test_classes_are_called_by_the_fine_names(tmp_path):
    names = [f"thing_{label}" for label in range(100)]
    (write_binary(tmp_path / "a") / "fine_label_names.txt").write_text("\n".join(names) + "\n")
    fine = {b"fine_label_names": [name.encode() for name in names], b"coarse_label_names": [b"x"]}
    (write_python(tmp_path / "b") / "meta").write_bytes(pickle.dumps(fine, protocol=2))
    for root in ("a", "b"):
        assert cifar100(str(tmp_path / root)).class_names == tuple(names)


def test_the_binary_layout_is_mapped(tmp_path):
    folder = write_binary(tmp_path)
    images = cifar100(str(tmp_path)).train._parts[0]
    assert images.untyped_storage().nbytes() == (folder / "train.bin").stat().st_size == 4 * 3074


@pytest.mark.parametrize("size", [0, 3073, 4 * 3074 - 1])
def test_a_truncated_file_is_refused(tmp_path, size):
    (write_binary(tmp_path) / "train.bin").write_bytes(bytes(size))
    with pytest.raises(DataError, match=rf"train\.bin is truncated: {size} bytes .* 3074-byte"):
        cifar100(str(tmp_path))


def test_a_label_out_of_range_is_refused(tmp_path):
    (write_binary(tmp_path) / "test.bin").write_bytes(bytes([3, 100]) + bytes(3072))
    with pytest.raises(
        DataError, match=r"test\.bin holds the label 100, but CIFAR-100 labels are 0 to 99"
    ):
        cifar100(str(tmp_path))


def test_the_pickle_of_cifar10_is_not_taken_for_cifar100(tmp_path):
    folder = write_python(tmp_path)
    (folder / "train").write_bytes(
        pickle.dumps({b"labels": [1], b"data": np.zeros((1, 3072), np.uint8)}, protocol=2)
    )
    with pytest.raises(DataError, match="'fine_labels', a list of 1 integers 0 to 99"):
        cifar100(str(tmp_path))


def test_missing_data_says_how_to_get_it(tmp_path):
    with pytest.raises(DataError) as caught:
        cifar100(str(tmp_path))
    for part in (
        str(tmp_path),
        BINARY,
        PYTHON,
        "fedwsq fetch cifar100",
        "cifar-100-binary.tar.gz",
        "data.root=",
    ):
        assert part in str(caught.value)
    (write_binary(tmp_path) / "test.bin").unlink()
    with pytest.raises(DataError, match=r"CIFAR-100 is incomplete: .*test\.bin is missing"):
        cifar100(str(tmp_path))


def test_the_real_data_is_what_was_published():
    root = os.environ.get("FEDWSQ_DATA", "")
    if not any((Path(root) / name).is_dir() for name in CIFAR100.layouts if root):
        pytest.skip(
            "real CIFAR-100 not available: "
            "set FEDWSQ_DATA to a folder with cifar-100-binary or -python"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a part of it will do
        data = cifar100()
    for examples in (data.train, data.test):
        counts = examples.labels.bincount(minlength=100)
        assert len(counts) == 100
        assert counts.min() > 0.6 * len(examples) / 100
    # The mean of an image has a deviation of about .14; of 10,000 images, .0014.
    mean, std = pixel_stats(data.train)
    assert mean == pytest.approx(data.mean, abs=0.007)
    assert std == pytest.approx(data.std, abs=0.007)
