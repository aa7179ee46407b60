"""Servers, and clients that work with them, that break the rules to learn one client's part.

Each test plays an attack to its end. What the attacker would learn is in the test: it does not.
"""

import threading
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the extra: pip install 'fedwsq[secure]'")
pytest.importorskip("Crypto", reason="needs the extra: pip install 'fedwsq[secure]'")

from hall import LAYOUT, Hall, same

from fedwsq.core.errors import MessageError
from fedwsq.secure.member import Poll, own_key
from fedwsq.secure.memory import Vault
from fedwsq.secure.ring import add, mask, reduced
from fedwsq.secure.teller import Teller

FIVE = [2, 3, 5, 8, 13]


def introduced(hall, shown=None):
    """Everybody has shown keys and sent shares; `shown` is what the server makes of the keys."""
    cohort = hall.session.cohort
    teller = Teller(hall.session)
    teller.take_keys(shown or hall.each(cohort, lambda member, memory: member.keys(memory)))
    sent = hall.each(cohort, lambda member, memory: member.shares(memory, teller.keys))
    routed = teller.route(sent)
    hall.each(cohort, lambda member, memory: member.receive(memory, routed[member.client]))
    return teller


def cast(hall, number, clients):
    return {
        c: hall.members[c].ballot(hall.memories[c], number, LAYOUT, hall.votes[c][number])
        for c in clients
    }


def revealed(hall, number, voted, signers):
    """What the signers give out of a set that they, and nobody else, were asked to sign."""
    signed = {c: hall.members[c].consent(hall.memories[c], number, voted) for c in signers}
    return {c: hall.members[c].reveal(hall.memories[c], number, signed) for c in signers}


def without_own_mask(teller, client, number, ballot, reveals):
    """A ballot less the mask that the others gave out: pairs' masks are all that hide it."""
    left = [each.copy() for each in ballot]
    seed = teller._own_seed(client, number, reveals)
    add(left, mask(LAYOUT, own_key(seed)), -1)
    return reduced(LAYOUT, left)


def test_whom_the_server_told_otherwise_is_in_no_sum_that_the_others_unmask():
    """Four of five are enough to sign: so the server leaves out the signature of the fifth.

    It told the others that nothing moved; they cast zeros, and the sum would be the one's update.
    """
    hall = Hall(FIVE, ballots=1)
    teller = introduced(hall)
    others = [3, 5, 8, 13]
    for client, member in hall.members.items():
        member.hear(hall.memories[client], 0, "this" if client == 2 else "that")
    for client in others:
        hall.votes[client][0] = [np.zeros_like(each) for each in hall.votes[client][0]]
    ballots = cast(hall, 0, FIVE)
    reveals = revealed(hall, 0, FIVE, others)
    for told in ("this", "that"):
        found = Teller(hall.session, teller.keys, teller.active).count(
            Poll(0, told), LAYOUT, ballots, reveals
        )
        assert np.mean(found[0] == hall.votes[2][0][0]) < 0.3  # an eighth by chance


def test_nobody_casts_a_ballot_that_no_other_masks():
    """The server passes one over when it asks for consent to the first ballot. That one would not
    know whom its second ballot shares masks with, and its own mask is given out by the others.
    """
    hall = Hall(FIVE)
    introduced(hall)
    cast(hall, 0, FIVE)
    revealed(hall, 0, FIVE, [3, 5, 8, 13])
    with pytest.raises(MessageError, match="only 1 of the 5 clients around client 2"):
        cast(hall, 1, [2])


def test_nobody_casts_a_ballot_before_it_has_shares_of_others():
    hall = Hall(FIVE)
    keys = hall.each(FIVE, lambda member, memory: member.keys(memory))
    hall.members[2].shares(hall.memories[2], keys)
    with pytest.raises(MessageError, match="only 1 of the 5 clients around client 2"):
        cast(hall, 0, [2])


def test_nobody_consents_to_a_ballot_that_it_has_not_cast():
    hall = Hall(FIVE)
    introduced(hall)
    with pytest.raises(MessageError, match="not cast"):
        hall.members[2].consent(hall.memories[2], 0, FIVE)


def test_shares_are_sealed_once():
    """Asked twice, a client gives the same: a key and nonce for two texts show how they differ."""
    hall = Hall(FIVE)
    keys = hall.each(FIVE, lambda member, memory: member.keys(memory))
    member, memory = hall.members[2], hall.memories[2]
    once = member.shares(memory, keys)
    assert member.shares(memory, keys) == once
    fewer = {client: each for client, each in keys.items() if client != 13}
    with pytest.raises(MessageError, match="other keys than those"):
        member.shares(memory, fewer)


def test_a_key_that_a_client_copied_from_another_takes_no_mask_away():
    """Client 2 works with the server, and shows 5's key for its own: what 3 adds for 5 it would
    subtract for 2, and nothing would be left but 3's own mask.
    """
    hall = Hall([2, 3, 5], ballots=1)
    shown = hall.each([2, 3, 5], lambda member, memory: member.keys(memory))
    copied = replace(shown[2], pairs=shown[5].pairs)
    signature = hall.members[2].identity.sign(copied.signed(hall.session, 2))
    shown[2] = replace(copied, signature=signature)
    teller = introduced(hall, shown)
    ballots = cast(hall, 0, [2, 3, 5])
    reveals = revealed(hall, 0, [2, 3, 5], [2, 3, 5])
    left = without_own_mask(teller, 3, 0, ballots[3], reveals)
    assert not same(left, hall.votes[3][0])
    assert np.mean(left[0] == hall.votes[3][0][0]) < 0.3


def test_a_set_that_is_refused_is_not_remembered():
    """Else a server could use up a round's only set by asking for nonsense."""
    hall = Hall(FIVE, ballots=1)
    introduced(hall)
    cast(hall, 0, FIVE)
    member, memory = hall.members[2], hall.memories[2]
    for nonsense in ([3, 5, 8, 13], [2, 3], [2, 3, 5, 8, 99]):
        with pytest.raises(MessageError, match=r"asked to unmask|are needed"):
            member.consent(memory, 0, nonsense)
    assert member.consent(memory, 0, FIVE)


def test_one_at_a_time_looks_into_a_vault(tmp_path):
    """Two orders at once, for consent to two sets, would both find that nothing was promised."""
    seen = []

    def look(name):
        with Vault(tmp_path, tmp_path).locked():
            seen.append(name)

    with Vault(tmp_path, tmp_path).locked():
        other = threading.Thread(target=look, args=["second"])
        other.start()
        other.join(0.2)
        assert other.is_alive()
        seen.append("first")
    other.join()
    assert seen == ["first", "second"]
