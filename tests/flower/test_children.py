"""Real processes, and nothing of them left."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from fedwsq.flower.children import Children, descendants

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
# Starts another, deaf to SIGTERM and in a session of its own, and waits with it.
PARENT = """
import subprocess, sys, time
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""
# Holds children as `fedwsq deploy local` does, and says who they are.
HOLDER = """
import os, sys, time
from pathlib import Path
from fedwsq.flower.children import Children, descendants
sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
with Children(os.environ) as children:
    child = children.start("one", sleeper, Path(sys.argv[1]))
    print(child.process.pid, flush=True)
    time.sleep(600)
"""


def gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_for(true):
    end = time.monotonic() + 120
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def started(children, log):
    """A process and the one that it starts."""
    child = children.start("parent", [sys.executable, "-c", PARENT], log)
    wait_for(lambda: log.read_text().strip())
    return child, int(log.read_text())


def test_leaving_ends_them_and_what_they_started(tmp_path, monkeypatch):
    monkeypatch.setattr("fedwsq.flower.children.PATIENCE_SECONDS", 0.5)
    with Children(os.environ) as children:
        child, grandchild = started(children, tmp_path / "log")
        assert child.ended is None
        assert not gone(grandchild)
    assert gone(child.process.pid)
    assert gone(grandchild)


def test_so_it_is_when_a_child_was_killed_before(tmp_path, monkeypatch):
    monkeypatch.setattr("fedwsq.flower.children.PATIENCE_SECONDS", 0.5)
    with Children(os.environ) as children:
        child, grandchild = started(children, tmp_path / "log")
        child.process.kill()
        wait_for(lambda: child.ended)
        assert child.ended == "parent was ended by SIGKILL"
        assert not gone(grandchild)
    assert gone(grandchild)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_so_it_is_however_their_holder_ends(number, tmp_path):
    command = [sys.executable, "-c", HOLDER, tmp_path / "log"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as holder:
        child = int(holder.stdout.readline())
        assert not gone(child)
        holder.send_signal(number)
        holder.wait()
    wait_for(lambda: gone(child))


def test_a_child_of_one_that_ends_while_all_are_looked_at_is_not_missed(tmp_path, monkeypatch):
    """As Linux tells: the child was looked at before its parent ended, the parent after that."""
    told = {7001: f"(a b) Z {os.getpid()} 0", 7002: "(c) S 7001 0", 7003: "(d) S 1 0"}
    for pid, words in told.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} {words}")
    monkeypatch.setattr("fedwsq.flower.children.PROCESSES", tmp_path)
    assert descendants() == [7002]


def test_how_one_ended(tmp_path):
    with Children(os.environ) as children:
        command = [sys.executable, "-c", "print('\\n'.join('abc')); raise SystemExit(3)"]
        child = children.start("one", command, tmp_path / "log")
        child.process.wait()
    assert child.ended == "one ended with exit code 3"
    assert child.last_lines(2) == "b\nc"
