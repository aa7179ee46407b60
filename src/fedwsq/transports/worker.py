"""The other end of `inprocess.Pool`: `python -m fedwsq.transports.worker FD PARENT` serves until its pipe closes."""

import contextlib
import ctypes
import json
import mmap
import os
import sys
import threading
import time
import tomllib
from collections import deque
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pathlib import Path

import torch

from fedwsq.core.types import Key
from fedwsq.federation.site import Failure, Order, Site
from fedwsq.federation.workload import build_workload
from fedwsq.plan.build import make_plan
from fedwsq.transports.pool import HELD, Answer, attempt, reason, write_scores


def main(fd: int, parent: int) -> None:
    """Set up once, then answer frames."""
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()
    torch.set_num_threads(1)
    pipe, bodies = Connection(fd), deque[memoryview](maxlen=HELD)
    with contextlib.suppress(
        EOFError, ConnectionError
    ):  # the parent is gone, or has no use for us any more
        site = _site(pipe.recv_bytes()[1:])
        while True:
            frame = pipe.recv_bytes()
            if frame[:1] == b"P":
                site = _site(frame[1:])
            elif frame[:1] == b"B":
                bodies.append(_map(recv_handle(pipe), int(frame[1:])))
                _trim()
            elif frame[:1] == b"E":
                _answer(pipe, *_evaluate(site, bodies[frame[1]], int(frame[2:])))
            else:
                _serve(pipe, site, bodies[frame[1]], frame[2:])


def _map(descriptor: int, length: int) -> memoryview:
    """A broadcast as the parent wrote it: the same pages for all workers."""
    try:
        return memoryview(mmap.mmap(descriptor, length, prot=mmap.PROT_READ) if length else b"")
    finally:
        os.close(descriptor)


def _trim() -> None:
    """Hand back what training kept for its next step (`inprocess.MALLOC`): another kind of work may follow."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


def _site(setup: bytes) -> Site:
    plain = json.loads(setup)
    workload = build_workload(make_plan(tomllib.loads(plain["plan"])))
    return Site(
        workload, torch.device(plain["device"]), Path(plain["store"]) if plain["store"] else None
    )


def _evaluate(site: Site, body: memoryview, start: int) -> Answer:
    try:
        return b"S", write_scores(site.evaluate(body, start))
    except Exception as error:
        return b"F", reason(error).encode()


def _serve(pipe: Connection, site: Site, body: memoryview, head: bytes) -> None:
    answer = attempt(site, body, Order(Key(0, 0, 0), head))
    if isinstance(answer, Failure):
        _answer(pipe, b"F", answer.reason.encode())
        return
    began = time.perf_counter()
    _answer(pipe, b"R", answer.payload)
    site.uploads[answer.key.client] = len(answer.payload) / max(time.perf_counter() - began, 1e-9)


def _answer(pipe: Connection, tag: bytes, payload: bytes) -> None:
    pipe.send_bytes(tag)
    pipe.send_bytes(payload)  # by itself: a payload may be long, and is not copied


def _end_with_parent(parent: int) -> None:
    """A parent that was killed cannot close anything: notice, and do not train on for nobody."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
