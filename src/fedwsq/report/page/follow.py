"""A page that follows its runs: served to this machine alone, made anew when rows are added."""

import sys
import threading
from collections.abc import Sequence
from hashlib import blake2b
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeAlias

from fedwsq.core.errors import ConfigError
from fedwsq.report.page.render import render
from fedwsq.runs.reading import Reading, all_run_folders, read_run, told_apart

LOOPBACK = "127.0.0.1"
Stamp: TypeAlias = tuple[tuple[str, int, int], ...]  # file, size, time of the last change


class Followed:
    """Run directories and the page of what they hold now; safe to ask from several threads."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths
        self._lock = threading.Lock()
        self._read: dict[Path, tuple[Stamp, Reading]] = {}
        self._page = ("", b"")  # the state it shows, and the page

    def state(self) -> str:
        """A word that changes when anything in the directories does."""
        return _state(self._stamps())

    def page(self) -> bytes:
        with self._lock:
            stamps = self._stamps()
            state = _state(stamps)
            if self._page[0] != state:
                readings = [self._reading(folder, stamp) for folder, stamp in stamps.items()]
                named = told_apart(readings, self.paths)
                self._page = (state, render(named, live=True).encode())
            return self._page[1]

    def _stamps(self) -> dict[Path, Stamp]:
        return {folder: _stamp(folder) for folder in all_run_folders(self.paths)}

    def _reading(self, folder: Path, stamp: Stamp) -> Reading:
        """Runs that are done need not be read again."""
        known = self._read.get(folder)
        if known is None or known[0] != stamp:
            known = (stamp, read_run(folder))
            self._read[folder] = known
        return known[1]


def _stamp(folder: Path) -> Stamp:
    found = []
    for path in sorted([*folder.glob("*.*"), *folder.glob("analysis/*.json")]):
        try:
            status = path.stat()
        except FileNotFoundError:  # one that was only there to be renamed
            continue
        found.append((path.name, status.st_size, status.st_mtime_ns))
    return tuple(found)


def _state(stamps: dict[Path, Stamp]) -> str:
    return blake2b(repr(stamps).encode(), digest_size=8).hexdigest()


class Server(ThreadingHTTPServer):
    """Two addresses: the page, and whether there is a newer one."""

    daemon_threads = True

    def __init__(self, followed: Followed, port: int = 0) -> None:
        self.followed = followed
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"cannot serve on port {port}: {error}; choose another --port, or 0 for any"
            ) from None

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader who leaves before the answer is written is nothing to report."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:  # the name that http.server calls
        # Another site may have its own name lead here, and so read what only we may read.
        host = self.headers.get("Host", "").rpartition(":")[0]
        if host not in (LOOPBACK, "localhost"):
            self.send_error(HTTPStatus.FORBIDDEN)
        elif self.path == "/":
            self._answer(self.server.followed.page(), "text/html; charset=utf-8")
        elif self.path == "/state":
            self._answer(self.server.followed.state().encode(), "text/plain")
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody wants a line for every look."""
