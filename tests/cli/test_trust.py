"""Files and directories that name code: listed, and not imported before somebody says so."""

import os
import pty
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fedwsq.cli import main
from fedwsq.runs.receipt import read_receipt
from harness import TESTS, TINY_WORDS, rows

CODE = """\
import pathlib
from fedwsq.models import MODELS

pathlib.Path("was_here").touch()


def net(classes, channels):
    return MODELS["cnn"](classes=classes, channels=channels)
"""


@pytest.fixture
def folder(in_empty_folder, monkeypatch):
    (in_empty_folder / "strange_code.py").write_text(CODE)
    (in_empty_folder / "my.toml").write_text('model.name = "strange_code:net"\n')
    monkeypatch.delitem(sys.modules, "strange_code", raising=False)
    monkeypatch.syspath_prepend(str(in_empty_folder))
    return in_empty_folder


def refused(capsys, *words):
    assert main(list(words)) == 2
    return capsys.readouterr().err


SAID = "names code outside the package: strange_code:net; look at it, and give --trust to run it"


@pytest.mark.parametrize("verb", ["run", "partition", "sweep"])
def test_a_file_that_names_code_is_not_run_unasked(folder, capsys, verb):
    assert refused(capsys, verb, "my.toml", *TINY_WORDS) == f"fedwsq: my.toml {SAID}\n"
    assert not (folder / "was_here").exists()
    assert not (folder / "runs").exists()


def test_what_an_override_replaces_is_not_asked_about(folder):
    words = ["run", "my.toml", "model.name=cnn", *TINY_WORDS, "rounds=1", "--dry-run"]
    assert main([word for word in words if word != "rounds=3"]) == 0
    assert not (folder / "was_here").exists()


def test_whoever_types_a_name_vouches_for_it(folder):
    words = [*TINY_WORDS, "model.name=strange_code:net", "--dry-run"]
    assert main(["run", *words]) == 0
    assert (folder / "was_here").exists()


def test_a_directory_that_names_code_is_not_resumed_or_analysed_unasked(folder, capsys):
    words = ["my.toml", *TINY_WORDS, "--trust", "--out", "mine", "--workers", "1"]
    assert main(["run", *words]) == 0
    (folder / "was_here").unlink()
    del sys.modules["strange_code"]
    capsys.readouterr()
    assert refused(capsys, "resume", "mine", "rounds=4") == f"fedwsq: mine/config.toml {SAID}\n"
    assert refused(capsys, "analyze", "mine", "scales") == f"fedwsq: mine/config.toml {SAID}\n"
    assert not (folder / "was_here").exists()
    assert main(["resume", "mine", "rounds=4", "--trust", "--workers", "1"]) == 0
    assert len(rows(folder / "mine")) == 4


@pytest.fixture
def theirs(folder, finished):
    """A finished run whose settings say that its model is code beside it."""
    mine = Path(shutil.copytree(finished.folder, folder / "mine"))
    text = (mine / "config.toml").read_text()
    (mine / "config.toml").write_text(text.replace('name = "cnn"', 'name = "strange_code:net"'))
    receipt = read_receipt(mine)
    settings = receipt.settings.replace('name = "cnn"', 'name = "strange_code:net"')
    (mine / "receipt.json").write_text(replace(receipt, settings=settings).text())
    return mine


def test_a_run_that_names_code_is_not_analysed_unasked(theirs, capsys):
    assert refused(capsys, "analyze", "mine", "scales") == f"fedwsq: mine/config.toml {SAID}\n"
    assert not (theirs.parent / "was_here").exists()
    assert main(["analyze", "mine", "scales", "--trust"]) == 0
    assert (theirs.parent / "was_here").exists()


def test_a_receipt_that_names_code_is_not_verified_unasked(theirs, capsys):
    assert refused(capsys, "verify", "mine") == f"fedwsq: mine {SAID}\n"
    assert not (theirs.parent / "was_here").exists()


@pytest.mark.parametrize("words", [["compare"], ["report"], ["export", "--to", "csv"]])
def test_what_only_reads_runs_imports_nothing(theirs, words):
    assert main([*words, "mine"]) == 0
    assert not (theirs.parent / "was_here").exists()


def test_a_table_cannot_name_code(theirs, capsys):
    table = """\
title = "t"
source = "s"
head = ["row"]
settings = { config = "quickstart", "model.name" = "strange_code:net" }
columns = [{ label = ["a"] }]
rows = [{ label = ["b"], values = [1.0] }]
"""
    (theirs.parent / "table.toml").write_text(table)
    assert "code outside the package" in refused(capsys, "table", "mine", "--like", "table.toml")
    assert not (theirs.parent / "was_here").exists()


def test_a_deployment_of_a_file_that_names_code_is_not_started_unasked(folder, capsys):
    pytest.importorskip("flwr")
    words = ["deploy", "local", "--nodes", "2", "my.toml"]
    assert refused(capsys, *words) == f"fedwsq: my.toml {SAID}\n"
    assert not (folder / "was_here").exists()


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("\n", 2)])
def test_a_terminal_is_asked(folder, answer, code):
    outer, inner = pty.openpty()
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    words = [sys.executable, "-m", "fedwsq.cli", "run", "my.toml", *TINY_WORDS, "--dry-run"]
    env = {**os.environ, "PYTHONPATH": path, "TERM": "dumb"}
    os.write(outer, answer.encode())
    done = subprocess.run(words, env=env, stdin=inner, stderr=inner, stdout=subprocess.PIPE)
    os.close(inner)
    assert done.returncode == code
    assert (folder / "was_here").exists() == (code == 0)
    assert b"strange_code:net" in os.read(outer, 10_000)
    os.close(outer)


def test_help_says_so(capsys):
    for verb in ("run", "resume", "partition", "sweep", "verify", "analyze", "figure"):
        with pytest.raises(SystemExit):
            main([verb, "--help"])
        assert "--trust" in capsys.readouterr().out
