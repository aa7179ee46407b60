"""Files that are there whole or not at all."""

import fcntl
import hashlib
import json
import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import safetensors.torch
import torch

from fedwsq.core.text import open_file
from fedwsq.core.types import Params


def write_atomically(path: Path, data: bytes) -> None:
    """Put `data` at `path`: a reader, or a crash, finds the old file or the new one, both whole."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        # Left over from a crash; or, in a directory from elsewhere, a link to a file of ours.
        temporary.unlink(missing_ok=True)
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        # On a full disk, half a file would keep the room that others need.
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise

    # The new name is an entry of the directory, which has to reach the disk as well.
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def without_links(path: str, flags: int) -> int:
    """`open(..., opener=without_links)`: of a file that is written to where it is.

    A run directory may be from anybody, and a link in it lead to any file of its reader.
    """
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def mapped(path: Path) -> memoryview:
    """A file that is read where it is looked at: a huge one need not come into memory."""
    with open_file(path) as file:
        if not os.fstat(file.fileno()).st_size:  # cannot be mapped
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def try_lock(file: IO[str] | IO[bytes]) -> bool:
    """Take an open file for this process, until it is closed or the process ends in any way."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def count_one(path: Path) -> None:
    """Add one to a count that no crash loses: the length of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab", opener=without_links) as file:
        file.write(b".")
        file.flush()
        os.fsync(file.fileno())


def counted(path: Path) -> int:
    """As often as `count_one` was called."""
    return path.stat().st_size if path.exists() else 0


def file_digest(path: Path) -> str:
    """BLAKE2b of the file's bytes, read in pieces."""
    short = lambda: hashlib.blake2b(digest_size=16)
    with open(path, "rb") as file:
        return hashlib.file_digest(file, short).hexdigest()


def save_tensors(path: Path, tensors: Params, metadata: dict[str, str]) -> None:
    """Write a safetensors file atomically; the same content is the same bytes."""
    plain = {}
    for name, x in tensors.items():
        # A clone: safetensors refuses tensors that share memory, as tied weights do.
        plain[name] = x.detach().cpu().clone(memory_format=torch.contiguous_format)
    write_atomically(path, _ordered(safetensors.torch.save(plain, metadata)))


def _ordered(data: bytes) -> bytes:
    """The same file with its metadata by name: safetensors writes them in an order of chance."""
    # Such a file is the header's size in 8 bytes, the header as JSON, then the tensors' bytes.
    size = int.from_bytes(data[:8], "little")
    body = memoryview(data)[8 + size :]
    header: dict[str, Any] = json.loads(data[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))

    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of 8
    return b"".join([len(text).to_bytes(8, "little"), text, body])
