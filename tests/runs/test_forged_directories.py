"""Run directories from elsewhere: whatever is in them is one line, never a traceback."""

import json
import os
import re
import shutil

import numpy as np
import pytest
import safetensors
import torch

from fedwsq.cli import main
from fedwsq.core.errors import RunError
from fedwsq.core.files import save_tensors
from fedwsq.federation.server import Snapshot
from fedwsq.runs import checkpoint

NAN = float("nan")


@pytest.fixture
def folder(finished, tmp_path, monkeypatch):
    """A copy of a finished run, to be tampered with."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished.folder, tmp_path / "run")
    return tmp_path / "run"


def refused(capsys) -> str:
    assert main(["resume", "run", "rounds=4", "--workers", "1"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("fedwsq: ")
    assert err.count("\n") == 1
    assert err[:-1].isprintable()
    return err


# Checkpoints, each with a digest that fits what was put into it.


def forge(folder, change) -> None:
    """Replace both checkpoints by what `change` makes of the plain part and the tensors."""
    with safetensors.safe_open(folder / "checkpoints" / checkpoint.LAST, "pt") as file:
        plain = json.loads(file.metadata()["fedwsq"])
        tensors = {name: file.get_tensor(name) for name in plain["tensors"]}
    change(plain, tensors)
    plain.pop("digest", None)
    plain.setdefault("tensors", list(tensors))
    plain["tensors"] = [name for name in plain["tensors"] if name in tensors]
    plain["tensors"] += [name for name in tensors if name not in plain["tensors"]]
    plain["digest"] = checkpoint._digest(plain, tensors)
    for name in (checkpoint.LAST, checkpoint.PREVIOUS):
        save_tensors(folder / "checkpoints" / name, tensors, {"fedwsq": json.dumps(plain)})


def put(name, x):
    return lambda plain, tensors: tensors.update({name: x})


def say(**words):
    return lambda plain, tensors: plain.update(words)


def everywhere(part, make):
    """Change all tensors of one part."""

    def change(plain, tensors):
        for name in list(tensors):
            if name.startswith(part):
                tensors[name] = make(tensors[name])

    return change


FORGERIES = {
    "a round that is text": (say(round="3"), "its round is '3'"),
    "a round that is true": (say(round=True), "its round is True"),
    "a negative round": (say(round=-1), "its round is -1"),
    "a round beyond all": (say(round=10**30), "its round is 1000"),
    "a mean that is no number": (say(accuracy_ema=NAN), "its mean accuracy nan"),
    "a mean that is a list": (say(accuracy_ema=[1]), r"its mean accuracy \[1\]"),
    "a run that is no hex": (say(run="zz"), "damaged"),
    "a run that is short": (say(run="00"), "its run has no name"),
    "a run that is a number": (say(run=7), "damaged"),
    "another format": (say(format=[[4]]), r"has format \[\[4\]\], this build reads 4"),
    "weights that are not finite": (
        everywhere("server/params", lambda x: x * NAN),
        "is not finite",
    ),
    "weights of another type": (
        everywhere("server/params", lambda x: x.double()),
        "not those of the model",
    ),
    "weights of another shape": (
        everywhere("server/params", lambda x: x.flatten()),
        "not those of the model",
    ),
    "a vector too many": (put("server/more/x", torch.ones(1)), "not those of the model"),
    "a name without its parts": (put("server", torch.ones(1)), "damaged"),
    "a negative scale": (everywhere("shared/", lambda x: -x), "a scale that is not above 0"),
    "scales of another shape": (
        everywhere("shared/", lambda x: x.repeat(2)),
        "not that of the codec",
    ),
    "other clients": (
        put("clients//accepted", torch.zeros(11, dtype=torch.int32)),
        "not those of the plan",
    ),
    "clients by real numbers": (
        put("clients//accepted", torch.zeros(10)),
        "not those of the plan",
    ),
    "clients from the future": (
        put("clients//accepted", torch.full((10,), 9, dtype=torch.int32)),
        "rounds that it does not have",
    ),
    "a public model of another shape": (
        put("public/params/x", torch.ones(1)),
        "its public model",
    ),
    "a difference without a number": (
        lambda plain, tensors: tensors.update(
            {"public/params/x": torch.ones(1), "differences//\x1b[2J": torch.ones(1)}
        ),
        r"damaged .*\\x1b\[2J",
    ),
}


@pytest.mark.parametrize("case", FORGERIES)
def test_a_forged_checkpoint(folder, capsys, case):
    change, text = FORGERIES[case]
    forge(folder, change)
    assert re.search(text, refused(capsys))


# All that a digest is made of but float32 and int32; some of them torch stores and cannot compare.
TYPES = [
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "uint64", "int64"),
    *("float16", "float64", "complex64"),
]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("part", "text"),
    [
        ("server/params", "not those of the model"),
        ("shared/", "not that of the codec"),
        ("clients//accepted", "not those of the plan"),
    ],
)
def test_a_checkpoint_of_tensors_of_another_type(folder, part, text, dtype):
    first, _ = checkpoint.load_snapshot(folder / "checkpoints")
    forge(folder, everywhere(part, lambda x: x.to(getattr(torch, dtype))))
    found, _ = checkpoint.load_snapshot(folder / "checkpoints")
    with pytest.raises(RunError, match=text):
        checkpoint.require_fit(found, first)


def test_a_scale_of_0_is_refused_where_no_codec_starts_from_it():
    first = snapshot(scale=1e-3)
    checkpoint.require_fit(snapshot(scale=0.5), first)
    with pytest.raises(RunError, match="a scale that is not above 0"):
        checkpoint.require_fit(snapshot(scale=0.0), first)
    checkpoint.require_fit(snapshot(scale=0.0), snapshot(scale=0.0))  # one that calibrates itself


def snapshot(scale):
    shared = {"delta": {"w": torch.tensor([scale])}}
    return Snapshot(bytes(16), 3, {"params": {"w": torch.ones(2)}}, shared, np.zeros(2, np.int32))


def test_an_honest_checkpoint_written_by_the_same_hand_is_taken(folder, capsys):
    forge(folder, lambda plain, tensors: None)
    assert main(["resume", "run", "rounds=4", "--workers", "1"]) == 0
    assert "4 rounds" in capsys.readouterr().out


# Rows and manifests.

ROWS = {
    "text for bytes": {"uplink_bytes": "many"},
    "true for a number": {"sampled": True},
    "a list for a table": {"failures": ["a"]},
    "numbers for reasons": {"failures": {"1": 7}},
    "a number beyond all": {"downlink_bytes": 10**40},
    "a loss that is no number": {"train_loss": NAN},
    "a loss without end": {"train_loss": float("inf")},
    "text among ratios": {"scale_ratios": {"a": "b"}},
    "a round that is text": {"round": "1"},
}


@pytest.mark.parametrize("case", ROWS)
def test_a_forged_row(folder, capsys, case):
    path = folder / "rounds.jsonl"
    first, *others = path.read_text().splitlines(keepends=True)
    forged = json.dumps({**json.loads(first), **ROWS[case]}) + "\n"
    path.write_text("".join([forged, *others]))
    assert f"line 1, is damaged ({next(iter(ROWS[case]))} is of type" in refused(capsys)


@pytest.mark.parametrize("line", ["[" * 100_000, "3", "null", "{}", "\x1b[2J", "\udcff"])
def test_a_line_that_is_no_row(folder, capsys, line):
    path = folder / "rounds.jsonl"
    path.write_bytes(line.encode(errors="surrogateescape") + b"\n" + path.read_bytes())
    assert "line 1, is damaged" in refused(capsys)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "[]",
        '{"format": 2, "device": ["cpu"]}',
        '{"format": 2, "seed": 1e999}',
        '{"format": "\\u001b[2J"}',
        '{"format": 2, "device": "\\u001b[2J"}',
        " " * (2**20 + 1),
        "\ud800",
    ],
    ids=range(8),
)
def test_a_forged_manifest(folder, capsys, text):
    (folder / "manifest.json").write_bytes(text.encode(errors="surrogatepass"))
    assert len(refused(capsys)) < 500


def test_what_a_manifest_says_of_its_machine_is_shown_as_text(folder, capsys):
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "cpu": "\x1b[2J\x07"}))
    assert main(["resume", "run", "rounds=4", "--workers", "1"]) == 0
    out = capsys.readouterr().out
    assert "cpu was \\x1b[2J\\x07 and is" in out
    assert "\x1b[2J" not in out


# Files that are none, and links to files of whoever goes on with the run.


@pytest.mark.parametrize(
    ("verb", "name"),
    [
        *(("resume", name) for name in ("config.toml", "manifest.json", "rounds.jsonl")),
        *(("compare", name) for name in ("config.toml", "manifest.json", "rounds.jsonl")),
        ("verify", "receipt.json"),
    ],
)
def test_a_pipe_or_a_device_is_not_waited_for(folder, capsys, verb, name):
    for make in (os.mkfifo, lambda path: os.symlink("/dev/zero", path)):
        (folder / name).unlink()
        make(folder / name)
        assert main([verb, "run"]) == 2
        assert "it is not a regular file" in capsys.readouterr().err


TEMPORARY = (
    "checkpoints/.next.safetensors.tmp",
    ".config.toml.tmp",
    ".rounds.jsonl.tmp",
    ".summary.json.tmp",
    ".model.safetensors.tmp",
)


def test_no_file_is_written_through_a_link(folder, tmp_path):
    mine = tmp_path / "mine.txt"
    mine.write_text("precious")
    for name in TEMPORARY:
        (folder / name).symlink_to(mine)
    assert main(["resume", "run", "rounds=4", "--workers", "1"]) == 0
    assert mine.read_text() == "precious"


@pytest.mark.parametrize("name", [".lock", "rounds.jsonl"])
def test_nothing_is_added_to_a_file_behind_a_link(folder, tmp_path, name):
    mine = tmp_path / "mine.txt"
    mine.write_text("")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(mine)
    main(["resume", "run", "rounds=4", "--workers", "1"])
    assert mine.read_text() == ""


def test_rows_beyond_all_are_not_read(folder, capsys):
    with open(folder / "rounds.jsonl", "r+b") as file:
        file.truncate(2**34)  # with a hole: it takes no room
    assert main(["compare", "run"]) == 2
    assert "rounds.jsonl cannot be read: it has more than" in capsys.readouterr().err


def test_a_key_without_end_in_a_config(folder, capsys):
    (folder / "config.toml").write_text(".".join(["a"] * 100_000) + " = 1")
    assert main(["compare", "run"]) == 2
    assert "a key of more than 40 parts" in capsys.readouterr().err


def test_numbers_near_the_end_of_all_numbers_are_no_rows(folder, capsys):
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    lines = [json.dumps({**row, "test_accuracy": 1.7e308}) for row in rows]
    (folder / "rounds.jsonl").write_text("\n".join(lines) + "\n")
    assert main(["report", "run", "--out", "page.html"]) == 0
    assert "3 damaged rows left out" in capsys.readouterr().out
