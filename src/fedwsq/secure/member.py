"""A client's side of a session. What it must remember between phases is in `Memory`."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from Crypto.Protocol.SecretSharing import Shamir

from fedwsq.core.errors import MessageError
from fedwsq.secure.keys import (
    SEED_BYTES,
    Exchange,
    Identity,
    Roster,
    derive_key,
    require_signature,
    seal,
    unseal,
)
from fedwsq.secure.ring import Layout, Words, add, mask, reduced, words_digest
from fedwsq.secure.session import Session, set_digest

PAIR = b"pair"  # purpose of the keys behind masks that two clients share
SEAL = b"seal"  # and of those that shares travel under


class Poll(NamedTuple):
    """One ballot of a session: which, and what stands for all that it is cast on."""

    number: int
    told: str = ""


@dataclass(frozen=True)
class PublicKeys:
    """What a client shows of its secrets, signed with its identity."""

    seal: bytes
    pairs: tuple[bytes, ...]  # one for each ballot
    commitments: tuple[bytes, ...]  # to each ballot's own mask
    signature: bytes = b""

    def signed(self, session: Session, client: int) -> bytes:
        """What the signature is under."""
        shown = [self.seal.hex(), *(each.hex() for each in (*self.pairs, *self.commitments))]
        return session.about("keys", client, shown)


@dataclass(frozen=True)
class Secrets:
    """Of one ballot: the seed of the pairs' key and the seed of the own mask."""

    pair: bytes
    own: bytes


@dataclass(frozen=True)
class Reveal:
    """Shares of others' secrets: of the masks of those who voted, of the keys of who did not."""

    own: Mapping[int, bytes]
    pair: Mapping[int, bytes]


@dataclass
class Memory:
    """What a client keeps through a session, on its disk: a phase repeated gives the same answer,
    and no second set of clients is ever unmasked.
    """

    client: int
    seal: bytes
    secrets: list[Secrets]
    peers: dict[int, PublicKeys] = field(default_factory=dict)
    sealed: dict[int, bytes] = field(default_factory=dict)  # from whom, shares for this client
    own_shares: bytes = b""
    sent: dict[int, bytes] = field(default_factory=dict)  # for whom, shares of this client
    consented: dict[int, list[int]] = field(default_factory=dict)  # ballot -> the set it signed
    told: dict[int, str] = field(default_factory=dict)  # ballot -> digest of what it was cast on
    cast: dict[int, str] = field(default_factory=dict)  # ballot -> digest of what was cast
    training: str = ""  # stands for all that this round's update follows from


def own_key(seed: bytes) -> bytes:
    """The key of a client's own mask."""
    return derive_key(seed, b"own")


def commitment(seed: bytes) -> bytes:
    """Tells whether a seed was put together from the right shares, and nothing else."""
    return derive_key(seed, b"commitment")


def consent_text(session: Session, ballot: int, clients: Collection[int], told: str) -> bytes:
    """What is signed before a set of clients is unmasked.

    `told` stands for all that the server said before they cast their ballots: who was told
    otherwise is noticed here. That it is in no sum, though it need not sign, is up to `pair_key`.
    """
    return session.about("consent", ballot, set_digest(list(clients)), told)


@dataclass(frozen=True)
class Member:
    """One client in one session. Raises `MessageError` for whatever the protocol forbids."""

    session: Session
    client: int
    identity: Identity
    roster: Roster

    def begin(self) -> Memory:
        """Fresh secrets, from the operating system and never from a run's seed."""
        secrets = [
            Secrets(os.urandom(SEED_BYTES), os.urandom(SEED_BYTES))
            for _ in range(self.session.ballots)
        ]
        return Memory(self.client, os.urandom(SEED_BYTES), secrets)

    def keys(self, memory: Memory) -> PublicKeys:
        keys = PublicKeys(
            Exchange(memory.seal, SEAL).public,
            tuple(Exchange(each.pair, PAIR).public for each in memory.secrets),
            tuple(commitment(each.own) for each in memory.secrets),
        )
        signature = self.identity.sign(keys.signed(self.session, self.client))
        return PublicKeys(keys.seal, keys.pairs, keys.commitments, signature)

    def shares(self, memory: Memory, keys: Mapping[int, PublicKeys]) -> dict[int, bytes]:
        """Shares of every secret, sealed for each neighbour that showed its keys.

        Asked again, a client gives the same: new ones would be sealed under the same keys.
        """
        circle = self.session.circle(self.client)
        peers = {each: keys[each] for each in circle if each in keys and each != self.client}
        self._require_enough([self.client, *peers], "showed their keys")
        if memory.sent:
            if peers != memory.peers:
                raise MessageError("other keys than those that came before in this session")
            return memory.sent
        for peer, shown in peers.items():
            self._require_keys(peer, shown)
        memory.peers = peers

        parts = self._split(memory.secrets)
        memory.own_shares = parts[self.client]
        sealed: dict[int, bytes] = {}
        for peer in peers:
            key = self._seal_key(memory, peer, self.client, peer)
            sealed[peer] = seal(key, parts[peer], self._about_shares(self.client, peer))
        memory.sent = sealed
        return sealed

    def hear(self, memory: Memory, number: int, told: str) -> None:
        """Keep what stands for all that a ballot is cast on; it is never cast on anything else."""
        if memory.told.setdefault(number, told) != told:
            raise MessageError("told otherwise than before of what this ballot is cast on")

    def ballot(
        self, memory: Memory, number: int, layout: Layout, words: Sequence[Words]
    ) -> list[Words]:
        """The integers under the masks of this ballot, and of no others: two that differ would
        show by how much.
        """
        peers = self._active(memory, number)
        # Others give a client's own mask out: those that it shares are all that hides its ballot.
        self._require_enough([self.client, *peers], "share masks with it")
        cast = words_digest(words)
        if memory.cast.setdefault(number, cast) != cast:
            raise MessageError("asked to cast another ballot under the masks of the one before")
        masked = [each.copy() for each in words]
        add(masked, mask(layout, own_key(memory.secrets[number].own)))
        pair = Exchange(memory.secrets[number].pair, PAIR)
        poll = Poll(number, memory.told.get(number, ""))
        for peer in peers:
            public = memory.peers[peer].pairs[number]
            key = pair_key(self.session, poll, pair, public, (self.client, peer))
            # One of the two adds what the other subtracts.
            add(masked, mask(layout, key), 1 if self.client < peer else -1)
        return reduced(layout, masked)

    def receive(self, memory: Memory, sealed: Mapping[int, bytes]) -> None:
        """Keep the shares that neighbours sent; with them masks may be agreed."""
        if memory.sealed and memory.sealed != dict(sealed):
            raise MessageError("other shares than those that came before in this session")
        unknown = sealed.keys() - memory.peers.keys()
        if unknown:
            raise MessageError(f"shares from {sorted(unknown)}, who showed no keys")
        self._require_enough([self.client, *sealed], "sent their shares")
        memory.sealed = dict(sealed)

    def consent(self, memory: Memory, number: int, clients: Sequence[int]) -> bytes:
        """Sign the set of clients that is to be unmasked: one set for each ballot, for good."""
        asked = sorted(clients)
        if number not in memory.cast:
            raise MessageError("asked to unmask a ballot that this client has not cast")
        if self.client not in asked:
            raise MessageError("asked to unmask a sum that this client is not part of")
        if not set(asked) <= set(self.session.cohort):
            raise MessageError("asked to unmask clients that are not in this session")
        self._require_enough(asked, "voted")
        if memory.consented.setdefault(number, asked) != asked:
            raise MessageError(
                f"asked to unmask another set of clients in round {self.session.round} than "
                "the one signed before; together they would give a client away"
            )
        return self.identity.sign(self._consent_text(memory, number, asked))

    def reveal(self, memory: Memory, number: int, signatures: Mapping[int, bytes]) -> Reveal:
        """Shares that unmask the set that enough neighbours signed."""
        if number not in memory.consented:
            raise MessageError("asked to unmask before any set of clients was signed")
        voted = memory.consented[number]
        circle = set(self.session.circle(self.client))
        signers = circle.intersection(signatures, voted)
        text = self._consent_text(memory, number, voted)
        for signer in signers:
            require_signature(self._identity(signer), signatures[signer], text, f"client {signer}")
        self._require_enough(signers, "signed the set")

        own: dict[int, bytes] = {}
        pair: dict[int, bytes] = {}
        for peer in [self.client, *self._active(memory, number)]:
            shares = self._shares_of(memory, peer, number)
            if peer in voted:
                own[peer] = shares.own
            else:
                pair[peer] = shares.pair
        return Reveal(own, pair)

    def _consent_text(self, memory: Memory, number: int, clients: Collection[int]) -> bytes:
        return consent_text(self.session, number, clients, memory.told.get(number, ""))

    def _active(self, memory: Memory, number: int) -> list[int]:
        """The neighbours that this ballot's pairs are with."""
        sharers = set(memory.sealed)
        if number:
            sharers &= set(memory.consented.get(number - 1, []))
        return sorted(sharers)

    def _split(self, secrets: Sequence[Secrets]) -> dict[int, bytes]:
        """All shares for each of the circle, side by side."""
        circle = self.session.circle(self.client)
        needed = self.session.needed(self.client)
        parts = dict.fromkeys(circle, b"")
        for each in secrets:
            for seed in (each.pair, each.own):
                split = Shamir.split(needed, len(circle), seed, ssss=False)
                for holder, (_, share) in zip(circle, split, strict=True):
                    parts[holder] += share
        return parts

    def _shares_of(self, memory: Memory, peer: int, number: int) -> Secrets:
        """This client's shares of a peer's secrets of one ballot."""
        text = memory.own_shares
        if peer != self.client:
            key = self._seal_key(memory, peer, peer, self.client)
            text = unseal(key, memory.sealed[peer], self._about_shares(peer, self.client))
        if len(text) != 2 * SEED_BYTES * self.session.ballots:
            raise MessageError(f"client {peer} sent shares of another length")
        at = 2 * SEED_BYTES * number
        middle = at + SEED_BYTES
        return Secrets(text[at:middle], text[middle : middle + SEED_BYTES])

    def _seal_key(self, memory: Memory, peer: int, sender: int, receiver: int) -> bytes:
        agreed = Exchange(memory.seal, SEAL).agree(memory.peers[peer].seal)
        return derive_key(agreed, self._about_shares(sender, receiver))

    def _about_shares(self, sender: int, receiver: int) -> bytes:
        return self.session.about("shares", sender, receiver)

    def _require_keys(self, peer: int, shown: PublicKeys) -> None:
        if len(shown.pairs) != self.session.ballots or len(shown.commitments) != len(shown.pairs):
            raise MessageError(f"client {peer} showed keys for another number of ballots")
        text = shown.signed(self.session, peer)
        require_signature(self._identity(peer), shown.signature, text, f"client {peer}")

    def _require_enough(self, present: Collection[int], did: str) -> None:
        circle = self.session.circle(self.client)
        there = len(set(circle).intersection(present))
        needed = self.session.needed(self.client)
        if there < needed:
            raise MessageError(
                f"only {there} of the {len(circle)} clients around client {self.client} {did}; "
                f"{needed} are needed"
            )

    def _identity(self, client: int) -> bytes:
        if client not in self.roster:
            raise MessageError(f"client {client} is not in this client's roster")
        return self.roster[client]


def pair_key(
    session: Session, poll: Poll, mine: Exchange, public: bytes, clients: tuple[int, int]
) -> bytes:
    """The key of the mask that these two clients share in one ballot.

    Two that were told different things have two keys, and masks that do not cancel: a server cannot
    train one client on another model than the rest and find its update in their sum (Pasquini et
    al., 2022). Nor do masks with two clients cancel where one shows the other's key for its own.
    """
    about = session.about("mask", poll.number, poll.told, sorted(clients))
    return derive_key(mine.agree(public), about)
