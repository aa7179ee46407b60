"""Pickles that mean harm, and the few that do not: nothing is called, all of it is bounded."""

import ast
import pickle
import random
from pathlib import Path

import numpy as np
import pytest

import fedwsq
from fedwsq.core.errors import DataError
from fedwsq.data import cifar, cifar_pickle
from fedwsq.data.cifar import _read
from fedwsq.data.cifar10 import CIFAR10
from fedwsq.data.cifar_pickle import Call, read_pickle, uint8_rows

WIDTH = 3072
PIXELS = np.random.default_rng(0).integers(0, 256, (3, WIDTH), dtype=np.uint8)
BATCH = {b"labels": [3, 1, 2], b"data": PIXELS, b"filenames": [b"a.png", b"b.png", b"c.png"]}
PROTOCOLS = (2, 3, 4)
DEEP = 200_000


@pytest.fixture
def load(tmp_path):
    """The reader of CIFAR-10's python layout, for a test file of these bytes."""
    path = tmp_path / "test_batch"

    def read(content: bytes):
        path.write_bytes(content)
        return _read(CIFAR10, path)

    return read


def forged(old: bytes, new: bytes, batch=BATCH) -> bytes:
    """A pickle of a batch with one of its byte strings replaced."""
    content = pickle.dumps(batch, protocol=2)
    assert content.count(old) == 1
    return content.replace(old, new)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_batch_comes_out_as_it_went_in(protocol):
    found = read_pickle(pickle.dumps(BATCH, protocol=protocol))
    assert uint8_rows(found.pop(b"data"), WIDTH) == PIXELS.tobytes()
    assert found == {b"labels": [3, 1, 2], b"filenames": [b"a.png", b"b.png", b"c.png"]}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_values_come_out_as_they_went_in(protocol):
    values = [None, True, False, 0, 255, 65_535, -1, 2**31, 10**30, "text", "Ω", b"bytes", (), (1,)]
    values += [(1, 2), (1, 2, 3), (1, 2, 3, 4), [], [[]], {}, {"one": 1}, {"a": [b"x", (None,)]}]
    same = b"again"
    values += [list(range(3_000)), dict.fromkeys(map(str, range(3_000)), same), same]
    assert read_pickle(pickle.dumps(values, protocol=protocol)) == values


def test_a_call_is_written_down_and_not_made():
    array = read_pickle(pickle.dumps(PIXELS, protocol=2))
    assert type(array) is Call
    assert array.name in cifar_pickle.ARRAYS
    version, shape, dtype, by_columns, raw = array.state
    assert (version, shape, by_columns, raw) == (1, (3, WIDTH), False, PIXELS.tobytes())
    assert (type(dtype), dtype.name, dtype.arguments[0]) == (Call, "numpy.dtype", "u1")


# Arrays that are none


@pytest.mark.parametrize("kind", [b"O8", b"f8", b"i1", b"u8", b"V9", b"M8", b"??", b"|u"])
def test_a_forged_dtype_is_no_array(kind):
    """Bytes taken for a column of objects once ended the process."""
    content = forged(b"X\2\0\0\0u1", b"X\2\0\0\0" + kind)
    assert uint8_rows(read_pickle(content)[b"data"], WIDTH) is None


def test_a_forged_dtype_in_a_file_is_refused(load):
    with pytest.raises(DataError, match=r"'data', a uint8 array \[n, 3072\]"):
        load(forged(b"X\2\0\0\0u1", b"X\2\0\0\0O8"))


@pytest.mark.parametrize(
    "shape",
    [(-3, 3072), (3, 3071), (2, 3072), (9216,), (3, 3072, 1), (10**18, 3072), ()],
)
def test_a_forged_shape_is_no_array(shape):
    old = pickle.dumps((3, WIDTH), protocol=2)[2:-3]  # without version, memo and end
    new = pickle.dumps(shape, protocol=2)[2:-1].replace(b"q\0", b"")
    assert uint8_rows(read_pickle(forged(old, new))[b"data"], WIDTH) is None


@pytest.mark.parametrize(
    "array",
    [
        np.array([[object, None]], dtype=object)[:, 1:],
        np.zeros((3, WIDTH), np.int8),
        np.zeros((3, WIDTH), np.uint16),
        np.zeros((3, WIDTH), [("a", "u1")]),
        np.zeros((3, WIDTH), "S1"),
        np.asfortranarray(PIXELS),
        np.zeros((3, WIDTH + 1), np.uint8),
        np.zeros(3 * WIDTH, np.uint8),
        np.zeros((1, 3, WIDTH), np.uint8),
        PIXELS.tobytes(),
        [PIXELS],
        None,
    ],
    ids=lambda array: f"{type(array).__name__} {getattr(array, 'dtype', '')}",
)
def test_another_array_is_not_taken_for_pixels(array):
    assert uint8_rows(read_pickle(pickle.dumps(array, protocol=2)), WIDTH) is None


# Programs that want too much


TEXT = b"X" + (1_000_000).to_bytes(4, "little") + b"a" * 1_000_000
HOSTILE = {
    "a class": (b"cbuiltins\nlist\n.", DataError),
    "a class by name": (b"\x8c\x02os\x8c\x06system\x93.", DataError),
    "a class with terminal codes": (b"c\x1b[2J\nx\n.", DataError),
    "an instance": (b"(ios\nsystem\n.", DataError),
    "an object": (b"cnumpy\ndtype\n)\x81.", DataError),
    "an extension": (b"\x82\x01.", DataError),
    "a persistent name": (b"Pname\n.", DataError),
    "a call of something that is no name": (b"))R.", DataError),
    "a call of text": (b"X\x02\0\0\0os)R.", DataError),
    "a codec": (b"c_codecs\nencode\nX\1\0\0\0aX\5\0\0\0rot13\x86R.", DataError),
    "a codec of something else": (b"c_codecs\nencode\n]]\x86R.", DataError),
    "one text encoded many times": (
        b"c_codecs\nencode\nq\0" + TEXT + b"q\1X\6\0\0\0latin1q\2" + b"h\0h\1h\2\x86R" * 9,
        DataError,
    ),
    "state for a list": (b"]]b.", ValueError),
    "items for a tuple": (b")Na.", ValueError),
    "items for a call": (b"cnumpy\ndtype\n)RNa.", ValueError),
    "keys for a list": (b"]NNs.", ValueError),
    "a key without a value": (b"}(U\1au.", ValueError),
    "a key that is no string": (b"}K\1K\1s.", ValueError),
    "a key nested deep": (b"})" + b"\x85" * DEEP + b"Ns.", ValueError),
    "a key nested wide": (b"}" + b")" + b"q\0h\0\x86" * 200 + b"Ns.", ValueError),
    "a name nested wide": (b"X\1\0\0\0a)" + b"q\0h\0\x86" * 200 + b"\x93.", DataError),
    "a memo that is empty": (b"h\0.", KeyError),
    "a stack that is empty": (b"R.", IndexError),
    "a mark that is missing": (b"t.", IndexError),
    "nothing": (b".", IndexError),
    "no end": (b"N", ValueError),
    "an instruction that is none": (b"\xff.", ValueError),
    "text that is none": (b"X\2\0\0\0\xff\xff.", ValueError),
    "a length beyond the end": (b"B\xff\xff\xff\xff.", ValueError),
    "a length beyond all ends": (b"\x8e" + b"\xff" * 8 + b".", ValueError),
    "a negative length": (b"T\xff\xff\xff\xff.", ValueError),
    "a line without end": (b"S'" + b"a" * DEEP, ValueError),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_pickle_is_an_error(case):
    content, error = HOSTILE[case]
    with pytest.raises(error) as caught:
        read_pickle(b"\x80\x02" + content)
    if error is DataError:
        assert str(caught.value).endswith("do not trust this file")
        assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "content", [b"]" * DEEP + b"a" * (DEEP - 1), b")" + b"\x85" * DEEP, b"(" * DEEP + b"t" * DEEP]
)
def test_nesting_costs_no_recursion(content):
    assert type(read_pickle(b"\x80\x02" + content + b".")) in (list, tuple)


def test_the_numbers_of_the_memo_cost_nothing():
    """Unpickling takes as much memory as the largest number says: 64 GB here."""
    huge = (2**32 - 1).to_bytes(4, "little")
    assert read_pickle(b"\x80\x02]r" + huge + b"j" + huge + b"\x86.") == ([], [])


def test_a_program_has_an_end(monkeypatch):
    monkeypatch.setattr(cifar_pickle, "MAX_STEPS", 1_000)
    assert read_pickle(b"N" * 999 + b".") is None
    with pytest.raises(DataError, match="more than 1,000 steps"):
        read_pickle(b"N" * 1_000 + b".")


# As files


def test_a_file_cut_anywhere_is_refused(load):
    content = pickle.dumps(BATCH, protocol=2)
    inside = range(0, len(content), 97)
    for length in (*range(50), *inside, *range(len(content) - 50, len(content))):
        with pytest.raises(DataError, match="not a readable pickle"):
            load(content[:length])


def test_a_damaged_file_is_read_or_refused(load):
    content = pickle.dumps({b"labels": [3], b"data": PIXELS[:1]}, protocol=2)
    rng = random.Random(0)
    refusals = 0
    for _ in range(1_000):
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(300)] = rng.randrange(256)
        try:
            images, labels = load(bytes(damaged))
            assert images.shape == (len(labels), 3, 32, 32)
        except DataError:
            refusals += 1
    assert refusals > 500


def test_a_file_larger_than_any_published_is_not_read(load, monkeypatch):
    content = pickle.dumps(BATCH, protocol=2)
    monkeypatch.setattr(cifar, "MAX_PICKLE_BYTES", len(content))
    assert load(content)[1].tolist() == [3, 1, 2]
    with pytest.raises(DataError, match="larger than any published"):
        load(content + b".")


def test_no_module_unpickles():
    package = Path(fedwsq.__file__).parent
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
                assert not {"pickle", "cloudpickle", "dill", "marshal", "shelve"} & set(names), path
