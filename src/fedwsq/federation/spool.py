"""Replies that came before their turn: kept packed, in memory up to a limit and past it on disk."""

import tempfile
from pathlib import Path
from typing import IO

MEMORY_LIMIT_BYTES = 256 * 2**20


class Spool:
    """Put payloads in any order, pop them in yours."""

    def __init__(self, folder: Path | None = None, limit_bytes: int = MEMORY_LIMIT_BYTES) -> None:
        self.folder = folder
        self._limit, self._held = limit_bytes, 0
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
            self._file = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115
        self._disk[client] = (self._file.seek(0, 2), len(payload))
        self._file.write(payload)

    def peek(self, client: int) -> bytes:
        """A payload that stays."""
        if client in self._memory:
            return self._memory[client]
        offset, length = self._disk[client]
        assert self._file is not None
        self._file.seek(offset)
        return self._file.read(length)

    def pop(self, client: int) -> bytes:
        """Hand a payload out and forget it."""
        payload = self.peek(client)
        if client in self._memory:
            del self._memory[client]
            self._held -= len(payload)
        else:
            del self._disk[client]
        return payload

    def close(self) -> None:
        """Remove what is on disk."""
        if self._file is not None:
            self._file.close()
