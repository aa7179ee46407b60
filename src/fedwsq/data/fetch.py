"""Data sets from their publishers, when asked and only then: no loader calls this.

What arrives is hostile until its checksum agrees, is unpacked aside under the same suspicion, and
takes its place in one step.
"""

import os
import re
import shutil
import string
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from fedwsq.core.errors import DataError
from fedwsq.core.files import try_lock
from fedwsq.data.download import Download, Watcher
from fedwsq.data.sources import File, Source
from fedwsq.data.unpack import unpack


def fetch(source: Source, root: Path, force: bool = False, watcher: Watcher | None = None) -> bool:
    """Download, verify and unpack into `root`; False if the folder is there and nothing is forced.

    A failure leaves what has arrived for the next call to go on with, and never a folder that
    looks like the data set and is not.
    """
    target = root / source.folder
    downloads = _downloads(source, root, watcher or Watcher())
    if target.exists() and not force:
        return False
    with _alone(work_folder(source, root)):
        if target.exists() and not force:  # fetched by another process a moment ago
            return False
        _require_space(source, root, downloads)
        for download in downloads:
            download.run()
        _install(source, root, downloads)
        for download in downloads:
            download.discard()
    return True


def work_folder(source: Source, root: Path) -> Path:
    """Where a data set is before it is in place: same disk, a name that no loader looks for."""
    return root / f".{source.folder}.fetch"


def kept_bytes(source: Source, root: Path) -> int:
    """How much of a stopped download is there to go on with."""
    return sum(download.have for download in _downloads(source, root, Watcher()))


def _downloads(source: Source, root: Path, watcher: Watcher) -> list[Download]:
    work = work_folder(source, root)
    return [
        Download(file, _address(source, file), work / file.name, watcher) for file in source.files
    ]


def _address(source: Source, file: File) -> str:
    url = quote(source.url, safe=string.punctuation)
    if not re.match("https?://[^/]", url, re.IGNORECASE):
        raise DataError(
            f"the address is {url!r}, must begin with http:// or https:// and name a host"
        )
    if url.endswith("/"):
        return url + file.name
    if len(source.files) > 1:
        raise DataError(
            f"the address is {url!r}, but {source.title} is {len(source.files)} files; "
            "give the address of the folder that holds them, ending in /"
        )
    return url


@contextmanager
def _alone(work: Path) -> Iterator[None]:
    """Only one process works in the folder, which goes away if nothing to go on with is left."""
    in_use = DataError(f"{work} is in use: the same data set is being fetched; wait for it")
    lock = work / "lock"
    with ExitStack() as stack:
        try:
            work.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(lock, "a"))
        except FileExistsError:
            raise DataError(f"{work} is no folder; move away what is in its place") from None
        except FileNotFoundError:  # another process ended just now, and took the folder with it
            raise in_use from None
        # Or it took the file: a lock on one without a name keeps nobody out.
        if not try_lock(file) or os.fstat(file.fileno()).st_nlink == 0:
            raise in_use
        try:
            yield
        finally:
            with suppress(OSError):
                lock.unlink()
                work.rmdir()


def _require_space(source: Source, root: Path, downloads: list[Download]) -> None:
    missing = sum(max(0, download.file.bytes - download.have) for download in downloads)
    need = missing + source.unpacked_bytes
    free = shutil.disk_usage(root).free
    if need > free:
        raise DataError(
            f"{source.title} needs {need:,} bytes in {root} to arrive and be unpacked, but "
            f"{free:,} are free; make room, or choose another place with --root"
        )


def _install(source: Source, root: Path, downloads: list[Download]) -> None:
    """Unpack on the same disk, then move into place."""
    target = root / source.folder
    aside = work_folder(source, root) / "unpacked"
    shutil.rmtree(aside, ignore_errors=True)  # left behind by a process that was killed
    try:
        for download in downloads:
            download.note("verified, unpacking")
            unpack(download.path, aside, source.folder, source.unpacked_bytes)
        if not (aside / source.folder).is_dir():
            raise DataError(f"{source.title} is not unpacked: it has no folder {source.folder}")
        os.sync()  # a power cut after the rename must not find empty files
        if os.path.lexists(target):
            target.rename(aside / "old")  # a link moves, and not what it points to
        (aside / source.folder).rename(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
