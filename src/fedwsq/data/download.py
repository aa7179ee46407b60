"""One published file over http or https; a download that stops goes on where it stopped."""

import hashlib
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage, HTTPResponse, InvalidURL, responses
from pathlib import Path
from ssl import SSLError
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from fedwsq.core.errors import DataError
from fedwsq.core.version import VERSION
from fedwsq.data.sources import File

TIMEOUT_SECONDS = 30.0  # how long a silent server is waited for
WAITS_SECONDS = (1.0, 2.0, 4.0, 8.0)  # before each further try
# Not OSError as a whole: a full disk is no trouble of the network's.
TROUBLE = (URLError, HTTPException, ConnectionError, TimeoutError, SSLError, ValueError)
PASSING = (408, 416, 429, 500, 502, 503, 504)  # answers worth another try
STRONG = re.compile('"[!#-~]*"')  # an ETag that If-Range may carry


class Watcher:
    """Told what happens; this one keeps it to itself."""

    def note(self, text: str) -> None:
        """Something happened that a person may want to know."""

    def received(self, file: File, have: int) -> None:
        """`have` bytes of a file are on disk by now."""


@dataclass(frozen=True)
class Download:
    """A file on its way to `path`, where what has arrived waits for the rest, however long."""

    file: File
    url: str
    path: Path
    watcher: Watcher

    @property
    def have(self) -> int:
        """How many bytes have arrived."""
        return self.path.stat().st_size if self.path.exists() else 0

    @property
    def _version_path(self) -> Path:
        return self.path.with_name(f"{self.path.name}.version")

    def discard(self) -> None:
        """Forget what has arrived."""
        self.path.unlink(missing_ok=True)
        self._version_path.unlink(missing_ok=True)

    def note(self, text: str) -> None:
        """Tell the watcher something about this file."""
        self.watcher.note(f"{self.file.name}: {text}")

    def run(self) -> None:
        """Have the published file at `path`, going on with what is there."""
        if self.have >= self.file.bytes and self._is_published():
            return  # the last process ended between download and unpacking
        if self.have:
            self.note(f"going on from byte {self.have:,}")

        for seconds in (*WAITS_SECONDS, None):
            try:
                self._receive()
                break
            except TROUBLE as error:
                trouble = _passing(self.url, error)
                if isinstance(error, HTTPError) and error.code == 416:
                    self.discard()  # the file is shorter there than what has arrived
            if seconds is None:
                raise DataError(
                    f"{self.url}: {trouble}; given up after {len(WAITS_SECONDS) + 1} tries; "
                    f"the same command goes on from byte {self.have:,}"
                )
            self.note(f"{trouble}; trying again from byte {self.have:,} in {seconds:g} s")
            time.sleep(seconds)

        if not self._is_published():
            raise DataError(
                f"{self.file.name} from {self.url} has another MD5 than the published "
                f"{self.file.md5}: it was damaged on the way or is another file, and is deleted; "
                "try again, or another address with --url"
            )

    def _is_published(self) -> bool:
        """Whether this is the published file; deleted if not."""
        with open(self.path, "rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False))
        same = found.hexdigest() == self.file.md5
        if not same:
            self.discard()
        return same

    def _receive(self) -> None:
        """One connection: ask for what is missing, and append it."""
        have = self.have
        known = self._known_version()
        request = Request(self.url, headers={"User-Agent": f"fedwsq/{VERSION}"})
        if have:
            request.add_header("Range", f"bytes={have}-")
        if have and known:
            request.add_header("If-Range", known)

        with build_opener(_Redirects).open(request, timeout=TIMEOUT_SECONDS) as response:
            version = response.headers.get("ETag", known)
            if response.status == 206:
                begins = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
                if not begins or (known and version != known):
                    self.discard()
                    raise ConnectionError("the server has another file than before")
            else:  # the whole file, whatever was asked for
                if response.length not in (None, self.file.bytes):
                    raise DataError(
                        f"{self.url} has {response.length:,} bytes, but {self.file.name} is "
                        f"published with {self.file.bytes:,}; refused"
                    )
                if have:
                    self.note("the server cannot go on, or has another file; starting over")
                self.discard()
            # With the address, for another mirror has another word for the same version.
            self._version_path.write_text(f"{self.url}\n{version}", "utf-8")
            self._append(response)

    def _append(self, response: HTTPResponse) -> None:
        """Never more than was published, whatever arrives; the checksum decides what it is."""
        missing = self.file.bytes - self.have
        with open(self.path, "ab") as out:
            while missing:
                chunk = response.read1(min(missing, 1 << 18))
                if not chunk:
                    raise ConnectionError("the connection closed early")
                out.write(chunk)
                missing -= len(chunk)
                self.watcher.received(self.file, self.file.bytes - missing)

    def _known_version(self) -> str:
        """Of what has arrived; empty if it came from elsewhere: then the checksum alone decides."""
        with suppress(OSError, ValueError):
            url, version = self._version_path.read_text("utf-8").split("\n")
            if url == self.url and STRONG.fullmatch(version):
                return version
        return ""


def _passing(url: str, error: Exception) -> str:
    """Trouble in words, if it may pass; else it is an error of ours."""
    if isinstance(error, HTTPError):
        words = f"the server answers {error.code} ({responses.get(error.code, 'unknown')})"
        passing = error.code in PASSING
    else:
        reason = error.reason if isinstance(error, URLError) else error
        words = ascii(str(reason))[1:-1] or type(reason).__name__  # a server can say anything
        # No address, or a certificate that is not valid here.
        passing = not isinstance(reason, InvalidURL | ValueError)
    if not passing:
        raise DataError(f"{url}: {words}; try another address with --url") from None
    return words


class _Redirects(HTTPRedirectHandler):
    """urllib's own, but never from https to http, and unread whatever stands beside a redirect."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        fp.close()
        if not newurl.startswith(("https:", f"{req.type}:")):
            raise DataError(f"{req.full_url} redirects to {newurl!r}, without encryption; refused")
        return super().redirect_request(req, fp, code, msg, headers, newurl)
