"""What clients have said in a round that counts, on disk.

A server that is killed in such a round must finish the attempt that it began: another one, with
other clients, would unmask a second sum. So what a closed phase brought is never asked for again.
"""

import hashlib
import json
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from fedwsq.core.files import write_atomically

DIGEST_BYTES = 16


class Journal:
    """Of one round: `about` is what makes it that round and no other.

    Without a folder nothing is kept, and a round that was cut short is begun anew.
    """

    def __init__(self, folder: Path | None, about: bytes) -> None:
        self.folder = None if folder is None else folder / "counting"
        self.nonce = self._attempt(_digest(about).hex())

    def phase(self, name: str, ask: Callable[[], dict[int, bytes]]) -> dict[int, bytes]:
        """What clients answered in this phase, now or before the server was killed."""
        if self.folder is None:
            return ask()
        path = self.folder / name
        if path.exists():
            found = _read(path.read_bytes())
            if found is not None:
                return found
        found = ask()
        write_atomically(path, _written(found))
        return found

    def _attempt(self, about: str) -> bytes:
        """The number that all messages of this attempt carry."""
        nonce = secrets.token_bytes(16)
        if self.folder is None:
            return nonce
        path = self.folder / "attempt.json"
        if path.exists():
            known = json.loads(path.read_bytes())
            if known["about"] == about:
                return bytes.fromhex(known["nonce"])
        if self.folder.exists():  # of another round, or of a server killed on this very page
            shutil.rmtree(self.folder)
        self.folder.mkdir()
        write_atomically(path, json.dumps({"about": about, "nonce": nonce.hex()}).encode())
        return nonce


def _digest(*parts: bytes | memoryview) -> bytes:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        digest.update(part)
    return digest.digest()


def _written(answers: dict[int, bytes]) -> bytes:
    """A line of JSON with clients and lengths, then the answers themselves, then a digest."""
    head = json.dumps([[client, len(answer)] for client, answer in answers.items()]).encode()
    parts = [head, b"\n", *answers.values()]
    return b"".join([*parts, _digest(*parts)])


def _read(data: bytes) -> dict[int, bytes] | None:
    """None for a file that is damaged."""
    whole = memoryview(data)  # of which parts are no copies
    if _digest(whole[:-DIGEST_BYTES]) != whole[-DIGEST_BYTES:]:
        return None
    at = data.index(b"\n")
    answers: dict[int, bytes] = {}
    lengths = json.loads(data[:at])
    at += 1
    for client, length in lengths:
        answers[client] = data[at : at + length]
        at += length
    return answers
