import os
import pickle
import zipfile

import numpy as np
import pytest
import torch

from fedwsq.core.errors import ConfigError, DataError
from fedwsq.data.npz import npz

RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (20, 3, 4, 5), dtype=np.uint8)
Y = np.arange(20) % 3


@pytest.fixture
def load(tmp_path):
    """Write the arrays, and load them with the settings."""

    def write_and_load(settings=None, /, **arrays):
        np.savez(tmp_path / "mine.npz", **arrays)
        return npz(str(tmp_path / "mine.npz"), **(settings or {}))

    return write_and_load


def four(x=X, y=Y, train=16, **more):
    return {
        "x_train": x[:train],
        "y_train": y[:train],
        "x_test": x[train:],
        "y_test": y[train:],
        **more,
    }


def test_four_arrays_are_taken_as_they_are(load):
    data = load(**four())
    for examples, rows in ((data.train, slice(16)), (data.test, slice(16, None))):
        x, y = examples.take(torch.arange(len(examples)))
        assert (x.dtype, y.dtype) == (torch.uint8, torch.int64)
        assert np.array_equal(x.numpy(), X[rows])
        assert np.array_equal(y.numpy(), Y[rows])
    assert (data.classes, data.shape, data.augment, data.groups) == (3, (3, 4, 5), False, None)
    assert data.mean == pytest.approx((X[:16] / 255).mean(axis=(0, 2, 3)))
    assert data.std == pytest.approx((X[:16] / 255).std(axis=(0, 2, 3)))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f8"])
def test_floats_of_any_shape_become_float32_and_are_not_normalized(load, dtype):
    x = RNG.standard_normal((20, 7)).astype(dtype)
    data = load(**four(x))
    taken, _ = data.train.take(torch.arange(16))
    assert taken.dtype == torch.float32
    assert np.array_equal(taken.numpy(), x[:16].astype(np.float32))
    assert (data.mean, data.std, data.shape) == ((), (), (7,))


@pytest.mark.parametrize("dtype", [np.int16, np.uint16, ">i4", np.int64, np.uint64])
def test_wider_integers_are_indices(load, dtype):
    x = RNG.integers(0, 30_000, (20, 7)).astype(dtype)
    data = load(**four(x))
    taken, _ = data.train.take(torch.arange(16))
    assert taken.dtype == torch.int64
    assert np.array_equal(taken.numpy(), x[:16])
    assert (data.mean, data.std) == ((), ())
    with pytest.warns(UserWarning, match="taken for indices; images should be uint8 or floats"):
        load(**four(X.astype(dtype)))


def test_a_share_of_x_and_y_is_held_out_with_their_groups(load):
    x = np.arange(40.0).reshape(20, 2)
    data = load(x=x, y=Y, group=np.array([f"user {i % 4}" for i in range(20)]))
    assert (len(data.train), len(data.test)) == (16, 4)
    seen = []
    for examples in (data.train, data.test):
        rows, y = examples.take(torch.arange(len(examples)))
        numbers = rows[:, 0].long() // 2
        assert torch.equal(y, numbers % 3)
        seen += numbers.tolist()
    assert sorted(seen) == list(range(20))
    rows, _ = data.train.take(torch.arange(16))
    assert torch.equal(data.groups, rows[:, 0].long() // 2 % 4)
    assert len(load({"test": 0.5}, x=x, y=Y).test) == 10
    with pytest.raises(ConfigError, match=r"test = 0\.01 of 20 examples"):
        load({"test": 0.01}, x=x, y=Y)


@pytest.mark.parametrize("name", ["group", "group_train"])
@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        ([30, 10, 10, 20], [2, 0, 0, 1]),
        (["b", "a", "c", "a"], [1, 0, 2, 0]),
        ([b"b", b"a", b"b", b"b"], [1, 0, 1, 1]),
    ],
)
def test_groups_are_numbered_in_order_of_their_names(load, name, names, numbers):
    data = load(**four(train=4, **{name: np.array(names)}))
    assert (data.groups.tolist(), data.groups.dtype) == (numbers, torch.int64)


def test_float_targets_are_a_regression(load):
    y = RNG.standard_normal(20)
    data = load(**four(y=y))
    assert data.classes == 1
    assert data.train.labels.dtype == torch.float32
    assert np.array_equal(data.train.labels.numpy(), y[:16].astype(np.float32))
    assert load(**four(y=RNG.standard_normal((20, 4)))).classes == 4


def test_the_number_of_classes_may_be_given(load):
    assert load({"classes": 5}, **four()).classes == 5
    with pytest.raises(DataError, match="label 2, but classes = 2 allows 0 to 1"):
        load({"classes": 2}, **four())
    with pytest.raises(ConfigError, match="classes is -1"):
        load({"classes": -1}, **four())


def changed(array, row, value):
    array = array.copy()
    array[row] = value
    return array


BAD = {
    "object labels": (
        four(y=np.array([{}] * 20)),
        "cannot read .*mine.npz: Object arrays cannot be loaded",
    ),
    "object inputs": (four(x=np.array([[None]] * 20)), "Object arrays cannot be loaded"),
    "a negative label": (
        four(y=changed(Y, 3, -1)),
        "y_train holds the label -1; number the classes from 0",
    ),
    "a label beyond": (four(y=changed(Y, 18, 20)), "label 20, but it has fewer examples than that"),
    "a huge label": (
        four(y=changed(Y.astype(np.uint64), 0, 2**63)),
        "y_train holds the label 9223372036854775808",
    ),
    "labels of two dimensions": (
        four(y=Y[:, None]),
        r"y_train has the shape \[16, 1\], but labels must be",
    ),
    "labels as text": (four(y=Y.astype(str)), "y_train is <U21, must be integers"),
    "complex targets": (four(y=Y * 1j), "y_train is complex128"),
    "no examples": (four(train=0), r"x_train has the shape \[0, 3, 4, 5\]"),
    "inputs of one dimension": (
        four(x=np.arange(20.0)),
        r"x_train has the shape \[16\], must be \[examples",
    ),
    "inputs of int8": (
        four(x=X.astype(np.int8)),
        "x_train is int8, must be uint8, wider integers or floats; conv",
    ),
    "an index beyond": (
        four(x=np.full((20, 2), 2**63)),
        "x_train holds the index 9223372036854775808, which",
    ),
    "not a number": (
        four(x=changed(X.astype(float), 2, np.nan)),
        "x_train holds values that are infinite",
    ),
    "beyond float32": (
        four(x=changed(X.astype(float), 19, 1e300)),
        "x_test holds values that are infinite",
    ),
    "an infinite target": (
        four(y=changed(Y.astype(float), 1, np.inf)),
        "y_train holds values that are infinite",
    ),
    "fewer labels": ({**four(), "y_train": Y[:15]}, "x_train has 16 rows but y_train 15"),
    "no labels": ({"x": X}, "holds x, but no y; write it with"),
    "no test": ({"x_train": X, "y_train": Y}, "holds x_train, y_train, but no x_test"),
    "nothing": ({}, "holds nothing, but no x"),
    "another test shape": ({**four(), "x_test": X[16:, :1]}, "training and test arrays must agree"),
    "another test kind": (
        {**four(), "y_test": Y[16:] * 1.0},
        "training and test arrays must agree",
    ),
    "fewer groups": (
        four(group=np.arange(15)),
        r"group is int64 \[15\], must be .* one for each of the 16",
    ),
    "float groups": (
        four(group=np.arange(16) * 0.5),
        r"group is float64 \[16\], must be integers or strings",
    ),
}


@pytest.mark.parametrize(("arrays", "message"), BAD.values(), ids=BAD)
def test_bad_arrays_are_one_clear_error(load, arrays, message):
    with pytest.raises(DataError, match=message):
        load(**arrays)


def test_a_member_that_is_no_array_is_refused(tmp_path):
    np.savez(tmp_path / "mine.npz", **four())
    with zipfile.ZipFile(tmp_path / "mine.npz", "a") as file:
        file.writestr("group", "text")
    with pytest.raises(
        DataError, match=r"mine\.npz holds 'group', which is not an array; write it with"
    ):
        npz(str(tmp_path / "mine.npz"))


class Evil:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def test_a_pickle_inside_is_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    header = (
        b"\x93NUMPY\x01\x00\x46\x00"
        + b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(69)
        + b"\n"
    )
    with zipfile.ZipFile("evil.npz", "w") as file:
        file.writestr("x_train.npy", header + pickle.dumps([Evil()]))
    with pytest.raises(DataError, match="Object arrays cannot be loaded"):
        npz("evil.npz")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:100],
        lambda content: content[:-1],
        lambda content: (
            content[:400] + bytes([content[400] ^ 1]) + content[401:]
        ),  # a pixel: the archive's own check
        lambda content: content.replace(b"'<i8'", b"'<x8'"),
        lambda content: b"text",
    ],
)
def test_a_damaged_file_is_one_clear_error(tmp_path, damage):
    np.savez(tmp_path / "mine.npz", **four())
    content = (tmp_path / "mine.npz").read_bytes()
    assert damage(content) != content
    (tmp_path / "mine.npz").write_bytes(damage(content))
    with pytest.raises(DataError, match=r"mine\.npz"):
        npz(str(tmp_path / "mine.npz"))


def test_a_missing_file_and_a_single_array_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"absent\.npz is not a file; write it with numpy\.savez"):
        npz(str(tmp_path / "absent.npz"))
    np.save(tmp_path / "one.npy", X)
    with pytest.raises(DataError, match=r"one\.npy is not an \.npz file"):
        npz(str(tmp_path / "one.npy"))


def test_channels_last_are_warned_about(load):
    with pytest.warns(UserWarning, match=r"x is \[20, 4, 5, 3\]; images should be \[n, channels"):
        load(x=X.transpose(0, 2, 3, 1), y=Y)


# Arrays that would take all memory.


def test_a_member_of_more_than_a_gigabyte_is_not_read(tmp_path):
    path = tmp_path / "bomb.npz"
    size = 2**30 + 1
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", bytes(100))
    data = path.read_bytes()
    # The directory at the end is what is believed; it says more than is there.
    at = data.rindex(b"PK\1\2") + 24
    path.write_bytes(data[:at] + size.to_bytes(4, "little") + data[at + 4 :])
    with pytest.raises(DataError, match=r"'x.npy' has 1,073,741,825 bytes, at most 1,073,741,824"):
        npz(str(path))


def test_an_array_that_claims_more_than_there_is_is_refused(tmp_path):
    head = "{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000000, 9), }"
    text = head.ljust(117) + "\n"
    member = b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text.encode()
    with zipfile.ZipFile(tmp_path / "mine.npz", "w") as archive:
        archive.writestr("x.npy", member)
    with pytest.raises(DataError, match="cannot read"):
        npz(str(tmp_path / "mine.npz"))


def test_terminal_codes_in_a_name_are_shown_as_text(load):
    with pytest.raises(DataError, match=r"holds \\x1b\[2J, but no x"):
        load(**{"\x1b[2J": X})


def test_members_that_nobody_asked_for_stay_packed(load, monkeypatch):
    """A file of a few megabytes could hold any number of them, of a gigabyte each."""
    read = []
    whole = np.lib.format.read_array
    monkeypatch.setattr(
        np.lib.format, "read_array", lambda *args, **more: read.append(1) or whole(*args, **more)
    )
    load(x=X, y=Y, **{f"more_{number}": X for number in range(9)})
    assert len(read) == 2


def test_a_file_of_other_arrays_says_which(load):
    with pytest.raises(DataError, match="holds a, b, but no x"):
        load(a=X, b=Y)


def test_classes_beyond_all_are_refused(load):
    with pytest.raises(ConfigError, match="classes is 9223372036854775807, must be 0"):
        load({"classes": 2**63 - 1}, x=X, y=Y)
