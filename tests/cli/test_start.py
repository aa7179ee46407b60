"""How a command starts: without torch where it is not needed, and Ctrl-C without a traceback."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from fedwsq.analysis import ANALYSES
from fedwsq.bench import GROUPS
from fedwsq.cli import analyze, bench, levels, ls, main
from fedwsq.cli.start import ERASE_LINE, loading, saying
from fedwsq.cli.work.entries import TABLES
from fedwsq.codecs.levels import LEVEL_KINDS
from harness import PATIENCE_SECONDS

VERBS = (
    "run",
    "resume",
    "sweep",
    "compare",
    "table",
    "export",
    "verify",
    "ls",
    "levels",
    "inspect",
    "fetch",
    "partition",
    "bench",
    "analyze",
)
LIGHT = [["--help"], ["--version"], [], *([verb, "--help"] for verb in VERBS)]
WRONG = [["rnu"], ["run", "--wrokers", "2"], ["ls", "codec"], ["levels", "many"], ["--versoin"]]
# Prints what was asked for, then whether that took torch.
COMMAND = """\
import sys
import threading
from fedwsq.cli import main
try:
    code = main()
except SystemExit as end:
    code = end.code
print("with torch" if "torch" in sys.modules else "without torch")
sys.exit(code)
"""


def command(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", COMMAND, *words], capture_output=True, text=True)


@pytest.mark.parametrize("words", LIGHT, ids=" ".join)
def test_help_does_not_wait_for_torch(words):
    done = command(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("without torch\n")


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_a_slip_of_the_finger_does_not_wait_for_torch(words):
    done = command(*words)
    assert done.returncode == 2
    assert "fedwsq" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.endswith("without torch\n")


def test_a_mistyped_verb_finds_the_one_that_was_meant():
    done = command("rnu")
    assert "fedwsq: error: no command 'rnu'; there are run, resume, sweep" in done.stderr
    assert done.stderr.endswith("; did you mean run?\n")


@pytest.mark.parametrize("kind", ["methods", "configs", "grids"])
def test_what_is_plain_data_is_listed_without_torch(kind):
    done = command("ls", kind)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(kind)
    assert done.stdout.endswith("without torch\n")


def test_danuqs_levels_do_not_wait_for_torch():
    done = command("levels", "2", "--kind", "optimal")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("without torch\n")


def test_words_written_out_for_the_help_are_those_of_the_tables():
    assert ("methods", *TABLES, "configs", "grids") == ls.KINDS
    assert tuple(GROUPS) == bench.GROUPS
    assert levels.KINDS == LEVEL_KINDS
    assert tuple(ANALYSES) == analyze.ANALYSES


# Stands in for torch: says that it is being imported, and takes for ever in a way that swallows
# what Ctrl-C would raise, as code that tries one thing after another does.
SLOW_TORCH = """\
import time
print("importing", flush=True)
while True:
    try:
        time.sleep(1000)
    except BaseException:
        pass
"""


@pytest.mark.parametrize("words", [["run"], ["levels", "4", "--codec", "uq"], ["ls"]], ids=" ".join)
def test_ctrl_c_while_torch_is_imported(tmp_path, words):
    (tmp_path / "torch.py").write_text(SLOW_TORCH)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # `ls` lists methods before it needs torch.
    while "importing" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, err) == (130, "fedwsq: interrupted\n")


def test_a_command_runs_outside_the_main_thread(capsys):
    """Where no signal may be redirected."""
    codes = []
    thread = threading.Thread(target=lambda: codes.append(main(["levels", "2"])))
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert codes == [0]
    assert "mse" in capsys.readouterr().out


@pytest.mark.parametrize("before", [signal.default_int_handler, signal.SIG_IGN])
def test_ctrl_c_means_afterwards_what_it_meant_before(before):
    signal.signal(signal.SIGINT, before)
    try:
        with loading():
            during = signal.getsignal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) == before
        # A job in the background, which Ctrl-C is not for.
        assert (during == signal.SIG_IGN) == (before == signal.SIG_IGN)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_terminal_is_told_what_takes_so_long(monkeypatch, capsys, term):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with saying("loading digits ..."):
        pass
    expected = {"xterm": f"loading digits ...{ERASE_LINE}", "dumb": ""}
    assert capsys.readouterr().err == expected[term]
