"""The server's side of a session: it routes what clients say, and learns a sum."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from Crypto.Protocol.SecretSharing import Shamir

from fedwsq.core.errors import MessageError
from fedwsq.secure.keys import SEED_BYTES, Exchange
from fedwsq.secure.member import PAIR, Poll, PublicKeys, Reveal, commitment, own_key, pair_key
from fedwsq.secure.ring import Layout, Words, add, mask, reduced, zeros
from fedwsq.secure.session import Session


class TooFew(MessageError):
    """So many dropped out that the sum stays masked; the round is empty."""


@dataclass
class Teller:
    """Counts what clients cast. Each method takes what came back of one phase; who is missing from
    it dropped out.
    """

    session: Session
    keys: dict[int, PublicKeys] = field(default_factory=dict)
    active: list[int] = field(default_factory=list)  # whose ballots may still come

    def take_keys(self, keys: Mapping[int, PublicKeys]) -> None:
        self.keys = dict(keys)
        self._go_on(keys, "showed their keys")

    def route(self, shares: Mapping[int, Mapping[int, bytes]]) -> dict[int, dict[int, bytes]]:
        """Sender -> receiver -> shares to receiver -> sender -> shares."""
        self._go_on(shares, "sent their shares")
        routed: dict[int, dict[int, bytes]] = {client: {} for client in self.active}
        for sender in self.active:
            # Whoever else got shares would refuse them, and all that came with them.
            for receiver in self.session.neighbours(sender):
                if receiver in routed and receiver in shares[sender]:
                    routed[receiver][sender] = shares[sender][receiver]
        return routed

    def count(
        self,
        poll: Poll,
        layout: Layout,
        ballots: Mapping[int, Sequence[Words]],
        reveals: Mapping[int, Reveal],
    ) -> list[Words]:
        """The sum of these ballots, from the shares that clients revealed."""
        before = self.active
        self._go_on(ballots, "voted")
        voted = self.active
        total = zeros(layout)
        for client in voted:
            add(total, ballots[client])
            seed = self._own_seed(client, poll.number, reveals)
            add(total, mask(layout, own_key(seed)), -1)
        for client in set(before) - set(voted):
            self._cancel_pairs(client, poll, layout, total, reveals)
        return reduced(layout, total)

    def _cancel_pairs(
        self,
        client: int,
        poll: Poll,
        layout: Layout,
        total: list[Words],
        reveals: Mapping[int, Reveal],
    ) -> None:
        """Take back the masks that others share with one who did not vote."""
        shares = {who: said.pair[client] for who, said in reveals.items() if client in said.pair}
        pair = Exchange(self._combine(client, shares), PAIR)
        if pair.public != self.keys[client].pairs[poll.number]:
            raise MessageError(f"the shares of client {client}'s key do not fit together")
        for peer in self.session.neighbours(client):
            if peer not in self.active:
                continue
            public = self.keys[peer].pairs[poll.number]
            key = pair_key(self.session, poll, pair, public, (client, peer))
            # The peer added it where its number is the lower one.
            add(total, mask(layout, key), -1 if peer < client else 1)

    def _own_seed(self, client: int, number: int, reveals: Mapping[int, Reveal]) -> bytes:
        shares = {who: said.own[client] for who, said in reveals.items() if client in said.own}
        seed = self._combine(client, shares)
        if commitment(seed) != self.keys[client].commitments[number]:
            raise MessageError(f"the shares of client {client}'s mask do not fit together")
        return seed

    def _combine(self, client: int, shares: Mapping[int, bytes]) -> bytes:
        """A secret from shares of those who hold any; their places are theirs in the circle."""
        circle = self.session.circle(client)
        placed = [
            (at, shares[holder])
            for at, holder in enumerate(circle, 1)
            if holder in shares and len(shares[holder]) == SEED_BYTES
        ]
        needed = self.session.needed(client)
        if len(placed) < needed:
            raise TooFew(
                f"only {len(placed)} of {len(circle)} clients hold out shares of client {client}; "
                f"{needed} are needed"
            )
        return Shamir.combine(placed[:needed], ssss=False)

    def _go_on(self, present: Collection[int], did: str) -> None:
        """Only with those present, and only if each has enough of its circle left."""
        there = set(present)
        if self.active:
            there &= set(self.active)
        for client in self.active or sorted(there):
            left = len(there.intersection(self.session.circle(client)))
            needed = self.session.needed(client)
            if left < needed:
                raise TooFew(
                    f"only {left} of the clients around client {client} {did}; {needed} are needed"
                )
        self.active = sorted(there)
