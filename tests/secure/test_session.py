"""Whole sessions, with clients that drop out in every phase, against plain sums."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the extra: pip install 'fedwsq[secure]'")
pytest.importorskip("Crypto", reason="needs the extra: pip install 'fedwsq[secure]'")

from hall import LAYOUT, Hall, same

from fedwsq.core.errors import ConfigError, MessageError
from fedwsq.secure.member import Member
from fedwsq.secure.ring import Part, pack, unpack
from fedwsq.secure.session import Session, threshold
from fedwsq.secure.teller import Teller


def test_the_sum_is_that_of_the_parts():
    hall = Hall([2, 3, 5, 8, 13])
    sums = hall.run()
    assert same(sums[0], hall.plain(hall.session.cohort, 0))
    assert same(sums[1], hall.plain(hall.session.cohort, 1))


@pytest.mark.parametrize(
    ("phase", "in_the_sums"),
    [
        ("keys", ("without", "without")),
        ("shares", ("without", "without")),
        ("ballot 0", ("without", "without")),
        ("consent 0", ("with", None)),
        ("reveal 0", ("with", None)),
        ("ballot 1", ("with", "without")),
        ("consent 1", ("with", "with")),
        ("reveal 1", ("with", "with")),
    ],
)
def test_one_of_five_may_drop_out_in_any_phase(phase, in_the_sums):
    hall = Hall([2, 3, 5, 8, 13])
    with_all = list(hall.session.cohort)
    without = [2, 3, 8, 13]
    sums = hall.run({phase: [5]})
    # Who voted first and then went is still waited for in the second ballot, and cancelled there.
    expected = [with_all if word == "with" else without for word in in_the_sums]
    assert same(sums[0], hall.plain(expected[0], 0))
    assert same(sums[1], hall.plain(expected[1], 1))


@pytest.mark.parametrize("phase", ["keys", "shares", "ballot 0", "reveal 0", "reveal 1"])
def test_two_of_five_are_too_many(phase):
    with pytest.raises(MessageError, match="needed"):
        Hall([2, 3, 5, 8, 13]).run({phase: [5, 8]})


def test_a_large_cohort_has_few_neighbours_each_and_the_same_sum():
    hall = Hall(range(36), ballots=1)
    near = hall.session.neighbours(7)
    assert len(near) == 32
    assert all(7 in hall.session.neighbours(peer) for peer in near)
    left = [client for client in range(36) if client != 30]
    sums = hall.run({"ballot 0": [1, 20], "keys": [30]})
    assert same(sums[0], hall.plain([c for c in left if c not in (1, 20)], 0))


def test_shares_for_who_is_no_neighbour_reach_nobody():
    """In a large cohort one client would have taken out all those that it has no masks with."""
    hall = Hall(range(36), ballots=1)
    cheat = 7
    near = hall.session.neighbours(cheat)
    teller = Teller(hall.session)
    teller.take_keys(hall.each(range(36), lambda member, memory: member.keys(memory)))
    sent = hall.each(range(36), lambda member, memory: member.shares(memory, teller.keys))
    sent[cheat] = dict.fromkeys(range(36), sent[cheat][near[0]])
    routed = teller.route(sent)
    assert [client for client in range(36) if cheat in routed[client]] == near
    hall.each(range(36), lambda member, memory: member.receive(memory, routed[member.client]))


def test_no_second_set_is_ever_unmasked():
    hall = Hall([2, 3, 5, 8, 13])
    hall.run()
    with pytest.raises(MessageError, match="another set of clients"):
        hall.members[2].consent(hall.memories[2], 0, [2, 3, 5, 8])


def test_a_set_that_too_few_signed_stays_masked():
    hall = Hall([2, 3, 5, 8, 13])
    hall.run()
    member = hall.members[2]
    voted = hall.memories[2].consented[0]
    signatures = {c: hall.members[c].consent(hall.memories[c], 0, voted) for c in (2, 3, 5)}
    with pytest.raises(MessageError, match="only 3 of the 5"):
        member.reveal(hall.memories[2], 0, signatures)


def test_a_key_that_its_owner_did_not_sign_is_refused():
    hall = Hall([2, 3, 5, 8, 13])
    keys = hall.each(hall.session.cohort, lambda member, memory: member.keys(memory))
    keys[3] = replace(keys[3], seal=keys[5].seal)
    with pytest.raises(MessageError, match="signature of client 3 does not hold"):
        hall.members[2].shares(hall.memories[2], keys)


def test_a_wrong_share_is_noticed():
    hall = Hall([2, 3, 5, 8, 13], ballots=1)
    genuine = Member.reveal

    def forged(self, memory, number, signatures):
        said = genuine(self, memory, number, signatures)
        if self.client == 2:
            said = replace(said, own={**said.own, 8: bytes(16)})
        return said

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Member, "reveal", forged)
        with pytest.raises(MessageError, match="client 8's mask do not fit"):
            hall.run()


def test_what_a_client_casts_is_uniform_whatever_it_votes():
    """Chi-squared of 8 values over many draws of masks; 99.99 % of honest ones are below 29.9."""
    counts = np.zeros(8)
    for _ in range(20):
        hall = Hall([2, 3, 5], ballots=1)
        hall.votes[2][0][0][:] = 1
        cast = {}
        keys = hall.each(hall.session.cohort, lambda member, memory: member.keys(memory))
        sent = {c: hall.members[c].shares(hall.memories[c], keys) for c in hall.session.cohort}
        received = {sender: shares[2] for sender, shares in sent.items() if sender != 2}
        member = hall.members[2]
        member.receive(hall.memories[2], received)
        cast = member.ballot(hall.memories[2], 0, LAYOUT, hall.votes[2][0])
        counts += np.bincount(cast[0], minlength=8)
    expected = counts.sum() / 8
    assert ((counts - expected) ** 2 / expected).sum() < 29.9


@pytest.mark.parametrize("bits", [1, 3, 7, 8, 9, 16, 20, 32])
def test_packing_goes_both_ways_in_just_so_many_bits(bits):
    part = Part(11, bits)
    words = np.random.default_rng(bits).integers(0, 2**bits, 11).astype(part.dtype)
    data = pack([part], [words])
    assert len(data) == -(-11 * bits // 8)
    assert np.array_equal(unpack([part], data)[0], words)


def test_thresholds_and_cohorts():
    assert [threshold(n) for n in (3, 5, 20, 100)] == [3, 4, 14, 67]
    with pytest.raises(ConfigError, match="at least 3"):
        Session(bytes(16), 1, bytes(16), (1, 2))


def test_masks_are_used_once():
    hall = Hall([2, 3, 5, 8, 13], ballots=1)
    hall.run()
    member, memory = hall.members[2], hall.memories[2]
    votes = hall.votes[2][0]
    member.ballot(memory, 0, LAYOUT, votes)  # the same again is no news
    other = [np.zeros_like(each) for each in votes]
    with pytest.raises(MessageError, match="another ballot under the masks"):
        member.ballot(memory, 0, LAYOUT, other)


def test_who_was_told_otherwise_than_the_others_signs_another_text():
    hall = Hall([2, 3, 5, 8, 13], ballots=1)
    for client, member in hall.members.items():
        member.hear(hall.memories[client], 0, "this" if client == 2 else "that")
    with pytest.raises(MessageError, match="does not hold"):
        hall.run()
    with pytest.raises(MessageError, match="told otherwise than before"):
        hall.members[2].hear(hall.memories[2], 0, "that")
