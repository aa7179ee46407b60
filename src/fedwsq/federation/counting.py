"""A round that counts, at the server: two ballots, in plain or under masks, and their sums."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch

from fedwsq.core.errors import ConfigError, MessageError
from fedwsq.federation.asking import Asking
from fedwsq.federation.ballots import (
    VECTOR,
    Ballot,
    Packed,
    Question,
    Said,
    read_keys,
    read_reveal,
    read_shares,
    read_signature,
    spread_ballot,
    vote_ballot,
)
from fedwsq.federation.bounds import bounded_sides
from fedwsq.federation.charter import Charter
from fedwsq.federation.fold import Assignment, Before, Folded
from fedwsq.federation.journal import Journal
from fedwsq.federation.phases import TOLD_BYTES, Phase, session_of
from fedwsq.federation.tally import Counted, Tally
from fedwsq.secure import spoken
from fedwsq.secure.member import Poll, Reveal
from fedwsq.secure.ring import Words, add, reduced, zeros
from fedwsq.secure.teller import Teller
from fedwsq.transports import Failure, Order, Transport, deadline_in
from fedwsq.wire import Kind, Message, SideValues, decode, encode
from fedwsq.wire.message import float32_reply_bytes

T = TypeVar("T")
Saying = Callable[[int], dict[str, Any]]  # what a phase tells each client
Progress = Callable[[int, int], None]


class Sum(NamedTuple):
    """Of one ballot."""

    words: list[Words]
    voted: list[int]


class Masked(NamedTuple):
    """A ballot that nobody can read."""

    codes: list[bytes]
    told: str  # stands for what it was cast on


@dataclass
class Counting:
    """One round. `gather` is what `Fold` is in a round of floats."""

    charter: Charter
    transport: Transport
    assignments: Mapping[int, Assignment]
    before: Before
    body: bytes
    journal: Journal
    progress: Progress | None = None
    folded: Folded = field(default_factory=lambda: Folded({}))

    def gather(self) -> Folded:
        """The sum of the updates of all who took part to the end; of too few, nothing."""
        try:
            self._count()
        except (MessageError, ConfigError) as error:
            # The round has no sum. Who gave no reason of its own has this one.
            self.folded.failures = dict.fromkeys(self.cohort, str(error)) | self.folded.failures
        return self.folded

    @property
    def cohort(self) -> list[int]:
        return list(self.assignments)

    @cached_property
    def tally(self) -> Tally:
        return Tally(self.charter.uplink, len(self.cohort))

    @cached_property
    def masked(self) -> bool:
        return self.charter.plan.uplink.secure

    @cached_property
    def teller(self) -> Teller:
        first = next(iter(self.assignments.values())).message
        return Teller(session_of(replace(first, nonce=self.journal.nonce), self.cohort))

    def _count(self) -> None:
        clients = self.cohort
        routed: dict[int, dict[int, bytes]] = {}
        if self.masked:
            routed = self._introduce(clients)
            clients = self.teller.active

        def sealed(client: int) -> dict[str, Any]:
            return {"sealed": spoken.say_octets(routed.get(client, {}))}

        spreads = self._cast(spread_ballot(self.tally), clients, sealed)
        agreed = self.tally.agreed(spreads.words, len(spreads.voted))
        sides: SideValues = {VECTOR: {}}
        for name in self.before.shared.get(VECTOR, {}):
            sides[VECTOR][name] = [(agreed[name],)]
        shared = self.charter.uplink.fold(self.before.shared, self._bounded(sides))
        scales = agreed | {name: float(x) for name, x in shared.get(VECTOR, {}).items()}
        states = {name: torch.tensor([scales[name]]) for name in self.charter.schema.names}
        scales = {name: float(x) for name, x in states.items()}  # as they travel

        ballot = vote_ballot(self.tally, {VECTOR: states})
        votes = self._cast(ballot, spreads.voted, nothing)
        counted = self.tally.counted(votes.words, scales, len(votes.voted))
        self.folded.sides = sides
        self._fold(counted, votes.voted)

    def _bounded(self, sides: SideValues) -> SideValues:
        return bounded_sides(self.before.shared, sides, self.charter.plan.bounds.scale)

    def _fold(self, counted: Counted, voted: list[int]) -> None:
        folded = self.folded
        folded.vectors = {VECTOR: counted.total}
        folded.weight = float(len(voted))
        folded.unanimous = counted.unanimous
        for client in voted:
            message = self.assignments[client].message
            # What is known of each is what is known of all.
            alike = replace(message, error=counted.error, metrics={"loss": counted.loss})
            folded.replies.append(alike)
            folded.failures.pop(client, None)  # it went after its part was in
        sends = self.charter.plan.algorithm.sends
        each = float32_reply_bytes(sends, self.charter.schema)
        folded.float32_bytes = each * len(voted)

    def _introduce(self, clients: list[int]) -> dict[int, dict[int, bytes]]:
        """Keys and shares; who has sent both may cast masked ballots."""
        shown = self._phase(Question(Phase.KEYS), clients, nothing, read_keys)
        self.teller.take_keys(shown)
        keys = {client: spoken.say_keys(each) for client, each in shown.items()}

        def around(client: int) -> dict[str, Any]:
            circle = self.teller.session.neighbours(client)
            return {"keys": {peer: keys[peer] for peer in circle if peer in keys}}

        question = Question(Phase.SHARES)
        return self.teller.route(self._phase(question, self.teller.active, around, read_shares))

    # The ballots.

    def _cast(self, ballot: Ballot, clients: Iterable[int], saying: Saying) -> Sum:
        """One ballot, and its sum."""

        def with_voters(client: int) -> dict[str, Any]:
            return {"voters": len(self.cohort), **saying(client)}

        if self.masked:
            return self._cast_under_masks(ballot, clients, with_voters)
        return self._cast_in_plain(ballot, clients, with_voters)

    def _cast_in_plain(self, ballot: Ballot, clients: Iterable[int], saying: Saying) -> Sum:
        total = zeros(ballot.layout)

        def add_up(said: Said) -> None:
            words = ballot.unpack(ballot.codes(said))
            ballot.require(words)
            add(total, words)

        voted = list(self._phase(ballot.question, clients, saying, add_up))
        require_any(voted)
        return Sum(reduced(ballot.layout, total), voted)

    def _cast_under_masks(self, ballot: Ballot, clients: Iterable[int], saying: Saying) -> Sum:
        def keep(said: Said) -> Masked:
            told = spoken.octets(said.words.get("told"), TOLD_BYTES)
            return Masked(ballot.codes(said), told.hex())

        ballots = self._phase(ballot.question, clients, saying, keep)
        told = self._agreed_on(ballots)
        voted = list(ballots)
        require_any(voted)
        reveals = self._unmask(ballot.number, voted)
        codes = {client: each.codes for client, each in ballots.items()}
        poll = Poll(ballot.number, told)
        return Sum(self.teller.count(poll, ballot.layout, Packed(ballot, codes), reveals), voted)

    def _agreed_on(self, ballots: dict[int, Masked]) -> str:
        """What stands for all that these ballots were cast on. Masks of one that was cast on
        something else cancel nobody's: it is taken out.
        """
        ranked = Counter(each.told for each in ballots.values()).most_common(1)
        usual = ranked[0][0] if ranked else ""
        for client in list(ballots):
            if ballots[client].told != usual:
                del ballots[client]
                why = "its ballot is not cast on the model and the scales that the others had"
                self.folded.failures.setdefault(client, why)
        return usual

    def _unmask(self, number: int, voted: list[int]) -> dict[int, Reveal]:
        """What those who voted reveal, once they have signed for the sum of just these."""

        def whom(client: int) -> dict[str, Any]:
            return {"ballot": number, "clients": voted}

        question = Question(Phase.CONSENT, number)
        signatures = self._phase(question, voted, whom, read_signature)

        def signed(client: int) -> dict[str, Any]:
            circle = self.teller.session.circle(client)
            around = {peer: signatures[peer] for peer in circle if peer in signatures}
            return {"ballot": number, "signatures": spoken.say_octets(around)}

        question = Question(Phase.REVEAL, number)
        return self._phase(question, sorted(signatures), signed, read_reveal)

    # Orders and answers.

    def _phase(
        self,
        question: Question,
        clients: Iterable[int],
        saying: Saying,
        read: Callable[[Said], T],
    ) -> dict[int, T]:
        """What `read` makes of each answer, in client order; of the answer itself nothing is kept.
        Who says nothing that can be read is out.
        """
        orders = {client: self._order(question, client, saying(client)) for client in clients}
        payloads = self.journal.phase(question.name, lambda: self._ask(question, orders))
        for client in orders.keys() - payloads.keys():
            self.folded.failures.setdefault(client, f"no reply in the phase {question.phase}")
        found: dict[int, T] = {}
        for client in sorted(payloads.keys() & orders.keys()):
            payload = payloads.pop(client)
            self._count_bytes(client, payload)
            try:
                found[client] = read(self._read(payload, orders[client], question))
            except (MessageError, ValueError, RecursionError, KeyError) as error:
                self._blame(client, error)
        return found

    def _order(self, question: Question, client: int, words: dict[str, Any]) -> Order:
        asked = self.assignments[client]
        text = {"phase": question.phase, **words}
        if self.masked:
            text["cohort"] = self.cohort
        message = replace(
            asked.message,
            kind=Kind.PHASE,
            nonce=self.journal.nonce,
            rates=(),
            packets=asked.message.packets if question.trains else {},
            states=question.states or {},
            text=json.dumps(text),
        )
        head = encode(message, self.charter.schema)
        self.folded.more_down_bytes += len(head)
        if not question.trains:
            return Order(asked.order.key, head)
        # The assignment has the body, and an order that was not sent.
        self.folded.more_down_bytes -= len(asked.order.head)
        return asked.order._replace(head=head)

    def _ask(self, question: Question, orders: Mapping[int, Order]) -> dict[int, bytes]:
        deadline = deadline_in(self.charter.plan.deadline)
        body = self.body if question.trains else b""
        asking = Asking(self.transport, body, list(orders.values()), deadline)
        found: dict[int, bytes] = {}
        for done, answer in enumerate(asking, 1):
            client = answer.key.client
            if client not in orders or answer.key != orders[client].key:
                continue
            if isinstance(answer, Failure):
                self.folded.failures.setdefault(client, answer.reason)
            elif len(answer.payload) > question.longest:
                self._refuse_long(client, answer.payload, question)
            else:
                found.setdefault(client, answer.payload)
            if question.trains and self.progress is not None:
                self.progress(min(done, len(orders)), len(orders))
        self.folded.asked_again |= asking.again
        return found

    def _refuse_long(self, client: int, payload: bytes, question: Question) -> None:
        """Nothing of it is kept, but it was paid for."""
        self._count_bytes(client, payload)
        phase = question.phase
        most = question.longest
        self._blame(
            client, f"{len(payload)} bytes, an answer in the phase {phase} has at most {most}"
        )

    def _count_bytes(self, client: int, payload: bytes) -> None:
        lengths = self.folded.lengths
        lengths[client] = lengths.get(client, 0) + len(payload)

    def _read(self, payload: bytes, order: Order, question: Question) -> Said:
        """A client's answer to this very order, or `MessageError`."""
        message: Message = decode(payload, self.charter.schema)
        self.charter.require(message)
        if message.key != order.key or message.nonce != self.journal.nonce:
            raise MessageError(f"an answer to another order: {message.key}, expected {order.key}")
        if message.kind == Kind.FORGOT and question.trains:
            self.folded.forgot.append(order.key.client)
            raise MessageError("it lost its memory of earlier rounds and starts anew")
        words = spoken.table(json.loads(message.text)) if message.text else {}
        if message.kind != Kind.SAID or words.get("phase") != question.phase:
            raise MessageError(f"an answer to another phase than {question.phase}")
        return Said(words, message.packets.get(VECTOR, {}))

    def _blame(self, client: int, why: object) -> None:
        """What a client says that cannot be read is its failure, and nobody else's."""
        self.folded.failures.setdefault(client, f"MessageError: {why}")


def nothing(client: int) -> dict[str, Any]:
    """What a phase tells a client beyond its name."""
    return {}


def require_any(voted: list[int]) -> None:
    if not voted:
        raise MessageError("nobody cast a ballot")
