"""Split files: ours round and round, the published ones converted, hostile ones refused."""

import json
import random
from collections import OrderedDict, defaultdict
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwsq.core.errors import ConfigError, DataError, FedwsqError
from fedwsq.data import PARTITIONS, Split, split_files
from fedwsq.data.partition import dirichlet
from fedwsq.data.split_files import from_file, import_split, load_split, save_split

PLAIN = {
    "format": "fedwsq-split",
    "version": 1,
    "examples": 6,
    "repeats": False,
    "clients": [[3, 1], [0, 5, 2]],
}


def write(path, **changes):
    path.write_text(json.dumps({**PLAIN, **changes}))
    return path


def lists(split: Split) -> list[list[int]]:
    return [shard.tolist() for shard in split]


def test_a_file_by_hand(tmp_path):
    path = write(tmp_path / "split.json")
    split, examples = load_split(path)
    assert (lists(split), examples) == ([[3, 1], [0, 5, 2]], 6)
    assert lists(from_file(torch.zeros(6), 2, str(path))) == [[3, 1], [0, 5, 2]]
    assert lists(PARTITIONS["file"](torch.zeros(6), 2, path=str(path))) == [[3, 1], [0, 5, 2]]


def test_what_is_saved_is_read_back(tmp_path):
    labels = torch.arange(50_000) % 10
    split = dirichlet(labels, 100, 0)
    save_split(tmp_path / "split.json", split, 50_000)
    again = from_file(labels, 100, str(tmp_path / "split.json"))
    assert torch.equal(again.indices, split.indices)
    assert torch.equal(again.offsets, split.offsets)
    assert len((tmp_path / "split.json").read_text().splitlines()) == 102  # a line a client


def test_a_file_for_nobody_knows_how_many_examples(tmp_path):
    path = write(tmp_path / "split.json", examples=None)
    assert len(from_file(torch.zeros(6), 2, str(path)).indices) == 5
    assert len(from_file(torch.zeros(60), 2, str(path)).indices) == 5
    with pytest.raises(ConfigError, match="index 5, and there are 5 examples"):
        from_file(torch.zeros(5), 2, str(path))


def test_repeats_are_read_where_the_file_says_so(tmp_path):
    path = write(tmp_path / "split.json", clients=[[3, 1], [3, 0, 3]], repeats=True)
    split, _ = load_split(path)
    assert lists(split) == [[3, 1], [3, 0, 3]]
    save_split(path, split, 6)
    assert lists(load_split(path)[0]) == [[3, 1], [3, 0, 3]]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"format": "other"}, "not a split"),
        ({"version": 2}, "version 2, this build reads 1"),
        ({"version": True}, "version True"),
        ({"version": "1"}, "version '1'"),
        ({"more": 1}, "a split has format, version, examples, repeats, clients"),
        ({"examples": 5}, "index 5, but splits 5 examples"),
        ({"examples": 0}, '"examples" is 0'),
        ({"examples": True}, '"examples" is True'),
        ({"examples": 6.0}, '"examples" is 6.0'),
        ({"repeats": "no"}, "\"repeats\" is 'no'"),
        ({"clients": {"0": [1]}}, "a list of indices for each client"),
        ({"clients": [[1], 2]}, "a list of indices for each client"),
        ({"clients": []}, "no clients"),
        ({"clients": [[1], []]}, "leaves client 1 without examples"),
        ({"clients": [[1], [-1]]}, "index -1"),
        ({"clients": [[1], [2.0]]}, "float among its indices"),
        ({"clients": [[1], [True]]}, "bool among its indices"),
        ({"clients": [[1], ["2"]]}, "str among its indices"),
        ({"clients": [[1], [[2]]]}, "list among its indices"),
        ({"clients": [[1], [None]]}, "NoneType among its indices"),
        ({"clients": [[1], [2**63]]}, f"index {2**63}"),
        ({"clients": [[1], [10**30]]}, f"index {10**30}"),
        ({"version": "\n" * 9999}, "version"),
        ({"x" * 9999: 1, "a\nb": 2}, "has the keys"),
        ({"examples": [[1]] * 9999}, '"examples"'),
        ({"repeats": 10**4000}, '"repeats"'),
        ({"clients": [[1], [10**4000]]}, "index 1000"),
        ({"clients": [[1, 3], [3, 1, 1]]}, 'gives 3 indices out again, but says "repeats": false'),
    ],
)
def test_a_file_that_is_not_right_is_refused(tmp_path, changes, why):
    path = write(tmp_path / "split.json", **changes)
    with pytest.raises(DataError) as raised:
        load_split(path)
    assert why in str(raised.value)
    assert str(path) in str(raised.value)
    assert len(str(raised.value)) < 500
    assert "\n" not in str(raised.value)


def test_a_key_that_lacks_is_refused(tmp_path):
    path = tmp_path / "split.json"
    for key in PLAIN:
        path.write_text(json.dumps({name: value for name, value in PLAIN.items() if name != key}))
        with pytest.raises(DataError):
            load_split(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1, 2]",
        "null",
        "[" * 100_000,
        '{"a":' * 100_000,
        "1" * 10_000,
        "NaN",
        "{0: [1, 2]}",
        "\x00",
    ],
)
def test_what_is_no_json_object_is_refused(tmp_path, text):
    path = tmp_path / "split.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"split\.json is not") as raised:
        load_split(path)
    assert len(str(raised.value)) < 500


def test_files_that_cannot_be_read_are_refused(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="No such file"):
        load_split(tmp_path / "absent.json")
    with pytest.raises(DataError, match="Is a directory"):
        load_split(tmp_path)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="not text"):
        import_split(tmp_path / "bytes")
    path = write(tmp_path / "split.json")
    size = path.stat().st_size
    monkeypatch.setattr(split_files, "MAX_BYTES", size)
    load_split(path)
    monkeypatch.setattr(split_files, "MAX_BYTES", size - 1)
    with pytest.raises(DataError, match="too large for a split"):
        load_split(path)


def test_a_file_of_other_data_is_refused(tmp_path):
    path = str(write(tmp_path / "split.json"))
    with pytest.raises(ConfigError, match=r"over 2 clients, data\.clients is 3"):
        from_file(torch.zeros(6), 3, path)
    with pytest.raises(ConfigError, match="splits 6 examples, and there are 7"):
        from_file(torch.zeros(7), 2, path)
    with pytest.raises(ConfigError, match=r"needs data\.partition\.path"):
        from_file(torch.zeros(7), 2)


PUBLISHED = {0: [2238, 32848, 27025], 1: [13967], 2: [5, 1]}
SMALL = {client: np.array(indices) for client, indices in PUBLISHED.items()}


@pytest.mark.parametrize(
    "text",
    [
        str(PUBLISHED) + "\n",
        "{2: [5, 1], 0: [2238, 32848, 27025], 1: [13967]}",
        json.dumps(PUBLISHED),
        json.dumps(PUBLISHED, indent=2),
        str(SMALL),
        "{0: array([2238, 32848,\n   27025], dtype=int64), 1: np.array([13967]), 2: array([5, 1])}",
        str(
            {
                client: [np.int64(index) for index in indices]
                for client, indices in PUBLISHED.items()
            }
        ),
        "{0: [np.int64(2238), np.int64(32848), np.int64(27025)], 1: [np.int64(13967)], "
        "2: [np.int64(5), np.int64(1)]}",
        str(OrderedDict(PUBLISHED)),
        "OrderedDict([(0, [2238, 32848, 27025]), (1, [13967]), (2, [5, 1])])",
        "OrderedDict({0: [2238, 32848, 27025], 1: [13967], 2: [5, 1]})",
        str(defaultdict(list, PUBLISHED)),
        "{0: {2238, 32848, 27025}, 1: {13967}, 2: {5, 1},}",
    ],
)
def test_published_files_in_every_dress(tmp_path, text):
    path = tmp_path / "published.txt"
    path.write_text(text)
    assert lists(import_split(path)) == [PUBLISHED[0], PUBLISHED[1], PUBLISHED[2]]


def test_repeats_are_counted_then_kept_or_dropped(tmp_path):
    path = tmp_path / "published.txt"
    path.write_text("{0: [1, 2, 2], 1: [3, 1], 2: [4, 2]}")
    with pytest.raises(
        DataError, match=r"gives 3 of its 7 indices out again; --drop-repeats .* --keep-repeats"
    ):
        import_split(path)
    assert lists(import_split(path, "keep")) == [[1, 2, 2], [3, 1], [4, 2]]
    assert lists(import_split(path, "drop")) == [[1, 2], [3], [4]]
    path.write_text("{0: [1, 2], 1: [1], 2: [3]}")
    with pytest.raises(DataError, match="leaves client 1 without examples"):
        import_split(path, "drop")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not a split"),
        ("[1, 2]", "cannot read '1, 2'"),
        ("{}", "no clients"),
        ("{0: []}", "leaves client 0 without examples"),
        ("{0: [1, 2], 0: [3]}", "client 0 twice"),
        ("{0: [1], 2: [3]}", "2 clients, one of them number 2"),
        ("{1: [1], 2: [3]}", "2 clients, one of them number 2"),
        ("{0: [1] 1: [2]}", "cannot read"),
        ("{0: [1.5]}", "cannot read '0: [1.5]'"),
        ("{0: [-1]}", "cannot read"),
        ("{-1: [1]}", "cannot read"),
        ("{0: [1, [2]]}", "cannot read"),
        ("{0: [1,, 2]}", "client 0"),
        ("{0: [1 2]}", "client 0"),
        ("{0: array([1)2])}", "client 0"),
        ("{0: [1np.int64(2)]}", "client 0"),
        ("{0: [" + "9" * 5000 + "]}", "client 0"),
        ("{0: [99999999999999999999]}", "index 99999999999999999999"),
        ("{0: array([0, 1, ..., 8, 9])}", "printed with indices left out"),
        ("{0: [1]}; import os", "is not a split"),
        ("{0: __import__('os').system('touch owned')}", "cannot read"),
        ("{0: [x for x in (1, 2)]}", "cannot read"),
        ("{0: [1] * 1000000000}", "cannot read"),
        ("{0: [1]}\n{0: [2]}", "cannot read"),
        ("{0: [٣]}", "cannot read"),
        ("[" * 100_000 + "]" * 100_000, "cannot read"),
    ],
)
def test_published_files_that_are_none(in_empty_folder, text, why):
    path = in_empty_folder / "published.txt"
    path.write_text(text)
    with pytest.raises(DataError) as raised:
        import_split(path)
    assert why in str(raised.value)
    assert len(str(raised.value)) < 500
    assert sorted(in_empty_folder.iterdir()) == [path]  # nothing in it was run


@settings(max_examples=300)
@given(st.data())
def test_damaged_files_are_read_as_a_split_or_refused(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "damaged"
    text = data.draw(st.sampled_from([str(PUBLISHED), str(SMALL), json.dumps(PLAIN)]))
    at = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(at, min(len(text), at + 5)))
    middle = data.draw(st.text("0123456789[]{}(),:'\". \nae-é", max_size=4))
    path.write_text(text[:at] + middle + text[end:])
    for read in (import_split, lambda path: load_split(path)[0]):
        with suppress(FedwsqError):
            split = read(path)
            assert len(split) >= 1
            assert split.sizes.min() >= 1
            assert split.indices.min() >= 0
            assert split.repeats == 0


def test_a_large_published_file_is_read_whole(tmp_path):
    numbers = list(range(100_000))
    random.Random(0).shuffle(numbers)
    shards = {client: numbers[client::100] for client in range(100)}
    (tmp_path / "large.txt").write_text(str(shards))
    assert lists(import_split(tmp_path / "large.txt")) == list(shards.values())
