"""The process that stays up beside a SuperNode: it answers, and ends with it."""

import errno
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager

import psutil
import pytest

from fedwsq.federation.charter import Charter
from fedwsq.federation.hello import encode_hello
from fedwsq.federation.owners import ExampleFormat, ModelSpec
from fedwsq.flower import warm
from fedwsq.flower.plain import Request
from fedwsq.flower.settings import write_format
from fedwsq.wire.message import EVERYONE
from harness import gone, tiny, tiny_words, wait_until

DIGITS = ExampleFormat(10, (1, 8, 8))
RUN = {"config": "quickstart", "overrides": " ".join(tiny_words())}
NODE = {"partition-id": 2, "num-partitions": 5}


@contextmanager
def somebody():
    """A process to be watched, in place of a SuperNode."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def hello():
    plan = tiny()
    charter = Charter(plan, ModelSpec(plan, DIGITS))
    head = encode_hello(charter, EVERYONE, bytes(16))
    return Request([b""], [head], [0], write_format(DIGITS))


def holder(path):
    """The process that serves a socket."""
    for process in psutil.process_iter(["cmdline"]):
        if str(path) in (process.info["cmdline"] or []):
            return process
    raise AssertionError(f"nobody serves {path}")


def nobody_listens(path):
    with socket.socket(socket.AF_UNIX) as line:
        return line.connect_ex(str(path)) == errno.ECONNREFUSED


@pytest.fixture
def path(tmp_path):
    """A socket in a folder of its own, as `warm.socket_path` names one."""
    return tmp_path / "sockets" / "socket"


def asked(path, watched, request):
    with warm.connected(path, watched) as line:
        warm.send(line, warm.write_question(RUN, NODE, request))
        return warm.read_answer(warm.receive(line))


@pytest.mark.slow
def test_it_stays_up_and_ends_with_whom_it_watches(hello, path):
    with somebody() as tasks, somebody() as supernode:
        watched = [tasks.pid, supernode.pid]
        first = asked(path, watched, hello)
        assert list(first.clients) == [2, 7]
        assert all(first.payloads)
        process = holder(path)
        # Nobody who comes later starts another one.
        assert asked(path, watched, hello) == first
        assert holder(path) == process

        # Killed, it leaves its socket behind; whoever asks next starts it again.
        process.kill()
        wait_until(lambda: nobody_listens(path))
        assert path.exists()
        assert asked(path, watched, hello).payloads == first.payloads
        again = holder(path)
        assert again != process

        # Of a process that was killed too, and not collected by anybody.
        supernode.kill()
        wait_until(lambda: gone(again))
        assert not path.exists()
        assert not path.parent.exists()


def test_nobody_to_watch_is_nobody_to_work_for(path):
    with somebody() as process:
        number = process.pid
    path.parent.mkdir()
    with pytest.raises(ProcessLookupError):
        warm.connected(path, [number])
    assert not path.parent.exists()


def test_the_last_to_end_removes_the_folder_of_sockets(path, monkeypatch):
    monkeypatch.setattr(warm, "IDLE_SECONDS", 0.1)
    path.parent.mkdir(mode=0o700)
    other = path.with_name("another")
    other.touch()
    warm.main(path, [])
    assert list(path.parent.iterdir()) == [other]
    other.unlink()
    warm.main(path, [])
    assert not path.parent.exists()
    # Somebody else's end may come between the look and the start.
    warm.main(path, [])
    assert not path.parent.exists()


def test_the_folder_of_sockets_is_this_users_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(warm.tempfile, "gettempdir", lambda: str(tmp_path))
    here = psutil.Process().pid
    path = warm.socket_path(here)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path == warm.socket_path(here)
    assert path != warm.socket_path(psutil.Process().ppid())
    # Code of another place needs a process of its own.
    monkeypatch.setattr(sys, "path", [*sys.path, "/apps/another"])
    assert path != warm.socket_path(here)
    path.parent.chmod(0o755)
    with pytest.raises(PermissionError, match="a folder of this user alone"):
        warm.socket_path(here)


def test_whoever_asks_is_told_when_it_dies(hello, path):
    with somebody() as watched:
        asked(path, [watched.pid], hello)
        process = holder(path)
        process.suspend()  # at work, and will not answer
        with warm.connected(path, [watched.pid]) as line:
            warm.send(line, warm.write_question(RUN, NODE, hello))
            threading.Timer(0.2, process.kill).start()
            with pytest.raises((EOFError, ConnectionError)):
                warm.receive(line)
