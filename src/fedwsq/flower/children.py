"""Processes that end with whoever started them, and so does all that they start."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

# From <linux/prctl.h>; other systems have neither.
SIGNAL_WHEN_PARENT_DIES = 1
ADOPT_ORPHANS = 36
PATIENCE_SECONDS = 10.0
PROCESSES = Path("/proc")


class Child(NamedTuple):
    """A process with a name, and where what it prints goes."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def ended(self) -> str | None:
        """How it ended; None as long as it runs."""
        code = self.process.poll()
        if code is None:
            return None
        if code < 0:
            return f"{self.name} was ended by {signal.Signals(-code).name}"
        return f"{self.name} ended with exit code {code}"

    def last_lines(self, count: int = 10) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-count:])


class Children:
    """Leaving the block ends all of them; so does the end of this process, however it comes.

    with Children(environment) as children:
        child = children.start("superlink", ["flower-superlink", ...], Path("superlink.log"))
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._started: list[Child] = []

    def __enter__(self) -> "Children":
        # Children of children that lose their parents become ours: nobody slips away.
        _control(ADOPT_ORPHANS, 1)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        _control(ADOPT_ORPHANS, 0)

    def start(self, name: str, command: Sequence[str], log: Path) -> Child:
        with open(log, "ab") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=self._environment,
                # Ctrl-C is for us alone: we end them in order.
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        child = Child(name, process, log)
        self._started.append(child)
        return child

    def stop(self) -> None:
        """End everything, politely first."""
        # Those that came last first: nodes before their SuperLink.
        for child in reversed(self._started):
            child.process.terminate()
        _wait(lambda: all(child.ended for child in self._started), PATIENCE_SECONDS)
        for child in self._started:
            # Its whole session, where descendants cannot be told.
            with suppress(ProcessLookupError):
                os.killpg(child.process.pid, signal.SIGKILL)
            child.process.wait()
        # What they had started needs a moment to notice; whoever does not is ended.
        _wait(lambda: not descendants(), PATIENCE_SECONDS)
        # Twice: one that was started while others were looked at is not seen the first time.
        empty = 0
        while empty < 2:
            found = descendants()
            empty = 0 if found else empty + 1
            for pid in found:
                _signal(pid, signal.SIGKILL)
            time.sleep(0.05)


def descendants() -> list[int]:
    """The processes below this one, as Linux tells; those that have ended are let go."""
    below: dict[int, list[int]] = {}
    ended = set()
    for entry in PROCESSES.glob("[0-9]*/stat"):
        try:
            # The name in brackets may have spaces of its own.
            state, parent = entry.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # gone in between
        pid = int(entry.parent.name)
        below.setdefault(int(parent), []).append(pid)
        if state == "Z" and int(parent) == os.getpid():
            # Its children are ours by now, but may have been looked at when they were not yet.
            ended.add(pid)
    found: list[int] = []
    ahead = [os.getpid()]
    while ahead:
        children = below.get(ahead.pop(), [])
        found += children
        ahead += children
    for pid in ended:
        _reap(pid)
    return [pid for pid in found if pid not in ended]


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _wait(true: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.05)


def _control(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _die_with_parent() -> None:
    _control(SIGNAL_WHEN_PARENT_DIES, signal.SIGTERM)
