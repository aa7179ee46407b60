"""What a client keeps of a session, on its disk."""

import json
from pathlib import Path
from typing import Any

from fedwsq.core.errors import MessageError
from fedwsq.core.files import write_atomically
from fedwsq.secure.member import Memory, Secrets
from fedwsq.secure.session import Session, set_digest
from fedwsq.secure.spoken import read_keys, say_keys


class Vault:
    """`folder` holds the secrets of a client's last session, and what it has ever consented to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, session: Session) -> Memory | None:
        """What was kept of this very session; None if it is new here."""
        kept = self._read("session.json")
        if kept is None or kept["session"] != session.digest.hex():
            return None
        return Memory(
            kept["client"],
            bytes.fromhex(kept["seal"]),
            [Secrets(bytes.fromhex(pair), bytes.fromhex(own)) for pair, own in kept["secrets"]],
            {int(peer): read_keys(keys) for peer, keys in kept["peers"].items()},
            {int(peer): bytes.fromhex(sealed) for peer, sealed in kept["sealed"].items()},
            bytes.fromhex(kept["own_shares"]),
            {int(ballot): clients for ballot, clients in kept["consented"].items()},
            {int(ballot): told for ballot, told in kept["told"].items()},
            {int(ballot): cast for ballot, cast in kept["cast"].items()},
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
            "consented": memory.consented,
            "told": memory.told,
            "cast": memory.cast,
        }
        self._write("session.json", kept)

    def promise(self, session: Session, ballot: int, clients: list[int]) -> None:
        """Remember for good which set this round's sum is unmasked for.

        A round that is run again trains to the same update: two sums that differ by one client
        would show what that client sent.
        """
        promised: dict[str, str] = self._read(f"consents-{session.run.hex()}.json") or {}
        asked = set_digest(clients)
        before = promised.setdefault(f"{session.round}/{ballot}", asked)
        if before != asked:
            raise MessageError(
                f"asked to unmask another set of clients in round {session.round} than before; "
                "together they would give a client away"
            )
        self._write(f"consents-{session.run.hex()}.json", promised)

    def _read(self, name: str) -> Any:
        path = self.folder / name
        if not path.exists():
            return None
        return json.loads(path.read_bytes())

    def _write(self, name: str, said: object) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(self.folder / name, json.dumps(said).encode())
