"""Text from anywhere: read within bounds, and made fit for a terminal or a log."""

import errno
import os
import stat
from pathlib import Path
from typing import IO


def printable(text: str) -> str:
    """What would steer a terminal is spelled out; lines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def read_text(path: Path, most: int, errors: str = "strict") -> str:
    """A file's text; ValueError if it is longer than `most` bytes, which no such file is."""
    # Some editors put a byte order mark before UTF-8.
    return read_bytes(path, most).decode("utf-8-sig", errors)


def read_bytes(path: Path, most: int) -> bytes:
    """What is in a file; ValueError if that is more than `most` bytes."""
    with open_file(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return data


def open_file(path: Path) -> IO[bytes]:
    """A file to read; OSError for anything else, of which a pipe or a device might never end."""
    # Without waiting: a pipe would be opened when somebody writes to it, and not before.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))
