"""What a client keeps of a session, on its disk."""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedwsq.core.errors import MessageError
from fedwsq.core.files import write_atomically
from fedwsq.secure.member import Memory, Secrets
from fedwsq.secure.session import Session, set_digest
from fedwsq.secure.spoken import read_keys, say_keys


class Vault:
    """`folder` holds the secrets of a client's last session, and what it has consented to in each
    run; `promises` what it has ever consented to, whatever run it was in.
    """

    def __init__(self, folder: Path, promises: Path) -> None:
        self.folder = folder
        self.promises = promises

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone with it: two processes that are asked at once would both say yes."""
        self.promises.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(self.promises / "lock", "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def load(self, session: Session) -> Memory | None:
        """What was kept of this very session; None if it is new here."""
        kept = _read(self.folder / "session.json")
        if kept is None or kept["session"] != session.digest.hex():
            return None
        return Memory(
            kept["client"],
            bytes.fromhex(kept["seal"]),
            [Secrets(bytes.fromhex(pair), bytes.fromhex(own)) for pair, own in kept["secrets"]],
            {int(peer): read_keys(keys) for peer, keys in kept["peers"].items()},
            {int(peer): bytes.fromhex(sealed) for peer, sealed in kept["sealed"].items()},
            bytes.fromhex(kept["own_shares"]),
            {int(peer): bytes.fromhex(sealed) for peer, sealed in kept["sent"].items()},
            {int(ballot): clients for ballot, clients in kept["consented"].items()},
            {int(ballot): told for ballot, told in kept["told"].items()},
            {int(ballot): cast for ballot, cast in kept["cast"].items()},
            kept["training"],
        )

    def save(self, session: Session, memory: Memory) -> None:
        kept = {
            "session": session.digest.hex(),
            "client": memory.client,
            "seal": memory.seal.hex(),
            "secrets": [(each.pair.hex(), each.own.hex()) for each in memory.secrets],
            "peers": {peer: say_keys(keys) for peer, keys in memory.peers.items()},
            "sealed": {peer: sealed.hex() for peer, sealed in memory.sealed.items()},
            "own_shares": memory.own_shares.hex(),
            "sent": {peer: sealed.hex() for peer, sealed in memory.sent.items()},
            "consented": memory.consented,
            "told": memory.told,
            "cast": memory.cast,
            "training": memory.training,
        }
        _write(self.folder / "session.json", kept)

    def promise(self, session: Session, ballot: int, memory: Memory) -> None:
        """Remember for good which set this round's sum is unmasked for.

        A round that is run again trains to the same update: two sums that differ by one client
        would show what that client sent. So would the same plan begun anew, as another run.
        """
        asked = set_digest(memory.consented[ballot])
        together = "together they would give a client away"
        in_run = self.folder / f"consents-{session.run.hex()}.json"
        if not _keep(in_run, f"{session.round}/{ballot}", asked):
            raise MessageError(
                f"asked to unmask another set of clients in round {session.round} than before; "
                f"{together}"
            )
        if not _keep(self.promises / "consents.json", f"{memory.training}/{ballot}", asked):
            raise MessageError(
                f"asked to unmask another set of clients in round {session.round} than in an "
                f"earlier run with the same model and seed; {together}: choose another seed"
            )


def _keep(path: Path, key: str, value: str) -> bool:
    """Write it down, unless something else stands there."""
    kept: dict[str, str] = _read(path) or {}
    if kept.setdefault(key, value) != value:
        return False
    _write(path, kept)
    return True


def _read(path: Path) -> Any:
    if not path.exists():
        return None
    return json.loads(path.read_bytes())


def _write(path: Path, said: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(path, json.dumps(said).encode())
