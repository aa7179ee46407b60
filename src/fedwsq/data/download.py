"""One published file over http or https; a download that stops goes on where it stopped."""

import hashlib
import time
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
PASSING = (408, 416, 429)  # refusals worth another try, as every answer from 500 on is


class Watcher:
    """Told what happens; this one keeps it to itself."""

    def note(self, text: str) -> None:
        """Something happened that a person may want to know."""

    def received(self, file: File, have: int) -> None:
        """`have` bytes of a file are on disk by now."""


def download(file: File, url: str, path: Path, watcher: Watcher) -> None:
    """Have the published file at `path`, going on with what has arrived there, however long ago."""
    for further in reversed(range(TRIES)):
        try:
            _receive(file, url, path, watcher)
            break
        except (OSError, HTTPException, ValueError) as error:
            reason = ascii(str(error))[1:-1]  # a server can say anything
            code = error.code if isinstance(error, HTTPError) else 500
            if code == 416:  # the file is shorter there than what has arrived
                _discard(path)
            is_refusal = code < 500 and code not in PASSING
            if is_refusal or not further:
                hint = "the same command goes on from here, --url names a mirror"
                raise DataError(f"{url}: {reason}; {hint}") from None
            watcher.note(f"{file.name}: {reason}; trying again")
            time.sleep(WAIT_SECONDS)

    with open(path, "rb") as arrived:
        found = hashlib.file_digest(arrived, lambda: hashlib.md5(usedforsecurity=False))
    if found.hexdigest() != file.md5:
        _discard(path)
        raise DataError(f"{url} has not the published MD5 {file.md5}; deleted, try again")


def _receive(file: File, url: str, path: Path, watcher: Watcher) -> None:
    """One connection: ask for what is missing, and append it."""
    have = path.stat().st_size if path.exists() else 0
    if have >= file.bytes:
        return
    request = Request(url, headers={"User-Agent": f"fedwsq/{VERSION}"})
    etag_path = _etag_path(path)
    if have:
        watcher.note(f"{file.name}: going on from byte {have:,}")
        request.add_header("Range", f"bytes={have}-")
    if have and etag_path.exists():  # without one, the checksum alone finds another file out
        request.add_header("If-Range", etag_path.read_text("latin1"))

    with build_opener(_Redirects).open(request, timeout=TIMEOUT_SECONDS) as response:
        goes_on = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        if response.status == 206 and not goes_on:
            _discard(path)
            raise ConnectionError("the server goes on at another place")
        if response.status != 206:  # it cannot go on, or has another file by now
            have = 0
        if response.length not in (None, file.bytes - have):
            raise DataError(f"{url} has not the published {file.bytes:,} bytes")
        if not have:
            _discard(path)
            etag = response.headers.get("ETag", "")
            if etag.startswith('"'):  # a weak one does not promise the same bytes
                etag_path.write_text(etag, "latin1")

        with open(path, "ab") as out:
            while have < file.bytes:  # and no further, whatever arrives
                chunk = response.read1(min(file.bytes - have, 1 << 18))
                if not chunk:
                    raise ConnectionError("the connection closed early")
                out.write(chunk)
                have += len(chunk)
                watcher.received(file, have)


def _etag_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.etag")


def _discard(path: Path) -> None:
    path.unlink(missing_ok=True)
    _etag_path(path).unlink(missing_ok=True)


class _Redirects(HTTPRedirectHandler):
    """urllib's own, but never from https to http, and unread whatever stands beside a redirect."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        fp.close()
        if not newurl.startswith(("https:", f"{req.type}:")):
            raise DataError(f"{req.full_url} redirects to {newurl!r}, without encryption; refused")
        return super().redirect_request(req, fp, code, msg, headers, newurl)
