"""Data sets from their publishers, when asked and only then: no loader calls this.

A download that stops, for whatever reason, goes on where it stopped. What arrives is hostile until its checksum agrees,
is unpacked aside under the same suspicion, and takes its place in one step.
"""

import gzip
import hashlib
import http.client
import io
import json
import os
import re
import shutil
import ssl
import stat
import string
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import quote, urldefrag, urljoin, urlsplit

from fedwsq.core.errors import DataError
from fedwsq.core.files import try_lock, write_atomically

REDIRECTS = 5
CHUNK_BYTES = 1 << 18
PASSING = {408, 429, 500, 502, 503, 504}  # answers worth another try
# What If-Range may carry: a strong ETag, or a date.
VALIDATOR = re.compile(r'"[!#-~]*"|[A-Za-z0-9,: +-]+')


@dataclass(frozen=True)
class File:
    """One published file; the name ends in .tar.gz, .zip or .gz."""

    name: str
    bytes: int
    md5: str

    @property
    def limit(self) -> int:
        """The most that is ever accepted: what is published, and a tenth."""
        return self.bytes + self.bytes // 10


@dataclass(frozen=True)
class Source:
    """Where a data set comes from, and the folder under the data root that it becomes."""

    title: str
    url: str  # of the folder that holds the files
    files: tuple[File, ...]
    folder: str
    unpacked_bytes: int  # what the folder takes on disk at most; more is refused
    terms: str
    cite: str


# The MD5s are the published ones. They find damage; that nobody forged a file is what https vouches for, where a
# publisher offers it.
SOURCES: dict[str, Source] = {
    "cifar10": Source(
        title="CIFAR-10, binary version",
        url="https://www.cs.toronto.edu/~kriz/",
        files=(File("cifar-10-binary.tar.gz", 170_052_171, "c32a1d4ab5d03f1284b67883e8d87530"),),
        folder="cifar-10-batches-bin",
        unpacked_bytes=200_000_000,
        terms="no licence stated; the authors ask to be cited",
        cite="Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
    ),
    "cifar100": Source(
        title="CIFAR-100, binary version",
        url="https://www.cs.toronto.edu/~kriz/",
        files=(File("cifar-100-binary.tar.gz", 168_513_733, "03b5dce01913d631647c71ecec9e9cb8"),),
        folder="cifar-100-binary",
        unpacked_bytes=200_000_000,
        terms="no licence stated; the authors ask to be cited",
        cite="Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
    ),
    "fashionmnist": Source(
        title="Fashion-MNIST",
        url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        files=(
            File("train-images-idx3-ubyte.gz", 26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            File("train-labels-idx1-ubyte.gz", 29_515, "25c81989df183df01b3e8a0aad5dffbe"),
            File("t10k-images-idx3-ubyte.gz", 4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
            File("t10k-labels-idx1-ubyte.gz", 5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
        ),
        folder="fashion-mnist",
        unpacked_bytes=60_000_000,
        terms="MIT licence, Zalando SE",
        cite="Xiao, Rasul, Vollgraf, Fashion-MNIST, 2017, arXiv:1708.07747",
    ),
    "tinyimagenet": Source(
        title="Tiny-ImageNet, 200 classes",
        url="http://cs231n.stanford.edu/",
        files=(File("tiny-imagenet-200.zip", 248_100_043, "90528d7ca1a48142e341f4ef8d21d0de"),),
        folder="tiny-imagenet-200",
        unpacked_bytes=600_000_000,  # about 240 MB in 120,000 files, each rounded up to whole disk blocks
        terms="images from ImageNet: non-commercial research and education (image-net.org)",
        cite="Le and Yang, Tiny ImageNet Visual Recognition Challenge, 2015",
    ),
}


@dataclass(frozen=True)
class Patience:
    """How long a silent server is waited for, and how long before each further try."""

    timeout_seconds: float = 30.0
    waits: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)


PATIENCE = Patience()


class Watcher:
    """Told what happens; this one keeps it to itself."""

    def note(self, text: str) -> None:
        """Something happened that a person may want to know."""

    def received(self, file: File, have: int) -> None:
        """`have` bytes of a file are on disk by now."""


def fetch(
    source: Source,
    root: Path,
    *,
    url: str = "",
    force: bool = False,
    patience: Patience = PATIENCE,
    watcher: Watcher | None = None,
) -> bool:
    """Download, verify and unpack into `root`; False if the folder was there already and `force` did not ask again.

    `url` is a mirror: a folder if it ends in a slash, else the one file. A failure leaves what has arrived for the next
    call to go on with, and never a folder that looks like the data set and is not.
    """
    watcher = watcher or Watcher()
    addresses = [_address(source, file, url) for file in source.files]
    target = root / source.folder
    if target.exists() and not force:
        return False
    work = work_folder(source, root)
    with _alone(work):
        if target.exists() and not force:  # fetched by another process a moment ago
            return False
        _require_space(source, work)
        for file, address in zip(source.files, addresses, strict=True):
            _obtain(file, address, _part(work, file), patience, watcher)
        _install(source, work, target, watcher)
        for file in source.files:
            _discard(_part(work, file))
    return True


def work_folder(source: Source, root: Path) -> Path:
    """Where a data set is before it is in place: on the same disk, under a name that no loader looks for."""
    return root / f".{source.folder}.fetch"


def kept_bytes(source: Source, root: Path) -> int:
    """How much of a stopped download is there to go on with."""
    return sum(_size(_part(work_folder(source, root), file)) for file in source.files)


def _address(source: Source, file: File, url: str) -> str:
    """Where a file is, at its publisher or at the mirror `url`."""
    base = quote(url or source.url, safe=string.punctuation)
    if _scheme(base) not in ("http", "https"):
        raise DataError(
            f"the address is {base!r}, must begin with http:// or https:// and name a host"
        )
    if base.endswith("/"):
        return base + file.name
    if len(source.files) > 1:
        raise DataError(
            f"the address is {base!r}, but {source.title} is {len(source.files)} files; "
            "give the address of the folder that holds them, ending in /"
        )
    return base


@contextmanager
def _alone(work: Path) -> Iterator[None]:
    """Only one process works in the folder, which goes away when nothing to go on with is left in it."""
    lock = work / "lock"
    file = _lock(lock)
    try:
        yield
    finally:
        with suppress(OSError):
            lock.unlink()
            work.rmdir()
        file.close()


def _lock(path: Path) -> IO[str]:
    """A locked file, sure to be the one that others find at `path`."""
    for _ in range(1000):
        # The file and its folder can go between two calls, when another fetch ends.
        with suppress(FileNotFoundError, FileExistsError), ExitStack() as stack:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(path, "a"))
            if not try_lock(file):
                raise DataError(
                    f"{path.parent} is in use: the same data set is being fetched; wait for it"
                )
            if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                stack.pop_all()
                return file
    raise DataError(
        f"{path.parent} cannot be made or kept as a folder; move away what is in its place"
    )


def _require_space(source: Source, work: Path) -> None:
    kept = [min(_size(_part(work, file)), file.bytes) for file in source.files]
    need = sum(file.bytes for file in source.files) - sum(kept) + source.unpacked_bytes
    free = shutil.disk_usage(work).free
    if need > free:
        raise DataError(
            f"{source.title} needs {need:,} bytes in {work.parent} to arrive and be unpacked, but {free:,} are free; "
            "make room, or choose another place with --root"
        )


def _obtain(file: File, url: str, part: Path, patience: Patience, watcher: Watcher) -> None:
    """Have the verified file at `part`, going on with what is there."""
    have = _size(part)
    if have == file.bytes:  # complete, and the process ended before it was unpacked
        if _md5(part) == file.md5:
            return
        _discard(part)
    elif have:
        watcher.note(f"{file.name}: going on from byte {have:,}")
    _download(file, url, part, patience, watcher)
    found, size = _md5(part), _size(part)
    if found != file.md5:
        _discard(part)
        raise DataError(
            f"{file.name} from {url} has {size:,} bytes and MD5 {found}, published are {file.bytes:,} and {file.md5}: "
            "it was damaged on the way or is another file, and is deleted; try again, or another address with --url"
        )


def _download(file: File, url: str, part: Path, patience: Patience, watcher: Watcher) -> None:
    """Connect as often as patience allows."""
    for wait in (*patience.waits, None):
        try:
            return _receive(file, url, part, patience.timeout_seconds, watcher)
        except _Interrupted as trouble:
            have = _size(part)
            if wait is None:
                how = f"goes on from byte {have:,}" if have else "starts over"
                tries = len(patience.waits) + 1
                raise DataError(
                    f"{url}: {trouble}; given up after {tries} tries; the same command {how}"
                ) from None
            watcher.note(f"{file.name}: {trouble}; trying again from byte {have:,} in {wait:g} s")
            time.sleep(wait)


class _Interrupted(Exception):
    """The network failed in a way that may pass."""


def _receive(file: File, url: str, part: Path, timeout: float, watcher: Watcher) -> None:
    """One connection: ask for what is missing, and append it."""
    have = _size(part)
    known = _kept_validator(part, url) if have else ""
    headers = ({"Range": f"bytes={have}-"} if have else {}) | ({"If-Range": known} if known else {})
    with _open(url, headers, timeout) as response:
        if response.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and _announced(
            response, have
        ) in (None, have):
            return  # nothing is missing; the checksum decides
        if response.status != HTTPStatus.OK and not _continues(response, have, known):
            _discard(part)
            raise _Interrupted("the server has another file than before")
        if response.status == HTTPStatus.OK and have:
            watcher.note(
                f"{file.name}: the server cannot go on, or has another file than before; starting over"
            )
            have = 0
        total = _announced(response, have)
        if total is not None and total > file.limit:
            raise DataError(
                f"{url} has {total:,} bytes, but {file.name} is published with {file.bytes:,}; refused"
            )
        if not have:
            _discard(part)
        kept = {"url": url, "validator": _validator(response) or known}
        write_atomically(_sidecar(part), json.dumps(kept).encode())
        _append(response, file, part, have, total, watcher)


def _append(
    response: http.client.HTTPResponse,
    file: File,
    part: Path,
    have: int,
    total: int | None,
    watcher: Watcher,
) -> None:
    """Write what arrives behind the `have` bytes of the part, up to `total` or, if that is unknown, to the end."""
    with open(part, "ab") as out:
        while total is None or have < total:
            chunk = _read(
                response, CHUNK_BYTES if total is None else min(CHUNK_BYTES, total - have)
            )
            if not chunk:
                break
            have += len(chunk)
            if have > file.limit:
                _discard(part)
                raise DataError(
                    f"more than the {file.bytes:,} bytes of {file.name} arrive; refused, and deleted"
                )
            out.write(chunk)
            watcher.received(file, have)
    if have < (file.bytes if total is None else total):
        raise _Interrupted("the connection closed early")


def _open(url: str, headers: dict[str, str], timeout: float) -> http.client.HTTPResponse:
    """The answer to a GET: 200, 206 or 416. Redirects are followed as far as `redirected` allows."""
    from fedwsq import __version__

    first = url
    for _ in range(REDIRECTS + 1):
        request = urllib.request.Request(
            url, headers={"User-Agent": f"fedwsq/{__version__}", **headers}
        )
        try:
            response: http.client.HTTPResponse = _opener().open(request, timeout=timeout)
        except (OSError, http.client.HTTPException) as error:
            raise _trouble(url, error) from None
        if response.status in (200, 206, 416):
            return response
        response.close()
        if response.status not in (301, 302, 303, 307, 308):
            raise _refusal(url, response.status)
        url = redirected(url, response.headers.get("Location", ""))
    raise DataError(
        f"{first}: more than {REDIRECTS} redirects in a row; try another address with --url"
    )


def redirected(url: str, location: str) -> str:
    """Where a redirect leads: http or https, and never from https to http."""
    try:
        new = urldefrag(
            urljoin(url, quote(location, safe=string.punctuation, encoding="iso-8859-1"))
        )[0]
    except ValueError:
        new = ""
    allowed = ("https",) if _scheme(url) == "https" else ("http", "https")
    if not location or _scheme(new) not in allowed:
        raise DataError(
            f"{url} redirects to {location!r}, but from there only {' or '.join(allowed)} is followed"
        )
    return new


def _scheme(url: str) -> str:
    """`https`; empty if the address is none."""
    try:
        parts = urlsplit(url)
        return parts.scheme if parts.hostname else ""
    except ValueError:
        return ""


def _opener() -> urllib.request.OpenerDirector:
    """Speaks http and https, through the environment's proxy if it names one; hands every answer through as it is."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
    ):
        opener.add_handler(handler)
    return opener


def _trouble(url: str, error: Exception) -> Exception:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return DataError(
            f"{url}: its certificate is not valid here ({reason.verify_message}); check clock and network"
        )
    if isinstance(reason, http.client.InvalidURL):
        return DataError(f"{url!r} is no address that can be asked for a file")
    return _Interrupted(
        ascii(str(reason))[1:-1] or type(reason).__name__
    )  # ascii: a server's words can hold anything


def _refusal(url: str, status: int) -> Exception:
    said = f"the server answers {status} ({http.client.responses.get(status, 'unknown')})"
    return (
        _Interrupted(said)
        if status in PASSING
        else DataError(f"{url}: {said}; try another address with --url")
    )


def _read(response: http.client.HTTPResponse, most: int) -> bytes:
    """What has arrived, at most `most` bytes; empty at the end."""
    try:
        return response.read1(most)
    except (OSError, http.client.HTTPException) as error:
        raise _Interrupted(f"the connection broke ({type(error).__name__})") from None


def _announced(response: http.client.HTTPResponse, have: int) -> int | None:
    """The length of the whole file, if the server says."""
    if response.status != HTTPStatus.OK:
        length = response.headers.get("Content-Range", "").rpartition("/")[2]
        if re.fullmatch(r"[0-9]{1,18}", length):
            return int(length)
        if response.status != HTTPStatus.PARTIAL_CONTENT:
            return None
    return None if response.length is None else have + response.length


def _continues(response: http.client.HTTPResponse, have: int, known: str) -> bool:
    """Whether the body begins behind the `have` bytes of the part, and belongs to the same file as they do."""
    begins = re.match(rf"bytes {have}-", response.headers.get("Content-Range", ""))
    now = _validator(response)
    return begins is not None and (not known or not now or known == now)


def _validator(response: http.client.HTTPResponse) -> str:
    """What tells this version of the file from another: its ETag unless weak, else its date."""
    offered = (response.headers.get("ETag", ""), response.headers.get("Last-Modified", ""))
    return next((text for text in offered if VALIDATOR.fullmatch(text)), "")


def _kept_validator(part: Path, url: str) -> str:
    """The validator that came with a part; none if it came from elsewhere: then the checksum alone decides."""
    try:
        kept = json.loads(_sidecar(part).read_bytes())
        text = kept["validator"] if kept["url"] == url else ""
        return text if VALIDATOR.fullmatch(text) else ""
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def _part(work: Path, file: File) -> Path:
    return work / f"{file.name}.part"


def _sidecar(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _discard(part: Path) -> None:
    part.unlink(missing_ok=True)
    _sidecar(part).unlink(missing_ok=True)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _md5(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _install(source: Source, work: Path, target: Path, watcher: Watcher) -> None:
    """Unpack beside the target, then move into place."""
    aside, old = work / "unpacked", work / "old"
    try:
        for left_over in (aside, old):
            _remove(left_over)
        for file in source.files:
            watcher.note(f"{file.name}: verified, unpacking")
            unpack(_part(work, file), aside, source.folder, source.unpacked_bytes)
        if not (aside / source.folder).is_dir():
            raise DataError(
                f"{source.title} is not unpacked: there is no folder {source.folder} in what arrived"
            )
        os.sync()  # a power cut after the rename must not find empty files
        if os.path.lexists(target):  # a link is replaced, not what it points to
            target.rename(old)
        (aside / source.folder).rename(target)
        with suppress(OSError):
            _remove(old)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _remove(folder: Path) -> None:
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)


def unpack(archive: Path, into: Path, top: str, limit: int) -> None:
    """Unpack a .tar.gz, .zip or .gz (with .part behind it or not) whose files all belong in the folder `top`.

    Only the bytes of plain files come out, at most `limit` of them, each as a new file: no links, no devices, no
    permissions, no way out of the folder.
    """
    name = archive.name.removesuffix(".part")
    try:
        if name.endswith(".tar.gz"):
            _unpack_tar(archive, into, top, limit)
        elif name.endswith(".zip"):
            _unpack_zip(archive, into, top, limit)
        else:
            with gzip.open(archive) as stream:
                _write(_bounded(stream, limit), into / top / name.removesuffix(".gz"))
    except DataError as error:
        raise DataError(f"{name} is not unpacked: {error}") from None
    except Exception as error:  # a damaged archive can raise nearly anything
        if isinstance(error, OSError) and error.errno is not None:  # the disk's fault
            raise
        raise DataError(
            f"{name} cannot be unpacked ({type(error).__name__}); delete {archive} and fetch again"
        ) from error


def _unpack_tar(path: Path, into: Path, top: str, limit: int) -> None:
    # The bound is on the stream: headers can be as long as they claim, too.
    with (
        gzip.open(path) as stream,
        tarfile.open(fileobj=_bounded(stream, limit), mode="r|") as archive,
    ):
        for member in archive:
            place = into / _inside(member.name, top)
            content = archive.extractfile(member) if member.isreg() else None
            if content is not None:
                _write(content, place)
            elif not member.isdir():
                raise DataError(f"its member {member.name!r} is neither a file nor a folder")


def _unpack_zip(path: Path, into: Path, top: str, limit: int) -> None:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if (
            sum(member.file_size for member in members) > limit
        ):  # zipfile reads no more of a member than it declares
            raise DataError(f"it holds more than {limit:,} bytes")
        for member in members:
            place = into / _inside(member.filename, top)
            if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise DataError(f"its member {member.filename!r} is neither a file nor a folder")
            if not member.is_dir():
                with archive.open(member) as content:
                    _write(content, place)


def _inside(name: str, top: str) -> PurePosixPath:
    """A member's path, which must lie in the folder `top`."""
    path = PurePosixPath(name)
    if (
        path.parts[:1] != (top,)
        or ".." in path.parts
        or any(character in name for character in "\\:\0")
    ):
        raise DataError(f"its member {name!r} does not belong in the folder {top}")
    return path


def _write(content: IO[bytes] | io.BufferedReader, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "xb") as out:
        shutil.copyfileobj(content, out, CHUNK_BYTES)


def _bounded(stream: gzip.GzipFile, limit: int) -> io.BufferedReader:
    """The stream, which may hold `limit` bytes."""
    return io.BufferedReader(_Bounded(stream, limit), CHUNK_BYTES)


class _Bounded(io.RawIOBase):
    def __init__(self, stream: gzip.GzipFile, limit: int) -> None:
        self._stream, self._left, self._limit = stream, limit, limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._stream.readinto(buffer)
        self._left -= count
        if self._left < 0:
            raise DataError(f"it holds more than {self._limit:,} bytes")
        return count
