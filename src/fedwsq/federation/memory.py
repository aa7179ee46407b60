"""What clients remember between rounds: on disk, by client and by the round it comes from.

A client's memory after round r is its generation r. An order names the generation that the server
last accepted from the client; training starts from that one, so a lost reply or a round that is
run again never advances a client twice. Generations are kept as long as a checkpoint that could
still be resumed from may ask for them.
"""

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import safetensors
from torch import Tensor

from fedwsq.core.errors import StoreError
from fedwsq.core.files import count_one, save_tensors
from fedwsq.core.tree import fingerprint
from fedwsq.core.types import Params, State, Vectors

RELEASES = "releases"


class ClientMemory(NamedTuple):
    """Three things, any of which may be empty."""

    algorithm: State = {}  # noqa: RUF012  the method's own: a control variate, a linear term
    residuals: Vectors = {}  # noqa: RUF012  what its code lost, to be sent with the next update
    model: Vectors = {}  # noqa: RUF012  the public model it rebuilt, which differences build on


class MemoryLost(Exception):
    """A client was asked to go on from a memory that it does not have."""


class ClientStore:
    """`folder/<client>/<round>.safetensors`; a client that never took part costs nothing."""

    def __init__(self, folder: Path, checkpoint_every: int = 1) -> None:
        self.folder = folder
        self._was_there = folder.exists()
        # The last checkpoint is at most `checkpoint_every` rounds old and the one before it twice
        # that.
        self.keep_rounds = 2 * checkpoint_every

    def load(self, client: int, generation: int) -> ClientMemory:
        """A client's memory after the round `generation`, or `MemoryLost`."""
        path = self._path(client, generation)
        with self._on_this_machine():
            self._require_folder()
            # What is not there or damaged is lost; what cannot be read may be there all the same.
            with suppress(FileNotFoundError), open(path, "rb") as file:
                file.read(1)
        try:
            with safetensors.safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                names = [tuple(each) for each in json.loads(metadata["tensors"])]
                tensors = {"/".join(name): file.get_tensor("/".join(name)) for name in names}
            if fingerprint(tensors) != metadata["digest"]:
                raise ValueError("its contents do not match their digest")
            parts: dict[str, dict[str, Params]] = {field: {} for field in ClientMemory._fields}
            for part, vector, name in names:
                parts[part].setdefault(vector, {})[name] = tensors[f"{part}/{vector}/{name}"]
            return ClientMemory(**parts)
        except Exception as error:  # whatever a missing or damaged file makes the reader say
            raise MemoryLost(
                f"client {client}'s memory of round {generation} cannot be read: {error}"
            ) from None

    def stage(self, client: int, round_: int, accepted: int, memory: ClientMemory) -> None:
        """Keep the memory after this round beside the one it started from, and drop what nobody
        can ask for.
        """
        names: list[tuple[str, str, str]] = []
        tensors: dict[str, Tensor] = {}
        for part, vectors in memory._asdict().items():
            for vector, params in vectors.items():
                for name, x in params.items():
                    names.append((part, vector, name))
                    tensors[f"{part}/{vector}/{name}"] = x
        # In the order given: a digest of the file's own order would depend on safetensors.
        metadata = {"tensors": json.dumps(names), "digest": fingerprint(tensors)}
        with self._on_this_machine():
            self._require_folder()
            path = self._path(client, round_)
            path.parent.mkdir(exist_ok=True)
            save_tensors(path, tensors, metadata)
            self._drop(client, round_, accepted)

    def _drop(self, client: int, round_: int, accepted: int) -> None:
        """Remove what no order can name any more."""
        folder = self._path(client, round_).parent
        found = sorted(int(each.stem) for each in folder.glob("*.safetensors"))
        settled = [g for g in found if g <= accepted and g < round_ - self.keep_rounds]
        abandoned = [g for g in found if accepted < g != round_]
        for generation in settled[:-1] + abandoned:
            self._path(client, generation).unlink(missing_ok=True)

    def count_release(self, client: int) -> None:
        """Note, before it leaves, that a client has told something of its data."""
        with self._on_this_machine():
            count_one(self.folder / str(client) / RELEASES)

    def _require_folder(self) -> None:
        """A folder that has gone is not a client that has forgotten."""
        if not self._was_there:
            self.folder.mkdir(exist_ok=True)
            self._was_there = True
        if not self.folder.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.folder))

    @contextmanager
    def _on_this_machine(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(error.errno, error.strerror, error.filename) from error

    def _path(self, client: int, generation: int) -> Path:
        return self.folder / str(client) / f"{generation}.safetensors"
