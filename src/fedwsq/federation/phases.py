"""The phases of a round that counts, as both ends name them."""

from enum import StrEnum
from typing import NamedTuple

from fedwsq.codecs.base import Packet
from fedwsq.core.errors import MessageError
from fedwsq.secure.ring import Part, Words
from fedwsq.secure.session import Session
from fedwsq.wire import Message

BALLOTS = 2  # spreads, then votes
TOLD_BYTES = 16  # of the digest that stands for what a ballot is cast on


class Phase(StrEnum):
    """What an order asks for; all but the two ballots only where sums are masked."""

    KEYS = "keys"
    SHARES = "shares"
    SPREADS = "spreads"  # train, and cast how far each tensor moved
    VOTES = "votes"  # cast the update, around the scales that the order carries
    CONSENT = "consent"
    REVEAL = "reveal"


class VotePackets(NamedTuple):
    """How a tensor's integers travel: packed, under an id that no codec has."""

    wire_id: int = 15

    def packet(self, part: Part, code: bytes) -> Packet:
        return Packet(code, (), float(part.bits), part.count, codec=self.wire_id)

    def read(self, packet: Packet, part: Part) -> Words:
        """The integers of a tensor, or `MessageError`."""
        if packet.codec != self.wire_id or packet.rate != part.bits or packet.side:
            raise MessageError(f"a ballot has integers of {part.bits} bits and nothing else")
        if len(packet.code) != part.length:
            raise MessageError(
                f"{part.count} integers of {part.bits} bits take {part.length} bytes, "
                f"not {len(packet.code)}"
            )
        return part.unpack(packet.code)


VOTES = VotePackets()


def session_of(order: Message, cohort: list[int]) -> Session:
    """What both ends know of a session from any of its orders."""
    return Session(order.run, order.key.round, order.nonce, tuple(cohort), BALLOTS)
