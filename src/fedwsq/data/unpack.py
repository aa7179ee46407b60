"""Archives from elsewhere: only plain files come out of them, and no more than expected."""

import gzip
import stat
import tarfile
import zipfile
from pathlib import Path

from fedwsq.core.errors import DataError

MEMBER_BYTES = 512  # what a member counts beside its content, so that their number is bounded
MAX_READ = 1 << 20  # bytes: content is copied in small pieces, only headers are read whole


def unpack(archive: Path, into: Path, top: str, limit: int) -> None:
    """Unpack a .tar.gz, a .zip, or a .gz, whose one file goes into the folder `top`.

    At most `limit` bytes come out: no links, no devices, nothing twice, nothing outside of `into`.
    """
    try:
        if archive.suffix == ".zip":
            _unzip(archive, into, limit)
        elif archive.name.endswith(".tar.gz"):
            _untar(archive, into, limit)
        else:
            with gzip.open(archive) as packed:
                content = packed.read(limit + 1)
            _require_room(len(content), limit)
            (into / top).mkdir(exist_ok=True)
            (into / top / archive.stem).write_bytes(content)
    except Exception as error:  # a damaged archive can raise nearly anything
        raise DataError(f"{archive.name} cannot be unpacked: {error}") from error


def _untar(archive: Path, into: Path, limit: int) -> None:
    total = 0
    # Padding comes on top of what the members count.
    stream = _Bounded(archive, 2 * limit + MAX_READ)
    with stream, tarfile.open(fileobj=stream, mode="r:") as packed:
        for member in packed:
            # Of a sparse file, this is the size that it unpacks to.
            total += member.size + MEMBER_BYTES
            _require_room(total, limit)
            # tarfile's own filter lets links through that stay inside; no data set needs one.
            if not member.isreg() and not member.isdir():
                raise DataError(f"its member {member.name!r} is neither a file nor a folder")
            _require_new(member.name, into, member.isdir())
            packed.extract(member, into, filter="data")


def _unzip(archive: Path, into: Path, limit: int) -> None:
    with zipfile.ZipFile(archive) as packed:
        members = packed.infolist()
        # What the members declare is a bound: zipfile reads no more of them.
        _require_room(sum(each.file_size + MEMBER_BYTES for each in members), limit)
        for each in members:
            if stat.S_ISLNK(each.external_attr >> 16):
                raise DataError(f"its member {each.filename!r} is a link")
            _require_new(each.filename, into, each.is_dir())
            packed.extract(each, into)


def _require_new(name: str, into: Path, is_folder: bool) -> None:
    """Refuse a member that leads outside, which the libraries would bend, or comes twice."""
    if name.startswith("/") or ".." in name.split("/"):
        raise DataError(f"its member {name!r} leads outside")
    if not is_folder and (into / name).exists():
        raise DataError(f"its member {name!r} comes twice")


def _require_room(size: int, limit: int) -> None:
    if size > limit:
        raise DataError(f"it holds more than {limit:,} bytes")


class _Bounded(gzip.GzipFile):
    """A packed tar, whose headers claim their own lengths and number."""

    def __init__(self, path: Path, limit: int) -> None:
        super().__init__(path)
        self._limit = limit

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= MAX_READ:
            raise DataError(f"it has a header of more than {MAX_READ:,} bytes")
        _require_room(self.tell(), self._limit)
        return super().read(size)
