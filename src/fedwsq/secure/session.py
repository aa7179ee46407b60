"""What both sides know of a session before anything is said."""

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from fedwsq.core.errors import ConfigError

MIN_COHORT = 3  # of two, each knows the other's part of a sum
COMPLETE = 32  # up to so many clients everyone has everyone for a neighbour
NEIGHBOURS = 32  # of each client in a larger cohort, half of them before it and half behind


def threshold(members: int) -> int:
    """How many of them must remain: more than two thirds, so that no two disjoint sets can."""
    return 2 * members // 3 + 1


@dataclass(frozen=True)
class Session:
    """One round of one run, and who is in it. Whoever differs in any of it agrees on no key."""

    run: bytes
    round: int
    nonce: bytes  # of this attempt
    cohort: tuple[int, ...]  # ascending
    ballots: int = 1

    def __post_init__(self) -> None:
        if list(self.cohort) != sorted(set(self.cohort)):
            raise ConfigError("a cohort names each client once, in ascending order")
        if len(self.cohort) < MIN_COHORT:
            raise ConfigError(
                f"a secure sum needs at least {MIN_COHORT} clients a round, not "
                f"{len(self.cohort)}; raise clients_per_round"
            )

    @cached_property
    def digest(self) -> bytes:
        """Stands for all of it in whatever is signed, sealed or derived."""
        said = [self.run.hex(), self.round, self.nonce.hex(), list(self.cohort), self.ballots]
        return hashlib.blake2b(json.dumps(said).encode(), digest_size=32).digest()

    def about(self, *what: object) -> bytes:
        """One thing of this session, in bytes that no other thing has."""
        return json.dumps([self.digest.hex(), *what]).encode()

    def neighbours(self, client: int) -> list[int]:
        """Those whom a client shares masks and secrets with, in ascending order."""
        ring = self._ring
        if len(ring) <= COMPLETE + 1:
            return [each for each in self.cohort if each != client]
        at = self._places[client]
        near = [*range(-NEIGHBOURS // 2, 0), *range(1, NEIGHBOURS // 2 + 1)]
        return sorted(ring[(at + step) % len(ring)] for step in near)

    @cached_property
    def _ring(self) -> list[int]:
        """The cohort in a circle, in an order that nobody chose."""
        ring = list(self.cohort)
        random.Random(self.digest).shuffle(ring)
        return ring

    @cached_property
    def _places(self) -> dict[int, int]:
        return {client: at for at, client in enumerate(self._ring)}

    def circle(self, client: int) -> list[int]:
        """The neighbours and the client itself: who holds shares of its secrets."""
        return sorted([client, *self.neighbours(client)])

    def needed(self, client: int) -> int:
        """How many of a client's circle must be there, in every phase."""
        return threshold(len(self.circle(client)))


def set_digest(clients: Sequence[int]) -> str:
    """Stands for a set of clients in what is signed."""
    return hashlib.blake2b(json.dumps(sorted(clients)).encode(), digest_size=16).hexdigest()
