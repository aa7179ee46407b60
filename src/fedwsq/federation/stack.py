"""A round's decoded updates, one under the other on disk, until a plan's `combine` makes one."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwsq.core.seeds import numpy_rng
from fedwsq.core.types import Key, Vectors
from fedwsq.plan.combine import Block, Combine
from fedwsq.wire import Line, Packets, Shared

BLOCK_BYTES = 32 * 2**20  # in memory at a time, of all updates together


class Stack:
    """Takes what `Sums` takes. One update at most is in memory, and a block of all of them."""

    def __init__(
        self, line: Line, vectors: Vectors, combine: Combine, folder: Path | None = None
    ) -> None:
        self.line = line
        self.vectors = vectors
        self.combine = combine
        # Nameless, so that a kill leaves nothing behind.
        self._files = {
            vector: tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
            for vector in vectors
        }
        self._rows = dict.fromkeys(vectors, 0)
        self._key = Key(0, 0, 0)

    def add(self, packets: Packets, shared: Shared, key: Key, weight: float) -> None:
        self._key = key
        for vector, tensors in self.line.receive(packets, shared, key).items():
            for x in tensors.values():
                self._files[vector].write(x.mul_(weight).numpy().tobytes())
            self._rows[vector] += 1

    def settle(self) -> None:
        """Make one update of all, and put it where the sums would be."""
        for vector, file in self._files.items():
            if self._rows[vector]:
                self._merge(vector, file)
            file.close()

    def _merge(self, vector: str, file: IO[bytes]) -> None:
        surveys = [self.combine.survey(block) for block in self._blocks(vector, file)]
        known = np.add.reduce(surveys)
        whole = np.empty(self.line.schema.elements, np.float32)
        at = 0
        for block in self._blocks(vector, file):
            merged = self.combine.merge(block, known)
            whole[at : at + len(merged)] = merged
            at += len(merged)
        self._put(vector, torch.from_numpy(whole))

    def _put(self, vector: str, whole: Tensor) -> None:
        at = 0
        for name in self.line.schema.names:
            into = self.vectors[vector][name]
            into.copy_(whole[at : at + into.numel()].view(into.shape))
            at += into.numel()

    def _blocks(self, vector: str, file: IO[bytes]) -> Iterator[Block]:
        """The updates, so many coordinates at a time."""
        rows = self._rows[vector]
        elements = self.line.schema.elements
        width = max(1, BLOCK_BYTES // (4 * rows))
        buckets = self._buckets(rows)
        for start in range(0, elements, width):
            count = min(width, elements - start)
            block = np.empty((rows, count), np.float32)
            for row in range(rows):
                file.seek(4 * (row * elements + start))
                block[row] = np.frombuffer(file.read(4 * count), np.float32)
            if self.combine.bucket > 1:
                block = np.stack([block[each].mean(0) for each in buckets])
            yield block

    def _buckets(self, rows: int) -> list[NDArray[np.intp]]:
        """Who is averaged with whom: drawn anew in every round, the same if it is run again."""
        rng = numpy_rng(self._key.seed, "buckets", self._key.round)
        order = rng.permutation(rows)
        return np.split(order, range(self.combine.bucket, rows, self.combine.bucket))
