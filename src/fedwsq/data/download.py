"""One published file over http or https; a download that stops goes on where it stopped."""

import hashlib
import time
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from fedwsq.core.errors import DataError
from fedwsq.core.version import VERSION
from fedwsq.data.sources import File

TIMEOUT_SECONDS = 30.0  # how long a silent server is waited for
TRIES = 5
WAIT_SECONDS = 2.0  # before each further try


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

    def run(self) -> None:
        """Have the published file at `path`, going on with what is there."""
        for further in reversed(range(TRIES)):
            try:
                self._receive()
                break
            except (OSError, HTTPException, ValueError) as error:
                reason = ascii(str(error))[1:-1]  # a server can say anything
                is_refusal = isinstance(error, HTTPError) and error.code < 500
                if is_refusal or not further:
                    hint = "the same command goes on from here, --url names a mirror"
                    raise DataError(f"{self.url}: {reason}; {hint}") from None
                self.watcher.note(f"{self.file.name}: {reason}; trying again")
                time.sleep(WAIT_SECONDS)

        with open(self.path, "rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False))
        if found.hexdigest() != self.file.md5:
            self._discard()
            published = f"the published {self.file.md5}"
            raise DataError(f"{self.url} has another MD5 than {published}; deleted, try again")

    def _receive(self) -> None:
        """One connection: ask for what is missing, and append it."""
        have = self.path.stat().st_size if self.path.exists() else 0
        if have >= self.file.bytes:
            return
        request = Request(self.url, headers={"User-Agent": f"fedwsq/{VERSION}"})
        if have and self._etag.exists():
            self.watcher.note(f"{self.file.name}: going on from byte {have:,}")
            request.add_header("Range", f"bytes={have}-")
            request.add_header("If-Range", self._etag.read_text("latin1"))

        with build_opener(_Redirects).open(request, timeout=TIMEOUT_SECONDS) as response:
            if response.status != 206:  # it cannot go on, or has another file by now
                have = 0
            if response.length not in (None, self.file.bytes - have):
                raise DataError(f"{self.url} has not the published {self.file.bytes:,} bytes")
            if not have:
                self._discard()
                etag = response.headers.get("ETag", "")
                if etag.startswith('"'):  # a weak one does not promise the same bytes
                    self._etag.write_text(etag, "latin1")

            with open(self.path, "ab") as out:
                while have < self.file.bytes:  # and no further, whatever arrives
                    chunk = response.read1(min(self.file.bytes - have, 1 << 18))
                    if not chunk:
                        raise ConnectionError("the connection closed early")
                    out.write(chunk)
                    have += len(chunk)
                    self.watcher.received(self.file, have)

    @property
    def _etag(self) -> Path:
        return self.path.with_name(f"{self.path.name}.etag")

    def _discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self._etag.unlink(missing_ok=True)


class _Redirects(HTTPRedirectHandler):
    """urllib's own, but never from https to http, and unread whatever stands beside a redirect."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        fp.close()
        if not newurl.startswith(("https:", f"{req.type}:")):
            raise DataError(f"{req.full_url} redirects to {newurl!r}, without encryption; refused")
        return super().redirect_request(req, fp, code, msg, headers, newurl)
