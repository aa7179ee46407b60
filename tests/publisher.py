"""A publisher on the loopback interface with every bad habit of a server, and a data set.

Run as a program it is `fedwsq` with that data set in its table:
`python publisher.py fetch tiny --url ...`.
"""

import gzip
import hashlib
import io
import random
import ssl
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedwsq.data.sources import SOURCES, File, Source

CONTENT = {"a.bin": random.Random(0).randbytes(100_000), "deep/b.txt": b"two\n"}


def tar_gz(members: dict[str, bytes]) -> bytes:
    """An archive of plain files, the same in every process."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return gzip.compress(out.getvalue(), mtime=0)


def source_of(*bodies: bytes, names: tuple[str, ...] = ("tiny.tar.gz",), **changes: Any) -> Source:
    """A source of files with these bytes."""
    files = tuple(
        File(name, len(body), hashlib.md5(body).hexdigest())
        for name, body in zip(names, bodies, strict=True)
    )
    plain = {
        "title": "Tiny",
        "url": "http://127.0.0.1:9/",
        "folder": "tiny-set",
        "unpacked_bytes": 1_000_000,
    }
    return Source(files=files, terms="none", cite="nobody", **(plain | changes))


BODY = tar_gz({f"tiny-set/{name}": content for name, content in CONTENT.items()})
TINY = source_of(BODY)


class Exchange(BaseHTTPRequestHandler):
    """One request, told to the publisher, answered by the next answer in its script."""

    server: "Server"

    def do_GET(self) -> None:
        publisher = self.server.publisher
        publisher.requests.append({"path": self.path, **self.headers})
        answer = publisher.script.pop(0) if publisher.script else serve()
        answer(self, publisher)

    def begin(self, status: int, **headers: object) -> None:
        """Status and headers; underscores stand for dashes, None leaves one out."""
        self.send_response(status, "\x1b[31mOK")  # a reason phrase that must not reach a terminal
        for name, value in headers.items():
            if value is not None:
                self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Silent."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    publisher: "Publisher"


class Publisher:
    """What is published, the next answers, and what was asked."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.files = {"/tiny.tar.gz": BODY}
        self.etag: str | None = '"one"'
        self.script: list[Answer] = []
        self.requests: list[dict[str, str]] = []
        self.released = threading.Event()

    @property
    def ranges(self) -> list[str | None]:
        """The Range header of each request."""
        return [request.get("Range") for request in self.requests]


Answer = Callable[[Exchange, Publisher], None]


@contextmanager
def publishing(certificate: Path | None = None) -> Iterator[Publisher]:
    """A publisher, gone in the end; on https if it has a certificate."""
    server = Server(("127.0.0.1", 0), Exchange)
    server.publisher = publisher = Publisher(
        f"http{'s' if certificate else ''}://127.0.0.1:{server.server_port}/"
    )
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield publisher
    finally:
        publisher.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


def serve(
    *, most: int | None = None, ranges: bool = True, stall: bool = False, lie: int = 0
) -> Answer:
    """As it should be; or `most` bytes, no ranges, silence at the end, a length `lie` bytes off."""

    def answer(exchange: Exchange, publisher: Publisher) -> None:
        body = publisher.files[exchange.path]
        asked = exchange.headers.get("Range")
        start = 0
        if asked and ranges and exchange.headers.get("If-Range") in (None, publisher.etag):
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
        if start >= len(body):
            exchange.begin(416, Content_Range=f"bytes */{len(body)}")
            return
        headers = {"ETag": publisher.etag, "Content_Length": len(body) - start + lie}
        if start:
            headers["Content_Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
            exchange.begin(206, **headers)
        else:
            exchange.begin(200, **headers)
        exchange.wfile.write(body[start:][:most])
        if stall:
            exchange.wfile.flush()
            publisher.released.wait()

    return answer


def status(code: int) -> Answer:
    """That answer and nothing behind it."""
    return lambda exchange, publisher: exchange.begin(code, Content_Length=0)


def redirect(location: str, code: int = 302) -> Answer:
    """Go there instead."""
    return lambda exchange, publisher: exchange.begin(code, Location=location, Content_Length=0)


def raw(code: int, body: bytes = b"", **headers: object) -> Answer:
    """Exactly that."""

    def answer(exchange: Exchange, publisher: Publisher) -> None:
        exchange.begin(code, **headers)
        exchange.wfile.write(body)

    return answer


if __name__ == "__main__":
    from fedwsq.cli import main

    SOURCES["tiny"] = TINY
    sys.exit(main(sys.argv[1:]))
