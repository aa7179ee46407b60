"""Bad input: one clear line, exit code 2, no traceback, and no half-made run directory."""

import errno
import json
import os
import shutil
import sys

import pytest

import user_code
from fedwsq.cli import main
from fedwsq.data.cifar10 import RECORD_BYTES, TEST, TRAIN
from harness import TINY_WORDS, tiny_words

pytestmark = [
    pytest.mark.usefixtures("in_empty_folder"),
    pytest.mark.filterwarnings("ignore:CIFAR-10.*published:UserWarning"),
]


def refused(capsys, *words: str) -> str:
    """The one line that a bad command gives."""
    code = main(list(words))
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.startswith("fedwsq: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    return err


RUNS = {
    "a data set without its folder": (
        ["data.name=imagefolder"],
        ["imagefolder needs root", "set data.root=..."],
    ),
    "a data set without its name": (["data.name=hub"], ["hub needs repo", "set data.repo=..."]),
    "unknown key": (["rond=3"], ["rond", "did you mean rounds?"]),
    "unknown key in a table": (["training.epoch=3"], ["training.epoch", "did you mean epochs?"]),
    "key of another table": (["alpha=0.1"], ["alpha", "did you mean data.partition.alpha?"]),
    "unknown config": (["quickstrat"], ["quickstrat", "did you mean quickstart?"]),
    "missing config file": (["nowhere/my.toml"], ["nowhere/my.toml"]),
    "unknown codec": (["uplink.codec=danuk"], ["danuk", "did you mean danuq?"]),
    "letters in the wrong order": (["method=fedwqs"], ["did you mean fedwsq?"]),
    "another case": (["method=FedWSQ"], ["did you mean fedwsq?"]),
    "a key given twice": (
        ["rounds=3", "seed=1", "rounds=4"],
        ["rounds is given twice, rounds=3 and rounds=4; keep one of them"],
    ),
    "unknown model": (["model.name=resnet19"], ["resnet19", "resnet18"]),
    "unknown data set": (["data.name=digit"], ["digit", "digits"]),
    "bits the codec lacks": (["uplink.bits=3"], ["danuq has no 3-bit rate; it offers 1, 2, 4"]),
    "alpha of zero": (["data.partition.alpha=0"], ["alpha is 0"]),
    "alpha below zero": (["data.partition.alpha=-1.5"], ["alpha is -1.5"]),
    "more clients than samples": (["data.clients=1439"], ["1439 clients", "1438 samples"]),
    "cohort above the population": (
        ["clients_per_round=11"],
        ["clients_per_round is 11", "data.clients is 10"],
    ),
    "no clients": (["data.clients=0"], ["clients is 0"]),
    "no rounds": (["rounds=0"], ["rounds is 0"]),
    "negative seed": (["seed=-1"], ["seed is -1"]),
    "learning rate of zero": (["training.lr=0"], ["lr is 0"]),
    "text for a number": (["rounds=many"], ["rounds is 'many'", "whole number"]),
    "validation of everything": (["data.validation=1.0"], ["validation is 1.0"]),
    "validation of nearly everything": (
        ["data.validation=0.9999"],
        ["data.validation = 0.9999 leaves 0 of 1438", "10 clients", "a smaller data.validation"],
    ),
    "target above one": (["stop_at_accuracy=90"], ["stop_at_accuracy is 90", "between 0 and 1"]),
    "a word that is no override": (["quickstart", "fast"], ["fast", "key=value"]),
    "missing data root": (
        ["data.name=cifar10", "data.root=absent"],
        ["absent", "cifar-10-batches-bin", "unpack"],
    ),
    "arrays without a file": (["data.name=npz"], ["data.path=FILE", "numpy.savez"]),
    "no data root at all": (["cifar10-resnet8"], ["cifar-10-batches-bin", "FEDWSQ_DATA"]),
    "a downlink of many widths": (
        ["downlink.codec=danuq", "downlink.bits=per_round"],
        ["must be one number"],
    ),
    "foreign module": (
        ["model.name=no_such_module:build"],
        ["no_such_module", "cannot be imported"],
    ),
    "foreign module without the name": (
        ["model.name=user_code:nothing"],
        ["user_code", "cannot be imported"],
    ),
    "a model that is none": (
        ["model.name=user_code:not_a_model"],
        ["gives str, not a Module"],
    ),
    "negative workers": (["--workers", "-2"], ["workers is -2"]),
    "unknown device": (["--device", "tpu0"], ["tpu0"]),
    "absent device": (["--device", "cuda:99"], ["cuda:99"]),
}


@pytest.mark.parametrize(("words", "said"), RUNS.values(), ids=RUNS.keys())
def test_run(capsys, in_empty_folder, words, said):
    error = refused(capsys, "run", *words, "--out", "runs/mine")
    for text in said:
        assert text in error
    assert list(in_empty_folder.iterdir()) == []


def test_run_of_a_config_that_is_not_toml(capsys, in_empty_folder):
    (in_empty_folder / "my.toml").write_text("rounds = = 3")
    assert "my.toml is not valid TOML" in refused(capsys, "run", "my.toml", "--out", "mine")
    assert [path.name for path in in_empty_folder.iterdir()] == ["my.toml"]


def test_run_of_a_truncated_cifar_file(capsys, in_empty_folder):
    folder = in_empty_folder / "data" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name in (*TRAIN, *TEST):
        (folder / f"{name}.bin").write_bytes(bytes(20 * RECORD_BYTES))
    path = folder / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1])
    error = refused(capsys, "run", "cifar10-resnet8", "--out", "mine")
    assert "data_batch_3.bin is truncated" in error
    assert not (in_empty_folder / "mine").exists()


def test_run_into_a_folder_that_holds_a_run(capsys, finished):
    error = refused(capsys, "run", *TINY_WORDS, "--out", str(finished.folder))
    assert "already holds a run" in error
    assert "fedwsq resume" in error


def test_run_into_a_file(capsys, in_empty_folder):
    (in_empty_folder / "file").write_text("mine")
    assert "cannot create file" in refused(capsys, "run", *TINY_WORDS, "--out", "file")


def test_run_without_the_extra_for_tensorboard(capsys, in_empty_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    error = refused(capsys, "run", *TINY_WORDS, "--tensorboard", "--out", "mine")
    assert "pip install 'fedwsq[tensorboard]'" in error
    assert not (in_empty_folder / "mine").exists()


@pytest.mark.parametrize(("verb", "needs"), [("resume", "DIR"), ("verify", "RECEIPT")])
def test_without_arguments_only_what_is_required_is_asked_for(capsys, verb, needs):
    with pytest.raises(SystemExit):
        main([verb])
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.endswith(f"the following arguments are required: {needs}")


WRITERS = {
    "report": ["report", "RUN", "--out", "new.html"],
    "figure": ["figure", "curves", "RUN", "--out", "new.png"],
    "export": ["export", "RUN", "--to", "csv", "--out", "new.csv"],
    "partition": ["partition", "--out", "new.json"],
    "analyze": ["analyze", "RUN", "scales"],
}


@pytest.mark.parametrize("words", WRITERS.values(), ids=WRITERS.keys())
def test_what_cannot_be_written_is_named(capsys, finished, monkeypatch, words):
    def refuse(source, target):
        raise PermissionError(errno.EACCES, "Permission denied", str(source))

    words = [str(finished.folder) if word == "RUN" else word for word in words]
    monkeypatch.setattr(os, "replace", refuse)
    assert main(words) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    if words[0] == "analyze":
        path = finished.folder / "analysis" / "scales.json"
        way = "make the run's directory writable, or analyze a copy of it"
    else:
        path = words[-1]
        way = "choose another place with --out"
    assert said == f"fedwsq: cannot write {path}: Permission denied; {way}"


def test_resume_of_what_is_no_run(capsys, in_empty_folder):
    assert "is not a run directory" in refused(capsys, "resume", ".")
    assert "is not a run directory" in refused(capsys, "resume", "absent")
    assert list(in_empty_folder.iterdir()) == []


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("seed=3", "seed cannot change on resume"),
        ("rounds=many", "rounds is 'many'"),
        ("rounds=0", "rounds is 0"),
        ("rounds=2", "has run 3 rounds already"),
        ("rounds=true", "rounds is True"),
        ("rounds=8 rounds=9", "rounds is given twice"),
        ("faster", "key=value"),
    ],
)
def test_resume_with_another_setting(capsys, finished, tmp_path, word, said):
    shutil.copytree(finished.folder, tmp_path / "run")
    assert said in refused(capsys, "resume", "run", *word.split())
    assert (tmp_path / "run" / "config.toml").read_bytes() == (
        finished.folder / "config.toml"
    ).read_bytes()


def test_resume_of_a_run_of_another_version(capsys, finished, tmp_path):
    shutil.copytree(finished.folder, tmp_path / "run")
    path = tmp_path / "run" / "manifest.json"
    manifest = json.loads(path.read_text())
    for found in (1, 3):
        path.write_text(json.dumps({**manifest, "format": found}))
        assert f"has run format {found}, this build" in refused(capsys, "resume", "run")


def test_resume_without_a_whole_checkpoint_deletes_nothing(capsys, finished, tmp_path):
    shutil.copytree(finished.folder, tmp_path / "run")
    for name in ("last.safetensors", "previous.safetensors"):
        (tmp_path / "run" / "checkpoints" / name).write_bytes(b"garbage")
    before = sorted(path.name for path in (tmp_path / "run").rglob("*"))
    assert "no usable checkpoint" in refused(capsys, "resume", "run")
    assert sorted(path.name for path in (tmp_path / "run").rglob("*")) == before


def test_resume_from_the_previous_checkpoint_says_so(capsys, finished, tmp_path):
    shutil.copytree(finished.folder, tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "last.safetensors").write_bytes(b"garbage")
    assert main(["resume", "run", "--workers", "1"]) == 0
    out = capsys.readouterr().out
    assert "warning: run/checkpoints/last.safetensors is damaged" in out
    assert "going on from round 2" in out
    assert finished.summary.weights in out


def test_a_run_that_nobody_answers_ends_with_the_reason(capsys, in_empty_folder):
    words = [*tiny_words(rounds=9), "model.name=user_code:failing_cnn"]
    assert main(["run", *words, "--workers", "1", "--out", "mine"]) == 2
    out, err = capsys.readouterr()
    raised = user_code._fail.__code__.co_firstlineno + 2
    assert err == (
        "fedwsq: 3 rounds in a row without a reply; the last reason was: "
        f"RuntimeError: shapes do not fit and a second line (user_code.py:{raised}, in _fail); "
        "whole tracebacks are in mine/failures.log\n"
    )
    assert "round 3/9: " in out
    assert len((in_empty_folder / "mine" / "rounds.jsonl").read_text().splitlines()) == 3
