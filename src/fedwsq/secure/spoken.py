"""What both sides say in a session, as JSON. Whatever is read may come from anybody."""

from collections.abc import Mapping
from typing import Any

from fedwsq.core.errors import MessageError
from fedwsq.secure.keys import KEY_BYTES, SEED_BYTES
from fedwsq.secure.member import PublicKeys, Reveal

MAX_BALLOTS = 4
MAX_PEERS = 1024
SIGNATURE_BYTES = 64


def say_keys(keys: PublicKeys) -> dict[str, Any]:
    return {
        "seal": keys.seal.hex(),
        "pairs": [each.hex() for each in keys.pairs],
        "commitments": [each.hex() for each in keys.commitments],
        "signature": keys.signature.hex(),
    }


def read_keys(said: Any) -> PublicKeys:
    said = table(said)
    return PublicKeys(
        octets(said.get("seal"), KEY_BYTES),
        _several(said.get("pairs")),
        _several(said.get("commitments")),
        octets(said.get("signature"), SIGNATURE_BYTES),
    )


def say_reveal(reveal: Reveal) -> dict[str, Any]:
    return {"own": say_octets(reveal.own), "pair": say_octets(reveal.pair)}


def read_reveal(said: Any) -> Reveal:
    said = table(said)
    return Reveal(
        read_octets(said.get("own"), SEED_BYTES), read_octets(said.get("pair"), SEED_BYTES)
    )


def say_octets(by_client: Mapping[int, bytes]) -> dict[str, str]:
    return {str(client): each.hex() for client, each in by_client.items()}


def read_octets(said: Any, length: int | None = None) -> dict[int, bytes]:
    """Bytes by client; of just this length, if one is given."""
    return {client: octets(each, length) for client, each in by_client(said).items()}


def by_client(said: Any) -> dict[int, Any]:
    """A table whose keys are clients."""
    said = table(said)
    if len(said) > MAX_PEERS:
        raise MessageError(f"{len(said)} clients in a phase, at most {MAX_PEERS} are allowed")
    return {_client(key): value for key, value in said.items()}


def clients(said: Any) -> list[int]:
    """A list of clients, in ascending order."""
    if not isinstance(said, list) or not all(type(each) is int for each in said):
        raise MessageError("a phase names clients by a list of numbers")
    if said != sorted(set(said)) or len(said) > MAX_PEERS or any(each < 0 for each in said):
        raise MessageError("a phase names each client once, in ascending order")
    return said


def octets(said: Any, length: int | None = None) -> bytes:
    """Bytes from their hexadecimal text."""
    try:
        found = bytes.fromhex(said)
    except (TypeError, ValueError):
        raise MessageError("a phase has bytes as hexadecimal text") from None
    if length is not None and len(found) != length:
        raise MessageError(f"{len(found)} bytes in a phase where there must be {length}")
    return found


def table(said: Any) -> dict[str, Any]:
    if not isinstance(said, dict):
        raise MessageError("a phase is a table, as JSON has them")
    return said


def _several(said: Any) -> tuple[bytes, ...]:
    if not isinstance(said, list) or not 1 <= len(said) <= MAX_BALLOTS:
        raise MessageError("keys for a number of ballots that no session has")
    return tuple(octets(each, KEY_BYTES) for each in said)


def _client(key: str) -> int:
    if not key.isascii() or not key.isdigit() or len(key) > 19:
        raise MessageError(f"{key[:20]!r} in a phase is not the number of a client")
    return int(key)
