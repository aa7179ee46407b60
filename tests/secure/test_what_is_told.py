"""Whether anything that a client says tells which of two very different updates it had.

A classifier is trained on the bytes of many sessions and asked about others. If nothing is told,
each of its answers is right with a chance of one half whatever it has learned, so the number of
right ones is binomial: the bound is left by chance less than once in a million times.
"""

from math import comb

import numpy as np
import pytest
import torch
from sklearn.feature_selection import SelectKBest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

pytest.importorskip("cryptography", reason="needs the extra: pip install 'fedwsq[secure]'")
pytest.importorskip("Crypto", reason="needs the extra: pip install 'fedwsq[secure]'")

from fedwsq.federation.simulation import simulate
from fedwsq.federation.tally import Tally
from fedwsq.secure import member as member_module
from fedwsq.secure.keys import make_identity
from fedwsq.secure.member import Member, own_key
from fedwsq.secure.ring import add, mask, pack, reduced
from fedwsq.secure.session import Session
from fedwsq.secure.teller import Teller
from harness import tiny

COHORT = (2, 3, 5)
WHO = 3  # adds the mask that it shares with one, and subtracts the other's
BALLOTS = 2
LEARNED = 60  # sessions to learn from
ASKED = 60  # sessions to tell apart
FALSE_ALARM = 1e-6


def bound(asked, chance):
    """The least number of right answers that guessing reaches with less than half this chance."""
    tail = 0.0
    for right in range(asked, -1, -1):
        tail += comb(asked, right) / 2**asked
        if tail >= chance / 2:
            return right + 1
    raise AssertionError


def apart(bits, which):
    """How far the mean of each bit is from one of the two to the other."""
    return np.abs(bits[which == 1].mean(0) - bits[which == 0].mean(0))


def two_updates(tally):
    """All down by a little, with hardly a loss, and all up by a lot: the words of both ballots."""
    shapes = tally.line.schema.shapes
    draw = torch.Generator().manual_seed(0)
    grain = {name: torch.rand(shape, generator=draw) for name, shape in shapes.items()}
    scales = dict.fromkeys(shapes, 0.01)
    found = []
    for size, loss in ((-1e-3, 0.01), (1.0, 90.0)):
        update = {name: size * (1 + x) for name, x in grain.items()}
        found.append([tally.spreads(update), tally.votes(update, scales, loss).words])
    return found


class Sessions:
    """Whole sessions of three, of which one client is listened to."""

    def __init__(self):
        uplink = {"codec": "danuq", "bits": 1, "secure": True}
        plan = tiny(uplink=uplink, aggregation="uniform")
        tally = Tally(simulate(plan).charter.uplink, len(COHORT))
        self.layouts = [tally.spread_layout, tally.vote_layout]
        self.updates = two_updates(tally)
        self.identities = {client: make_identity() for client in COHORT}

    def heard(self, number, which):
        """All that the server has of a client in the end, as bits."""
        roster = {client: each.public for client, each in self.identities.items()}
        session = Session(bytes(16), number, bytes(16), COHORT, BALLOTS)
        members = {c: Member(session, c, self.identities[c], roster) for c in COHORT}
        memories = {c: members[c].begin() for c in COHORT}
        teller = Teller(session)
        teller.take_keys({c: members[c].keys(memories[c]) for c in COHORT})
        sent = {c: members[c].shares(memories[c], teller.keys) for c in COHORT}
        routed = teller.route(sent)
        for client in COHORT:
            members[client].receive(memories[client], routed[client])

        keys = teller.keys[WHO]
        said = [keys.seal, *keys.pairs, *keys.commitments, keys.signature, *sent[WHO].values()]
        for ballot, layout in enumerate(self.layouts):
            words = self.updates[which][ballot]
            casts = {c: members[c].ballot(memories[c], ballot, layout, words) for c in COHORT}
            cast = casts[WHO]
            signed = {c: members[c].consent(memories[c], ballot, COHORT) for c in COHORT}
            reveals = {c: members[c].reveal(memories[c], ballot, signed) for c in COHORT}
            said += [pack(layout, cast), signed[WHO], *reveals[WHO].own.values()]
            # The others hand out its own mask: what it shares with them is all that is left.
            seed = teller._own_seed(WHO, ballot, reveals)
            add(cast, member_module.mask(layout, own_key(seed)), -1)
            said.append(pack(layout, reduced(layout, cast)))
        return np.unpackbits(np.frombuffer(b"".join(said), np.uint8))

    def told(self):
        """How many of the sessions asked about a classifier gets right."""
        draw = np.random.default_rng(0)
        which = draw.permutation(np.arange(LEARNED + ASKED) % 2)
        bits = np.stack([self.heard(number, each) for number, each in enumerate(which)])
        bits = bits.astype(np.float32)
        # A leak may be in few of them: most bits are noise in any case.
        classifier = make_pipeline(SelectKBest(apart, k=500), LogisticRegression())
        classifier.fit(bits[:LEARNED], which[:LEARNED])
        return int((classifier.predict(bits[LEARNED:]) == which[LEARNED:]).sum())


def test_the_bound_is_that_of_a_coin():
    reaches = lambda right: sum(comb(60, each) for each in range(right, 61)) / 2**60
    limit = bound(60, FALSE_ALARM)
    assert limit == 49
    assert reaches(limit) < FALSE_ALARM / 2 < reaches(limit - 1)


def test_two_very_different_updates_of_a_client_look_alike():
    right = Sessions().told()
    limit = bound(ASKED, FALSE_ALARM)
    assert ASKED - limit < right < limit


def unmasked(layout, key):
    return [np.zeros_like(each) for each in mask(layout, key)]


def one_for_all(layout, key):
    """The same mask in every session."""
    return mask(layout, bytes(32))


def too_narrow(layout, key):
    """The highest bit is left bare."""
    return [
        each & part.dtype.type(2 ** (part.bits - 1) - 1)
        for part, each in zip(layout, mask(layout, key), strict=True)
    ]


def all_but_the_last(layout, key):
    """The last tensor, or the two figures beside the votes, go without."""
    *most, last = mask(layout, key)
    return [*most, np.zeros_like(last)]


@pytest.mark.parametrize("broken", [unmasked, one_for_all, too_narrow, all_but_the_last])
def test_a_mask_that_is_broken_is_found_by_the_same_means(broken, monkeypatch):
    monkeypatch.setattr(member_module, "mask", broken)
    assert Sessions().told() >= bound(ASKED, FALSE_ALARM)
