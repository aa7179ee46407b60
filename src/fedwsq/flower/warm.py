"""A process that stays up beside its SuperNode, with torch, model and data in memory.

Flower starts a process for each message. Ours hands the message on to this one, over a socket in a
folder that only this user can read, and starts it where it is not there. It ends with the SuperNode
and with the process that the SuperNode has for its tasks, or when nobody has asked for a while.

    python -m fedwsq.flower.warm SOCKET PIDFD PIDFD
"""

import hashlib
import json
import os
import select
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fedwsq.flower.plain import Config, Request, Response

IDLE_SECONDS = 1800.0
LENGTH = struct.Struct("<Q")


class SiteDied(RuntimeError):
    """The process beside the SuperNode is gone; asked again, it is started again."""


# The end of the message's own process: neither torch nor numpy is needed.


def ask(run: Config, node: Config, request: Request) -> Response:
    """Have the process beside this SuperNode answer; it is started where it is not there."""
    tasks = os.getppid()  # Flower's process that starts one for each message; a SuperNode's child
    supernode, _ = status(tasks)
    try:
        with connected(socket_path(tasks), [tasks, supernode]) as line:
            send(line, write_question(run, node, request))
            return read_answer(receive(line))
    except (EOFError, ConnectionError) as error:
        raise SiteDied("the process that holds this node's clients died") from error


def socket_path(tasks: int) -> Path:
    """The socket of the process for this SuperNode and this code, which sys.path stands for."""
    _, began = status(tasks)  # its number alone may have been another's
    words = json.dumps([tasks, began, sys.path])
    name = hashlib.blake2b(words.encode(), digest_size=12).hexdigest()
    folder = Path(tempfile.gettempdir(), f"fedwsq-{os.getuid()}")
    make_private(folder)
    return folder / name


def make_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) != 0o700:
        raise PermissionError(f"{folder} must be a folder of this user alone; remove it")


def leave(folder: Path) -> None:
    """Remove the folder of sockets, if this was the last one."""
    with suppress(OSError):  # it holds another, or is gone
        folder.rmdir()


def status(process: int) -> tuple[int, int]:
    """The parent of a process, and when it began."""
    # After the name in brackets, which may hold anything: state, parent, ...
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1]), int(fields[19])


def connected(path: Path, watched: Sequence[int]) -> socket.socket:
    line = socket.socket(socket.AF_UNIX)
    try:
        line.connect(str(path))
        return line
    except (FileNotFoundError, ConnectionRefusedError):
        path.unlink(missing_ok=True)  # of one that was killed
    try:
        process = start(path, watched)
    except ProcessLookupError:  # the SuperNode has ended
        leave(path.parent)
        raise
    while True:
        try:
            line.connect(str(path))
            return line
        except (FileNotFoundError, ConnectionRefusedError):
            if process.poll() is not None:
                leave(path.parent)
                raise SiteDied(f"it ended with exit status {process.returncode}") from None
            time.sleep(0.02)


def start(path: Path, watched: Sequence[int]) -> "subprocess.Popen[bytes]":
    # Descriptors and not numbers: they stand for these very processes, whatever comes after them.
    descriptors = [os.pidfd_open(process) for process in watched]
    words = [str(path), *map(str, descriptors)]
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "fedwsq.flower.warm", *words],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # Ctrl-C is for the SuperNode, which it ends with
        )
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


# The end that stays.


def main(path: Path, watched: Sequence[int]) -> None:
    line = socket.socket(socket.AF_UNIX)
    threading.Thread(target=end_with, args=(watched, path), daemon=True).start()
    bind(line, path)
    line.listen()
    line.settimeout(IDLE_SECONDS)
    try:
        while True:
            asking, _ = line.accept()
            with asking, suppress(EOFError, ConnectionError):  # who asked has gone
                answer(asking)
    except TimeoutError:
        pass
    finally:
        path.unlink(missing_ok=True)
        leave(path.parent)


def bind(line: socket.socket, path: Path) -> None:
    while True:
        make_private(path.parent)
        # Another SuperNode's may be the last one there, and leave at this very moment.
        with suppress(FileNotFoundError):
            line.bind(str(path))
            return


def answer(line: socket.socket) -> None:
    from fedwsq.flower.node import serve

    run, node, request = read_question(receive(line))
    send(line, write_answer(serve(run, node, request)))


def end_with(watched: Sequence[int], path: Path) -> None:
    """End when one of the processes behind the descriptors does, whatever is being done."""
    poll = select.poll()
    for descriptor in watched:
        poll.register(descriptor, select.POLLIN)
    poll.poll()
    path.unlink(missing_ok=True)
    leave(path.parent)
    os._exit(0)


# What the two say to each other: some JSON, then blobs.


def write_question(run: Config, node: Config, request: Request) -> list[bytes]:
    bodies = len(request.bodies)
    words = [dict(run), dict(node), bodies, list(request.on), request.format]
    return [json.dumps(words).encode(), *request.bodies, *request.heads]


def read_question(frames: Sequence[bytes]) -> tuple[Config, Config, Request]:
    run, node, bodies, on, format = json.loads(frames[0])
    request = Request(frames[1 : 1 + bodies], frames[1 + bodies :], on, format)
    return run, node, request


def write_answer(response: Response) -> list[bytes]:
    words = [list(response.reasons), list(response.clients)]
    return [json.dumps(words).encode(), *response.payloads]


def read_answer(frames: Sequence[bytes]) -> Response:
    reasons, clients = json.loads(frames[0])
    return Response(frames[1:], reasons, clients)


def send(line: socket.socket, frames: Sequence[bytes]) -> None:
    lengths = [len(frames), *map(len, frames)]
    line.sendall(b"".join(map(LENGTH.pack, lengths)))
    for frame in frames:
        line.sendall(frame)


def receive(line: socket.socket) -> list[bytes]:
    (count,) = LENGTH.unpack(exactly(line, LENGTH.size))
    lengths = [LENGTH.unpack(exactly(line, LENGTH.size))[0] for _ in range(count)]
    return [exactly(line, length) for length in lengths]


def exactly(line: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = line.recv(min(count - len(data), 2**20))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(word) for word in sys.argv[2:]])
