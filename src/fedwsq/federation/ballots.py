"""What a server asks in a round that counts, and how it reads what comes back."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedwsq.codecs.base import Packet
from fedwsq.core.errors import MessageError
from fedwsq.federation.phases import BALLOTS, Phase, vote_code
from fedwsq.federation.tally import Tally
from fedwsq.secure import spoken
from fedwsq.secure.keys import SEED_BYTES, Exchange
from fedwsq.secure.member import PublicKeys, Reveal
from fedwsq.secure.ring import Layout, Words, split
from fedwsq.wire import Shared
from fedwsq.wire.message import ENTRY_BYTES, reply_overhead

VECTOR = "delta"
WORDS_BYTES = 2**14  # of an answer in words: the longest, shares for 32 neighbours, takes 6,400


class Question(NamedTuple):
    """What one phase asks of every client."""

    phase: Phase
    ballot: int | None = None  # where the phase comes once for each
    longest: int = WORDS_BYTES  # bytes of an answer
    states: Shared | None = None
    trains: bool = False

    @property
    def name(self) -> str:
        """What no other phase of the round has."""
        return self.phase if self.ballot is None else f"{self.phase}-{self.ballot}"


class Said(NamedTuple):
    """What one client answered."""

    words: dict[str, Any]
    packets: Mapping[str, Packet]


class Ballot(NamedTuple):
    """The facts of one ballot."""

    number: int
    question: Question
    layout: Layout  # of the sum
    wire: Layout  # of what one client casts, as it travels
    tensors: Sequence[str]  # whose integers travel in packets; what follows them is in the text
    require: Callable[[Sequence[Words]], None]  # refuses integers that no client casts

    def codes(self, said: Said) -> list[bytes]:
        """What a client cast, still packed, or `MessageError`."""
        found: list[bytes] = []
        for name, part in zip(self.tensors, self.wire, strict=False):
            found.append(vote_code(said.packets[name], part))
        rest = self.wire[len(self.tensors) :]
        return [*found, *split(rest, spoken.octets(said.words.get("ballot")))]

    def unpack(self, codes: Sequence[bytes]) -> list[Words]:
        return [part.unpack(code) for part, code in zip(self.wire, codes, strict=True)]


def spread_ballot(tally: Tally) -> Ballot:
    """The first: train, and say how far each tensor moved."""
    layout = tally.spread_layout
    longest = _longest(layout, tensors=0)
    question = Question(Phase.SPREADS, longest=longest, trains=True)
    return Ballot(0, question, layout, layout, (), tally.require_spreads)


def vote_ballot(tally: Tally, scales: Shared) -> Ballot:
    """The second: the update around these scales."""
    names = tally.line.schema.names
    wire = tally.vote_wire
    longest = _longest(wire, tensors=len(names))
    question = Question(Phase.VOTES, longest=longest, states=scales)
    return Ballot(1, question, tally.vote_layout, wire, names, tally.require_votes)


def _longest(wire: Layout, tensors: int) -> int:
    """Bytes of an answer with a ballot, the first so many parts of which travel in packets."""
    packets = sum(ENTRY_BYTES + part.length for part in wire[:tensors])
    text = sum(2 * part.length for part in wire[tensors:])  # hexadecimal
    return reply_overhead((VECTOR,), ()) + packets + text + WORDS_BYTES


@dataclass(frozen=True)
class Packed(Mapping[int, list[Words]]):
    """Ballots by client, as they came; each is unpacked when it is looked up, and not kept."""

    ballot: Ballot
    codes: Mapping[int, Sequence[bytes]]

    def __getitem__(self, client: int) -> list[Words]:
        return self.ballot.unpack(self.codes[client])

    def __iter__(self) -> Iterator[int]:
        return iter(self.codes)

    def __len__(self) -> int:
        return len(self.codes)


# What is said around the ballots.


def read_keys(said: Said) -> PublicKeys:
    """Keys that others can go on with: all of them would stop at one that cannot be used."""
    keys = spoken.read_keys(said.words)
    if not len(keys.pairs) == len(keys.commitments) == BALLOTS:
        raise MessageError(
            f"{len(keys.pairs)} keys and {len(keys.commitments)} commitments, a round has "
            f"{BALLOTS} ballots and takes one of each for each"
        )
    for public in (keys.seal, *keys.pairs):
        Exchange(bytes(SEED_BYTES), b"trial").agree(public)
    return keys


def read_shares(said: Said) -> dict[int, bytes]:
    return spoken.read_octets(said.words.get("sealed"))


def read_signature(said: Said) -> bytes:
    return spoken.octets(said.words.get("signature"), spoken.SIGNATURE_BYTES)


def read_reveal(said: Said) -> Reveal:
    return spoken.read_reveal(said.words)
