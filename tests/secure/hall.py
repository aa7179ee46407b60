"""A cohort in one place, which goes through whole sessions."""

import numpy as np

from fedwsq.secure.keys import make_identity
from fedwsq.secure.member import Member, Poll
from fedwsq.secure.ring import Part
from fedwsq.secure.session import Session
from fedwsq.secure.teller import Teller

LAYOUT = [Part(1000, 3), Part(7, 32)]


class Hall:
    """A cohort with its identities, and what each would vote in each of two ballots."""

    def __init__(self, cohort, ballots=2):
        self.session = Session(bytes(16), 3, b"n" * 16, tuple(cohort), ballots)
        identities = {client: make_identity() for client in cohort}
        roster = {client: each.public for client, each in identities.items()}
        self.members = {
            client: Member(self.session, client, identities[client], roster) for client in cohort
        }
        self.memories = {client: member.begin() for client, member in self.members.items()}
        draw = np.random.default_rng(0)
        self.votes = {
            client: [
                [
                    draw.integers(0, 2, 1000).astype(np.uint8),
                    draw.integers(0, 2**20, 7).astype(np.uint32),
                ]
                for _ in range(ballots)
            ]
            for client in cohort
        }

    def each(self, clients, do):
        return {c: do(self.members[c], self.memories[c]) for c in clients}

    def run(self, gone=None):
        """The sums of all ballots; `gone` has who drops out before which phase."""
        gone = gone or {}
        there = list(self.session.cohort)

        def leave(phase):
            return [client for client in there if client not in gone.get(phase, ())]

        teller = Teller(self.session)
        there = leave("keys")
        teller.take_keys(self.each(there, lambda member, memory: member.keys(memory)))
        there = leave("shares")
        sent = self.each(there, lambda member, memory: member.shares(memory, teller.keys))
        routed = teller.route(sent)
        for client in there:
            self.members[client].receive(self.memories[client], routed[client])

        sums = []
        for number in range(self.session.ballots):
            there = leave(f"ballot {number}")
            ballots = {
                c: self.members[c].ballot(self.memories[c], number, LAYOUT, self.votes[c][number])
                for c in there
            }
            voted = list(there)
            there = leave(f"consent {number}")
            signed = {c: self.members[c].consent(self.memories[c], number, voted) for c in there}
            there = leave(f"reveal {number}")
            reveals = {c: self.members[c].reveal(self.memories[c], number, signed) for c in there}
            sums.append(teller.count(Poll(number), LAYOUT, ballots, reveals))
        return sums

    def plain(self, clients, number):
        bits = [sum(self.votes[c][number][0].astype(int) for c in clients) % 8]
        rest = [sum(self.votes[c][number][1].astype(int) for c in clients) % 2**32]
        return [*bits, *rest]


def same(found, expected):
    return all(np.array_equal(mine, other) for mine, other in zip(found, expected, strict=True))
