"""The other end of `inprocess.Pool`: `python -m fedwsq.federation.worker FD PARENT` serves until its pipe closes."""

import contextlib
import json
import os
import sys
import threading
import time
import tomllib
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from fedwsq.config import make_plan
from fedwsq.core.types import Key
from fedwsq.federation.inprocess import attempt, reason, write_scores
from fedwsq.federation.site import Failure, Order, Site
from fedwsq.federation.workload import build_workload


def main(fd: int, parent: int) -> None:
    """Set up once, then answer frames."""
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()
    torch.set_num_threads(1)
    pipe = Connection(fd)
    with contextlib.suppress(EOFError, ConnectionError):  # the parent is gone, or has no use for us any more
        site, body = _site(pipe.recv_bytes()[1:]), b""
        while True:
            frame = pipe.recv_bytes()
            if frame[:1] == b"P":
                site = _site(frame[1:])
            elif frame[:1] == b"B":
                body = frame[1:]
            elif frame[:1] == b"E":
                pipe.send_bytes(_evaluate(site, body, int(frame[1:])))
            else:
                _serve(pipe, site, body, frame[1:])


def _site(setup: bytes) -> Site:
    plain = json.loads(setup)
    workload = build_workload(make_plan(tomllib.loads(plain["plan"])))
    return Site(workload, torch.device(plain["device"]), Path(plain["store"]) if plain["store"] else None)


def _evaluate(site: Site, body: bytes, start: int) -> bytes:
    try:
        return b"S" + write_scores(site.evaluate(body, start))
    except Exception as error:
        return b"F" + reason(error).encode()


def _serve(pipe: Connection, site: Site, body: bytes, head: bytes) -> None:
    answer = attempt(site, body, Order(Key(0, 0, 0), head))
    if isinstance(answer, Failure):
        pipe.send_bytes(b"F" + answer.reason.encode())
        return
    began = time.perf_counter()
    pipe.send_bytes(b"R" + answer.payload)
    site.uploads[answer.key.client] = len(answer.payload) / max(time.perf_counter() - began, 1e-9)


def _end_with_parent(parent: int) -> None:
    """A parent that was killed cannot close anything: notice, and do not train on for nobody."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
