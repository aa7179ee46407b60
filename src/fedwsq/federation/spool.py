"""Replies that came before their turn: kept packed, in memory up to a limit and past it on disk."""

import tempfile
from pathlib import Path
from typing import IO

MEMORY_LIMIT_BYTES = 256 * 2**20


class Spool:
    """Put payloads in any order, pop them in yours."""

    def __init__(self, folder: Path | None = None, limit_bytes: int = MEMORY_LIMIT_BYTES) -> None:
        self._folder, self._limit, self._held = folder, limit_bytes, 0
        self._memory: dict[int, bytes] = {}
        self._disk: dict[int, tuple[int, int]] = {}  # client -> offset, length
        self._file: IO[bytes] | None = None

    def __contains__(self, client: int) -> bool:
        return client in self._memory or client in self._disk

    def put(self, client: int, payload: bytes) -> None:
        """Keep a payload until it is popped."""
        if self._held + len(payload) <= self._limit:
            self._memory[client] = payload
            self._held += len(payload)
            return
        if self._file is None:
            # Nameless, so that a kill leaves nothing behind.
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
        self._disk[client] = (self._file.seek(0, 2), len(payload))
        self._file.write(payload)

    def pop(self, client: int) -> bytes:
        """Hand a payload out and forget it."""
        if client in self._memory:
            payload = self._memory.pop(client)
            self._held -= len(payload)
            return payload
        offset, length = self._disk.pop(client)
        assert self._file is not None
        self._file.seek(offset)
        return self._file.read(length)

    def close(self) -> None:
        """Remove what is on disk."""
        if self._file is not None:
            self._file.close()
