"""The phases of a round that counts, as both ends name them."""

from enum import StrEnum

from fedwsq.codecs.base import Packet
from fedwsq.core.errors import MessageError
from fedwsq.secure.ring import Part
from fedwsq.secure.session import Session
from fedwsq.wire import Message

BALLOTS = 2  # spreads, then votes
TOLD_BYTES = 16  # of the digest that stands for what a ballot is cast on
VOTE_WIRE_ID = 15


class Phase(StrEnum):
    """What an order asks for; all but the two ballots only where sums are masked."""

    KEYS = "keys"
    SHARES = "shares"
    SPREADS = "spreads"  # train, and cast how far each tensor moved
    VOTES = "votes"  # cast the update, around the scales that the order carries
    CONSENT = "consent"
    REVEAL = "reveal"


def vote_packet(part: Part, code: bytes) -> Packet:
    """How a tensor's integers travel: packed, under an id that no codec has."""
    return Packet(code, (), float(part.bits), part.count, codec=VOTE_WIRE_ID)


def vote_code(packet: Packet, part: Part) -> bytes:
    """The integers of a tensor, still packed, or `MessageError`."""
    if packet.codec != VOTE_WIRE_ID or packet.rate != part.bits or packet.side:
        raise MessageError(f"a ballot has integers of {part.bits} bits and nothing else")
    part.require(packet.code)
    return packet.code


def session_of(order: Message, cohort: list[int]) -> Session:
    """What both ends know of a session from any of its orders."""
    return Session(order.run, order.key.round, order.nonce, tuple(cohort), BALLOTS)
