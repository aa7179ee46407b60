"""Who is who, and what two clients agree on without the server.

An identity is made once and lasts; its public half reaches the other clients outside the
federation, in a roster, so that the server cannot put its own in its place.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypeAlias

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedwsq.core.errors import ConfigError, MessageError
from fedwsq.core.files import write_atomically

SEED_BYTES = 16  # what can be shared; every key is derived from a seed
KEY_BYTES = 32
MAX_ROSTER_BYTES = 2**26
ROSTER = "roster.json"

Roster: TypeAlias = Mapping[int, bytes]  # client -> its public identity


@dataclass(frozen=True)
class Identity:
    """A client's long-lived key; `secret` never leaves its machine."""

    secret: bytes

    @property
    def public(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    def sign(self, text: bytes) -> bytes:
        return self._key.sign(text)

    @property
    def _key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.secret)


def make_identity() -> Identity:
    return Identity(os.urandom(KEY_BYTES))


def require_signature(public: bytes, signature: bytes, text: bytes, who: str) -> None:
    """`MessageError` unless `who` signed just this."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, text)
    except (InvalidSignature, ValueError):
        raise MessageError(f"the signature of {who} does not hold") from None


def derive_key(secret: bytes, purpose: bytes) -> bytes:
    """32 bytes for one purpose; of another purpose nothing can be told from them."""
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=b"fedwsq " + purpose).derive(secret)


@dataclass(frozen=True)
class Exchange:
    """One end of a key agreement, derived from a seed that can be shared."""

    seed: bytes
    purpose: bytes

    @property
    def public(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    def agree(self, public: bytes) -> bytes:
        """The secret that both ends have, and nobody else."""
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:  # of a small order, or not 32 bytes
            raise MessageError("a public key that nothing can be agreed with") from None

    @property
    def _key(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(derive_key(self.seed, self.purpose))


def seal(key: bytes, text: bytes, about: bytes) -> bytes:
    """Encrypt for whoever has the key, who must know what it is about."""
    # A nonce of zeros: a key seals one text.
    return ChaCha20Poly1305(key).encrypt(bytes(12), text, about)


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes:
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), sealed, about)
    except InvalidTag:
        raise MessageError("sealed shares that were damaged, or are not for this client") from None


def write_identity(path: Path, identity: Identity) -> None:
    """Readable by its owner alone, and never written over another."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(identity.secret.hex().encode() + b"\n")


def read_identity(path: Path) -> Identity:
    try:
        with open(path, "rb") as file:
            secret = bytes.fromhex(file.read(3 * KEY_BYTES).decode())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} is not an identity: {error}; make one with fedwsq deploy keys"
        ) from None
    if len(secret) != KEY_BYTES:
        raise ConfigError(f"{path} has {len(secret)} bytes, an identity has {KEY_BYTES}")
    return Identity(secret)


def write_roster(path: Path, roster: Roster) -> None:
    listed = {str(client): public.hex() for client, public in sorted(roster.items())}
    write_atomically(path, json.dumps(listed, indent=1).encode() + b"\n")


def read_roster(path: Path) -> dict[int, bytes]:
    """Every client's public identity, from a file that came past the server."""
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read(MAX_ROSTER_BYTES))
        roster = {int(client): bytes.fromhex(public) for client, public in found.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"{path} is not a roster: {error}; make one with fedwsq deploy keys"
        ) from None
    for client, public in roster.items():
        if len(public) != KEY_BYTES:
            raise ConfigError(f"{path}: client {client} has a key of {len(public)} bytes, not 32")
    if len(set(roster.values())) != len(roster):
        raise ConfigError(f"{path}: two clients have the same key; each needs its own")
    return roster


class Keyring(Protocol):
    """Whose identities a machine holds, and whom it knows."""

    @property
    def public(self) -> Roster: ...

    def identity(self, client: int) -> Identity: ...


@dataclass(frozen=True)
class FileKeys:
    """A folder with `roster.json`, everybody's public half, and `client-N.key` of whoever lives
    here.
    """

    folder: Path

    @cached_property
    def public(self) -> Roster:
        return read_roster(self.folder / ROSTER)

    def identity(self, client: int) -> Identity:
        path = self.folder / key_name(client)
        found = read_identity(path)
        if self.public.get(client) != found.public:
            raise ConfigError(
                f"{self.folder / ROSTER} has another key for client {client} than {path}; "
                "make both with fedwsq deploy keys"
            )
        return found


def key_name(client: int) -> str:
    return f"client-{client}.key"


def write_keys(folder: Path, clients: int) -> list[Path]:
    """An identity for each client in a folder of its own, with the roster of all."""
    identities = {client: make_identity() for client in range(clients)}
    roster = {client: each.public for client, each in identities.items()}
    made: list[Path] = []
    # All or none: keys of two rosters would know nothing of each other.
    for client in identities:
        home = folder / f"client-{client}"
        if (home / key_name(client)).exists():
            raise ConfigError(f"{home} has a key already; choose another folder, or remove it")
    for client, identity in identities.items():
        home = folder / f"client-{client}"
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_identity(home / key_name(client), identity)
        write_roster(home / ROSTER, roster)
        made.append(home)
    return made


class SimulatedKeys(Mapping[int, bytes]):
    """The identities of clients that all live here, derived from one secret in a file.

    Nothing is hidden from whoever runs a simulation; what travels is the same as between machines.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def public(self) -> Roster:
        return self

    def identity(self, client: int) -> Identity:
        return Identity(derive_key(self._secret, b"identity %d" % client))

    def __getitem__(self, client: int) -> bytes:
        return self.identity(client).public

    def __contains__(self, client: object) -> bool:
        return isinstance(client, int)

    def __iter__(self) -> Iterator[int]:
        return iter(())  # as many as there are numbers

    def __len__(self) -> int:
        return 0

    @cached_property
    def _secret(self) -> bytes:
        """Made by whichever worker comes first."""
        path = self.folder / "secret"
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        mine = self.folder / f"secret-{os.getpid()}"
        mine.write_bytes(os.urandom(KEY_BYTES))
        with contextlib.suppress(FileExistsError):
            os.link(mine, path)
        mine.unlink()
        return path.read_bytes()
