"""Archives from elsewhere: only the bytes of plain files come out of them."""

import gzip
import io
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from fedwsq.core.errors import DataError

Content = IO[bytes] | io.BufferedIOBase
Files = Iterator[tuple[str, Content]]  # path in the archive, content


def unpack(archive: Path, into: Path, top: str, limit: int) -> None:
    """Unpack a .tar.gz, .zip or .gz whose files all belong in the folder `top`.

    At most `limit` bytes come out, each file as a new one: no links, no devices, no permissions,
    no way out of the folder.
    """
    try:
        for name, content in _files(archive, top, limit):
            path = into / _inside(name, top)
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "xb") as out:
                shutil.copyfileobj(content, out)
    except DataError as error:
        raise DataError(f"{archive.name} is not unpacked: {error}") from None
    except Exception as error:  # a damaged archive can raise nearly anything
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's fault
        raise DataError(
            f"{archive.name} cannot be unpacked ({type(error).__name__}); "
            f"delete {archive} and fetch again"
        ) from error


def _files(archive: Path, top: str, limit: int) -> Files:
    if archive.suffix == ".zip":
        yield from _zipped(archive, limit)
        return
    with _Bounded(archive, limit) as stream:
        if archive.name.endswith(".tar.gz"):
            yield from _tarred(stream)
        else:
            yield f"{top}/{archive.stem}", stream


def _zipped(archive: Path, limit: int) -> Files:
    with zipfile.ZipFile(archive) as packed:
        # What the members declare is a bound: zipfile reads no more of them.
        if sum(member.file_size for member in packed.infolist()) > limit:
            raise DataError(f"it holds more than {limit:,} bytes")
        for member in packed.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)  # 0 where no permissions were stored
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise DataError(f"its member {member.filename!r} is neither a file nor a folder")
            if not member.is_dir():
                yield member.filename, packed.open(member)


def _tarred(stream: gzip.GzipFile) -> Files:
    with tarfile.open(fileobj=stream, mode="r|") as packed:
        for member in packed:
            if member.isdir():
                continue
            # A sparse file is one of a few bytes that unpacks to as many as it likes.
            content = packed.extractfile(member) if member.isreg() else None
            if content is None or member.issparse():
                raise DataError(f"its member {member.name!r} is neither a file nor a folder")
            yield member.name, content


def _inside(name: str, top: str) -> PurePosixPath:
    """A member's path, which must lie in the folder `top`, on any system."""
    path = PurePosixPath(name)
    strange = any(character in name for character in "\\:\0")
    if path.parts[:1] != (top,) or ".." in path.parts or strange:
        raise DataError(f"its member {name!r} does not belong in the folder {top}")
    return path


class _Bounded(gzip.GzipFile):
    """A packed stream of at most `limit` bytes: of a tar, with headers as long as they claim."""

    def __init__(self, path: Path, limit: int) -> None:
        super().__init__(path)
        self._limit = limit

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        if self.tell() > self._limit:
            raise DataError(f"it holds more than {self._limit:,} bytes")
        return data
