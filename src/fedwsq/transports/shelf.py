"""Broadcasts in memory that workers map: each is written once, however many of them read it."""

import itertools
import os
import tempfile
from typing import NamedTuple


class Placed(NamedTuple):
    """A broadcast on the shelf; no two ever have the same number."""

    number: int
    descriptor: int
    length: int


class Shelf:
    """Files without a name, for as long as the shelf is open."""

    _numbers = itertools.count()

    def __init__(self) -> None:
        # By identity: comparing two models byte by byte for every order would cost more than both.
        self._placed: dict[int, tuple[bytes, Placed]] = {}

    def put(self, body: bytes) -> Placed:
        """Where workers find `body`."""
        if id(body) not in self._placed:
            placed = Placed(next(self._numbers), _nameless(body), len(body))
            self._placed[id(body)] = (body, placed)  # held, so that its id stays its own
        return self._placed[id(body)][1]

    def __enter__(self) -> "Shelf":
        return self

    def __exit__(self, *_: object) -> None:
        for _body, placed in self._placed.values():
            os.close(placed.descriptor)


def _nameless(data: bytes) -> int:
    """A descriptor of a file that has no name and holds `data`, in memory where that can be had."""
    if hasattr(
        os, "memfd_create"
    ):  # not bound by the size of /dev/shm, which containers keep small
        descriptor = os.memfd_create("fedwsq")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
    return descriptor
