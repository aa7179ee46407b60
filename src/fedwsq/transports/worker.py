"""The other end of `Pool`: `python -m fedwsq.transports.worker FD PARENT` serves its pipe."""

import contextlib
import ctypes
import importlib
import mmap
import os
import sys
import threading
import time
from collections import deque
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle

import torch

from fedwsq.core.types import Key
from fedwsq.transports.base import Failure, Order, Serve, attempt
from fedwsq.transports.frames import HELD_BROADCASTS, KEY, Tag


def main(fd: int, parent: int) -> None:
    """Answer frames; the first is what to serve."""
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()
    torch.set_num_threads(1)
    pipe = Connection(fd)
    bodies = deque[memoryview](maxlen=HELD_BROADCASTS)
    # The parent is gone, or has no use for us any more.
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            frame = pipe.recv_bytes()
            if frame[:1] == Tag.SETUP:
                serve = _open(pipe.recv_bytes().decode(), pipe.recv_bytes())
                continue
            if frame[:1] == Tag.BROADCAST:
                bodies.append(_map(recv_handle(pipe), int(frame[1:])))
                _trim()
                continue
            body = bodies[frame[1]]
            key = Key(*KEY.unpack_from(frame, 2))
            head = frame[2 + KEY.size :]
            _answer(pipe, serve, body, Order(key, head))


def _open(factory: str, setup: bytes) -> Serve:
    """`module:function` of whoever serves here, called with its setup."""
    module, _, name = factory.partition(":")
    serve: Serve = getattr(importlib.import_module(module), name)(setup)
    return serve


def _answer(pipe: Connection, serve: Serve, body: memoryview, order: Order) -> None:
    answer = attempt(serve, body, order)
    if isinstance(answer, Failure) and answer.errno:
        pipe.send_bytes(Tag.DISK)
        pipe.send_bytes(b"%d" % answer.errno)
    elif isinstance(answer, Failure):
        pipe.send_bytes(Tag.FAILURE)
        # Text from anywhere may hold what UTF-8 has no bytes for.
        for text in (answer.reason, answer.traceback):
            pipe.send_bytes(text.encode(errors="backslashreplace"))
    else:
        pipe.send_bytes(Tag.REPLY)
        pipe.send_bytes(answer.payload)  # by itself: it may be long, and is not copied


def _map(descriptor: int, length: int) -> memoryview:
    """A broadcast as the parent wrote it: the same pages for all workers."""
    try:
        return memoryview(mmap.mmap(descriptor, length, prot=mmap.PROT_READ) if length else b"")
    finally:
        os.close(descriptor)


def _trim() -> None:
    """Hand back what training kept for its next step (`pool.MALLOC`): other work may follow."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


def _end_with_parent(parent: int) -> None:
    """A parent that was killed cannot close anything: notice, and do not train on for nobody."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
