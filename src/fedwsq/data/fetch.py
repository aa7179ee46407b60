"""Data sets from their publishers, when asked and only then: no loader calls this.

What arrives is hostile until its checksum agrees, is unpacked aside under the same suspicion, and
takes its place in one step.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from fedwsq.core.errors import DataError
from fedwsq.core.files import try_lock
from fedwsq.data.download import Watcher, download
from fedwsq.data.sources import Source
from fedwsq.data.unpack import unpack


def fetch(source: Source, root: Path, force: bool = False, watcher: Watcher | None = None) -> bool:
    """Download, verify and unpack into `root`; False if the folder is there and nothing is forced.

    A failure leaves what has arrived for the next call to go on with, and never a folder that
    looks like the data set and is not.
    """
    target = root / source.folder
    watcher = watcher or Watcher()
    if not source.url.startswith(("http://", "https://")):
        raise DataError(f"the address is {source.url!r}, must begin with http:// or https://")
    if target.exists() and not force:
        return False
    with _alone(work_folder(source, root)) as work:
        if target.exists() and not force:  # fetched by another process a moment ago
            return False
        _require_space(source, root)
        for file in source.files:
            url = source.url + file.name if source.url.endswith("/") else source.url
            download(file, url, work / file.name, watcher)
            watcher.note(f"{file.name}: verified")
        _install(source, work, target)
        shutil.rmtree(work, ignore_errors=True)  # the data set is in place, whatever stays
    return True


def work_folder(source: Source, root: Path) -> Path:
    """Where a data set is before it is in place: same disk, a name that no loader looks for."""
    return root / f".{source.folder}.fetch"


def kept_bytes(source: Source, root: Path) -> int:
    """How much of a stopped download is there to go on with."""
    paths = [work_folder(source, root) / file.name for file in source.files]
    return sum(path.stat().st_size for path in paths if path.exists())


def _require_space(source: Source, root: Path) -> None:
    """Before the first byte: room for what is missing, and for all of it unpacked beside that."""
    missing = sum(file.bytes for file in source.files) - kept_bytes(source, root)
    need = missing + source.unpacked_bytes
    free = shutil.disk_usage(root).free
    if need > free:
        raise DataError(
            f"{source.title} needs {need:,} bytes in {root}, and {free:,} are free; "
            "make room, or choose another place with --root"
        )


@contextmanager
def _alone(work: Path) -> Iterator[Path]:
    """A folder for one process alone; it goes away if nothing to go on with is left in it."""
    work.parent.mkdir(parents=True, exist_ok=True)
    lock = work.with_suffix(".lock")
    with open(lock, "a") as file:
        # Without a name, the file belonged to a process that ended just now; it keeps nobody out.
        if not try_lock(file) or os.fstat(file.fileno()).st_nlink == 0:
            raise DataError(f"{work} is in use: the data set is being fetched; wait for it")
        try:
            work.mkdir(exist_ok=True)
            yield work
        finally:
            with suppress(OSError):
                work.rmdir()
            lock.unlink()


def _install(source: Source, work: Path, target: Path) -> None:
    """Unpack on the same disk, then move into place."""
    with TemporaryDirectory(dir=work, ignore_cleanup_errors=True) as name:
        aside = Path(name)
        for file in source.files:
            unpack(work / file.name, aside, source.folder, source.unpacked_bytes)
        whole = aside / source.folder
        if not whole.is_dir() or len(os.listdir(aside)) > 1:
            raise DataError(f"{source.title} is not one folder {source.folder}; refused")
        os.sync()  # a power cut after the rename must not find empty files
        if os.path.lexists(target):
            target.rename(aside / "old")  # a link moves, and not what it points to
        whole.rename(target)
