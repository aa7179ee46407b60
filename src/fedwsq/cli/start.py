"""From the command to its work: torch takes seconds to come in, and nobody waits for it in vain."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from threading import current_thread, main_thread
from types import FrameType

ERASE_LINE = "\r\x1b[2K"
INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def later(module: str) -> Callable[[argparse.Namespace], int]:
    """The `main` of a module that is imported when the verb runs, not for its help."""

    def main(args: argparse.Namespace) -> int:
        with loading():
            work = import_module(module)
        return int(work.main(args))

    return main


@contextmanager
def loading() -> Iterator[None]:
    """Around imports that bring torch in: says so on a terminal, and Ctrl-C ends at once."""
    before = signal.getsignal(signal.SIGINT)
    # Left alone where somebody has other plans for Ctrl-C, as a shell for a job in the background,
    # and outside the main thread, which alone may say what a signal does.
    ours = before is signal.default_int_handler and current_thread() is main_thread()
    with saying("loading PyTorch ..."):
        try:
            if ours:
                signal.signal(signal.SIGINT, _leave)
            yield
        finally:
            if ours:
                signal.signal(signal.SIGINT, before)


def _leave(number: int, frame: FrameType | None) -> None:
    """End here: an exception half-way into C code that loads would come out as something else."""
    erase = ERASE_LINE if _can_erase() else ""
    os.write(2, f"{erase}fedwsq: interrupted\n".encode())
    os._exit(INTERRUPTED)


@contextmanager
def saying(what: str) -> Iterator[None]:
    """A line on the terminal for as long as something takes; nothing in a file or a pipe."""
    if not _can_erase():
        yield
        return
    print(what, end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print(ERASE_LINE, end="", file=sys.stderr, flush=True)


def _can_erase() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
