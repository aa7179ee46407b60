import os
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from fedwsq.core.errors import DataError
from fedwsq.data.cifar10 import LAYOUTS, cifar10

BINARY, PYTHON = LAYOUTS
TRAIN = ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"]
FILES = [*TRAIN, "test_batch"]
pytestmark = pytest.mark.filterwarnings("ignore:CIFAR-10.*published:UserWarning")


def records(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels and pixels of the small file `number`: three records, no two files alike."""
    rng = np.random.default_rng(number)
    return rng.integers(0, 10, 3), rng.integers(0, 256, (3, 3072), dtype=np.uint8)


def write_binary(root: Path) -> Path:
    folder = root / BINARY
    folder.mkdir(parents=True)
    for number, name in enumerate(FILES):
        labels, pixels = records(number)
        rows = [bytes([label]) + row.tobytes() for label, row in zip(labels, pixels, strict=True)]
        (folder / f"{name}.bin").write_bytes(b"".join(rows))
    return folder


def write_python(root: Path) -> Path:
    folder = root / PYTHON
    folder.mkdir(parents=True)
    for number, name in enumerate(FILES):
        labels, pixels = records(number)
        batch = {
            b"batch_label": name.encode(),
            b"labels": labels.tolist(),
            b"data": pixels,
            b"filenames": [b"a.png"],
        }
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    return folder


def python2_pickle(labels: bytes, pixels: bytes) -> bytes:
    """A batch as Python 2 pickled it for the published archive: byte strings, no `_codecs`."""
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
    minus_one = b"J\xff\xff\xff\xff"
    dtype = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNN" + 2 * minus_one + b"K\x00tb"
    state = b"(K\x01(K%cM\x00\x0ct%b\x89T%btb" % (
        len(labels),
        dtype,
        len(pixels).to_bytes(4, "little") + pixels,
    )
    entries = (
        b"U\x04data"
        + array
        + state
        + b"U\x06labels]("
        + b"".join(b"K%c" % label for label in labels)
        + b"e"
    )
    return b"\x80\x02}(" + entries + b"u."


def everything(root: Path) -> list[torch.Tensor]:
    data = cifar10(str(root))
    train = data.train.take(torch.arange(len(data.train)))
    return [*train, *data.test.take(torch.arange(len(data.test)))]


@pytest.fixture
def damaged(tmp_path):
    """A small python-layout set whose second file is replaced by the given bytes."""

    def replace(content: bytes) -> str:
        (write_python(tmp_path) / TRAIN[1]).write_bytes(content)
        return str(tmp_path)

    return replace


@pytest.mark.parametrize("write", [write_binary, write_python])
def test_layouts_give_the_stored_records_in_file_order(tmp_path, write):
    folder = write(tmp_path)
    for root in (tmp_path, folder):
        x, y, test_x, test_y = everything(root)
        files = [records(number) for number in range(6)]
        assert torch.equal(
            x, torch.from_numpy(np.concatenate([p for _, p in files[:5]])).view(15, 3, 32, 32)
        )
        assert torch.equal(y, torch.from_numpy(np.concatenate([labels for labels, _ in files[:5]])))
        assert torch.equal(test_x, torch.from_numpy(files[5][1]).view(3, 3, 32, 32))
        assert torch.equal(test_y, torch.from_numpy(files[5][0]))
        assert (x.dtype, y.dtype) == (torch.uint8, torch.int64)


def test_constants_are_the_published_ones(tmp_path):
    write_binary(tmp_path)
    data = cifar10(str(tmp_path))
    assert (data.classes, data.shape, data.augment) == (10, (3, 32, 32), True)
    assert (data.mean, data.std) == ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))


NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def python2_names(key: bytes, names: list[str]) -> bytes:
    """The file of names as Python 2 pickled it: byte strings, and a number beside them."""

    def text(value: bytes) -> bytes:
        return b"U%c" % len(value) + value

    listed = b"".join(text(name.encode()) for name in names)
    count = text(b"num_cases_per_batch") + b"M\x10\x27"
    return b"\x80\x02}(" + count + text(key) + b"](" + listed + b"eu."


@pytest.mark.parametrize(
    ("write", "name", "content"),
    [
        (write_binary, "batches.meta.txt", "\n".join([*NAMES, "", ""]).encode()),
        (write_python, "batches.meta", python2_names(b"label_names", NAMES)),
    ],
)
def test_classes_are_called_what_the_archive_calls_them(tmp_path, write, name, content):
    folder = write(tmp_path)
    assert cifar10(str(tmp_path)).class_names == ()
    (folder / name).write_bytes(content)
    assert cifar10(str(tmp_path)).class_names == tuple(NAMES)


def test_names_of_something_else_are_not_taken(tmp_path):
    folder = write_binary(tmp_path)
    (folder / "batches.meta.txt").write_text("one\ntwo\n")
    assert cifar10(str(tmp_path)).class_names == ()
    write_python(tmp_path / "other")
    (tmp_path / "other" / PYTHON / "batches.meta").write_bytes(pickle.dumps(["airplane"], 2))
    assert cifar10(str(tmp_path / "other")).class_names == ()


def test_binary_files_are_mapped_and_never_written(tmp_path):
    folder = write_binary(tmp_path)
    before = (folder / "test_batch.bin").read_bytes()
    images = cifar10(str(tmp_path)).test._parts[0]
    assert images.untyped_storage().nbytes() == len(
        before
    )  # a view on the whole file, label bytes included
    images.zero_()
    assert (folder / "test_batch.bin").read_bytes() == before


def test_environment_names_the_root(tmp_path, monkeypatch):
    write_binary(tmp_path)
    monkeypatch.setenv("FEDWSQ_DATA", str(tmp_path))
    assert len(cifar10().train) == 15


def test_python_2_pickles_are_read(tmp_path):
    folder = write_python(tmp_path)
    (folder / "test_batch").write_bytes(
        python2_pickle(b"\x07\x02", bytes(3072) + bytes([9]) * 3072)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        _, _, x, y = everything(tmp_path)
    assert y.tolist() == [7, 2]
    assert [row.unique().tolist() for row in x] == [[0], [9]]


class Evil:
    def __init__(self, call, *arguments):
        self.reduced = (call, arguments)

    def __reduce__(self):
        return self.reduced


def test_a_pickle_that_runs_code_is_refused_and_does_not_run(tmp_path, damaged):
    mark = tmp_path / "ran"
    root = damaged(pickle.dumps({b"data": Evil(os.system, f"touch {mark}")}, protocol=2))
    with pytest.raises(
        DataError, match=rf"data_batch_2: the pickle asks for '{os.system.__module__}\.system'"
    ):
        cifar10(root)
    assert not mark.exists()


def test_a_pickle_reaches_no_codec_but_latin1(damaged):
    import codecs

    with pytest.raises(DataError, match="asks for a codec and not for bytes"):
        cifar10(damaged(pickle.dumps(Evil(codecs.encode, "a", "rot13"), protocol=2)))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([1, 2], "'data', a uint8 array"),
        ({b"labels": [1]}, "'data', a uint8 array"),
        ({b"data": np.zeros((1, 3072), np.int16), b"labels": [1]}, "'data', a uint8 array"),
        ({b"data": np.zeros((1, 3071), np.uint8), b"labels": [1]}, "'data', a uint8 array"),
        (
            {b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]},
            "'labels', a list of 2 integers",
        ),
        (
            {b"data": np.zeros((1, 3072), np.uint8), b"labels": ["1"]},
            "'labels', a list of 1 integers",
        ),
        (
            {b"data": np.zeros((1, 3072), np.uint8), b"labels": [10**30]},
            "'labels', a list of 1 integers",
        ),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": [10]}, "label 10"),
    ],
)
def test_a_pickle_of_something_else_is_refused(damaged, batch, message):
    with pytest.raises(DataError, match=f"data_batch_2.*{message}"):
        cifar10(damaged(pickle.dumps(batch, protocol=2)))


@pytest.mark.parametrize(
    "content", [b"", b"no pickle", pickle.dumps({b"data": np.zeros(99)}, protocol=2)[:-40]]
)
def test_a_damaged_pickle_is_refused(damaged, content):
    with pytest.raises(DataError, match="data_batch_2 is not a readable pickle"):
        cifar10(damaged(content))


@pytest.mark.parametrize("size", [0, 1, 3072, 3 * 3073 - 1, 3 * 3073 + 1])
def test_a_file_of_partial_records_is_truncated(tmp_path, size):
    path = write_binary(tmp_path) / "data_batch_3.bin"
    path.write_bytes(bytes(size))
    with pytest.raises(
        DataError, match=rf"data_batch_3\.bin is truncated: {size} bytes .* 3073-byte"
    ):
        cifar10(str(tmp_path))


def test_a_label_above_nine_is_refused(tmp_path):
    path = write_binary(tmp_path) / "test_batch.bin"
    path.write_bytes(bytes(3073) + bytes([10]) + bytes(3072))
    with pytest.raises(DataError, match=r"test_batch\.bin holds the label 10.* 0 to 9"):
        cifar10(str(tmp_path))


@pytest.mark.parametrize("exists", [True, False])
def test_a_missing_root_says_where_to_put_what(tmp_path, exists):
    root = tmp_path / "nowhere"
    if exists:
        root.mkdir()
    with pytest.raises(DataError) as caught:
        cifar10(str(root))
    for part in (
        str(root),
        *LAYOUTS,
        "cifar-10-binary.tar.gz",
        "cifar-10-python.tar.gz",
        "data.root=",
        "FEDWSQ_DATA",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("write", "name"), [(write_binary, "data_batch_4.bin"), (write_python, "test_batch")]
)
def test_a_missing_file_is_named(tmp_path, write, name):
    path = write(tmp_path) / name
    path.unlink()
    with pytest.raises(DataError, match=f"{path} is missing"):
        cifar10(str(tmp_path))


def test_fewer_records_than_published_is_a_warning(tmp_path):
    write_binary(tmp_path)
    with pytest.warns(UserWarning, match="CIFAR-10") as caught:
        cifar10(str(tmp_path))
    train, test = (str(warning.message) for warning in caught)
    assert "15 records" in train
    assert "50000" in train
    assert "3 records in test_batch.bin" in test
    assert "10000" in test


def test_the_real_data_is_what_was_published():
    root = os.environ.get("FEDWSQ_DATA", "")
    if not any((Path(root) / name).is_dir() for name in LAYOUTS if root):
        pytest.skip(
            "real CIFAR-10 not available: "
            "set FEDWSQ_DATA to a folder with cifar-10-batches-bin or -py"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = cifar10()
    assert (len(data.train), len(data.test)) == (50_000, 10_000)
    assert data.train.labels.bincount().tolist() == [5000] * 10
    assert data.test.labels.bincount().tolist() == [1000] * 10
    assert data.test.labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    x, _ = data.train.take(torch.arange(0, 50_000, 5))
    # A fifth of the images: the mean of an image has a deviation of about .12, so the error is
    # about .12 / 100.
    assert x.float().mean(dim=(0, 2, 3)).div(255).tolist() == pytest.approx(data.mean, abs=0.006)


def test_names_of_classes_beyond_all_are_not_read(tmp_path):
    folder = write_binary(tmp_path)
    (folder / "batches.meta.txt").write_bytes(b"a " * 40_000)
    with pytest.raises(DataError, match="larger than any published file"):
        cifar10(str(tmp_path))
