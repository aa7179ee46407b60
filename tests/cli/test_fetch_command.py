"""`fedwsq fetch`: what it prints, where it looks, and how it stops."""

import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedwsq.cli import main
from fedwsq.data.fetch import kept_bytes
from fedwsq.data.sources import SOURCES
from harness import PATIENCE_SECONDS, TESTS, all_shown, wait_until
from publisher import BODY, CONTENT, TINY, publishing, serve, status

SENT_BYTES = 60_000  # of which a writer that is not done yet may hold back its buffer
HELD_BYTES = 8192
# fedwsq with the tiny data set in its table.
PROGRAM = [sys.executable, str(TESTS / "publisher.py")]


@pytest.fixture
def publisher(monkeypatch, in_empty_folder):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setitem(SOURCES, "tiny", TINY)
    with publishing() as running:
        yield running


def fedwsq(capsys, *words):
    code = main(["fetch", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def begin(*words, **options):
    """A real process."""
    return subprocess.Popen([*PROGRAM, "fetch", *map(str, words)], text=True, **options)


def wait_for_the_middle(root, process):
    wait_until(lambda: kept_bytes(TINY, root) >= SENT_BYTES - HELD_BYTES, process)


def assert_complete(root):
    folder = Path(root) / "tiny-set"
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.*")}
    assert found == CONTENT
    assert os.listdir(root) == ["tiny-set"]


def test_without_a_name_it_tells_what_there_is(capsys):
    code, out, err = fedwsq(capsys)
    assert (code, err) == (0, "")
    words = " ".join(out.split())
    for name, size in (
        ("cifar10", "170.1"),
        ("cifar100", "168.5"),
        ("fashionmnist", "30.9"),
        ("tinyimagenet", "248.1"),
    ):
        assert f"{name} {size} MB" in words
    for name in (
        "www.cs.toronto.edu",
        "MIT",
        "non-commercial",
        "Krizhevsky",
        "arXiv:1708.07747",
        "Le and Yang",
    ):
        assert name in words


@pytest.mark.parametrize(
    ("name", "near"), [("cifar-10", "cifar10"), ("tiny-imagenet", "tinyimagenet"), ("xyz", None)]
)
def test_an_unknown_name_gets_the_list_and_the_nearest(capsys, in_empty_folder, name, near):
    code, out, err = fedwsq(capsys, name)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert (
        f"{name!r} cannot be fetched; there are cifar10, cifar100, fashionmnist, tinyimagenet"
        in err
    )
    assert err.endswith(f"; did you mean {near}?\n" if near else "tinyimagenet\n")
    assert list(in_empty_folder.iterdir()) == []


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit):
        main(["fetch", "--help"])
    assert "fedwsq fetch cifar10 --root DIR" in capsys.readouterr().out


def test_piped_it_says_little(capsys, publisher):
    code, out, err = fedwsq(capsys, "tiny", "--root", "here", "--url", publisher.url)
    assert (code, out) == (0, "tiny is in here/tiny-set\n")
    assert err.splitlines() == [
        f"tiny: tiny.tar.gz, {len(BODY) / 1000:.1f} kB",
        "tiny: tiny.tar.gz: verified",
    ]
    assert_complete("here")
    code, out, err = fedwsq(capsys, "tiny", "--root", "here", "--url", publisher.url)
    assert (code, out, err) == (
        0,
        "tiny is already in here/tiny-set; --force fetches it again\n",
        "",
    )
    assert len(publisher.requests) == 1
    assert fedwsq(capsys, "tiny", "--root", "here", "--url", publisher.url, "--force")[0] == 0
    assert len(publisher.requests) == 2
    assert_complete("here")


@pytest.mark.parametrize("variable", [True, False])
def test_the_root_is_where_loaders_look(capsys, publisher, monkeypatch, variable):
    if variable:
        monkeypatch.setenv("FEDWSQ_DATA", "elsewhere")
    assert fedwsq(capsys, "tiny", "--url", publisher.url)[0] == 0
    assert_complete("elsewhere" if variable else "data")


def test_trouble_is_one_line(capsys, publisher):
    publisher.script = [status(404)]
    code, out, err = fedwsq(capsys, "tiny", "--url", publisher.url)
    assert (code, out) == (2, "")
    assert err.startswith(f"fedwsq: {publisher.url}tiny.tar.gz: HTTP Error 404")
    assert err.count("\n") == 1


def test_a_root_that_is_a_file_is_one_line(capsys, publisher):
    Path("file").write_text("")
    code, out, err = fedwsq(capsys, "tiny", "--root", "file", "--url", publisher.url)
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_killed_in_the_middle_it_goes_on(capsys, publisher, tmp_path):
    publisher.script = [serve(most=SENT_BYTES, stall=True)]
    words = ["tiny", "--root", tmp_path / "data", "--url", publisher.url]
    process = begin(*words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for_the_middle(tmp_path / "data", process)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    kept = kept_bytes(TINY, tmp_path / "data")
    assert not (tmp_path / "data" / "tiny-set").exists()
    code, out, err = fedwsq(capsys, *words)
    assert (code, out) == (0, f"tiny is in {tmp_path / 'data' / 'tiny-set'}\n")
    assert f"going on from byte {kept:,}" in err
    assert publisher.ranges == [None, f"bytes={kept}-"]
    assert_complete(tmp_path / "data")


def test_ctrl_c_says_how_to_go_on(publisher, tmp_path):
    publisher.script = [serve(most=SENT_BYTES, stall=True)]
    root = tmp_path / "my data"
    words = ["tiny", "--root", root, "--url", publisher.url, "--force"]
    process = begin(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for_the_middle(root, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, out) == (130, "")
    last = err.splitlines()[-1]
    kept = kept_bytes(TINY, root)
    assert last.startswith(
        f"stopped; {kept / 1000:.1f} kB are kept. Go on with: fedwsq fetch tiny "
    )
    command = shlex.split(last.partition("Go on with: fedwsq ")[2])
    assert main(command) == 0
    assert publisher.ranges == [None, f"bytes={kept}-"]
    assert_complete(root)


def test_a_terminal_shows_a_bar(publisher, tmp_path):
    controller, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    process = begin(
        "tiny",
        "--root",
        tmp_path / "data",
        "--url",
        publisher.url,
        stdout=terminal,
        stderr=terminal,
        env=environment,
    )
    os.close(terminal)
    text = all_shown(controller)
    assert process.wait(timeout=PATIENCE_SECONDS) == 0
    assert "\x1b[" in text
    assert re.search(rf"tiny\.tar\.gz .*{len(BODY) / 1000:.1f}/{len(BODY) / 1000:.1f} kB", text)
    assert "tiny is in" in text
    assert "Traceback" not in text
