"""A round that counts, at the server: two ballots, in plain or under masks, and their sums."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch

from fedwsq.core.errors import ConfigError, MessageError
from fedwsq.federation.asking import Asking
from fedwsq.federation.bounds import bounded_sides
from fedwsq.federation.charter import Charter
from fedwsq.federation.fold import Assignment, Before, Folded
from fedwsq.federation.journal import Journal
from fedwsq.federation.phases import TOLD_BYTES, VOTES, Phase, session_of
from fedwsq.federation.tally import Tally
from fedwsq.secure import spoken
from fedwsq.secure.member import Poll
from fedwsq.secure.ring import Words, add, reduced, unpack, zeros
from fedwsq.secure.teller import Teller
from fedwsq.transports import Failure, Order, Transport, deadline_in
from fedwsq.wire import Kind, Message, Shared, SideValues, decode, encode
from fedwsq.wire.message import float32_reply_bytes

Saying = Callable[[int], dict[str, Any]]  # what a phase tells each client
Progress = Callable[[int, int], None]


class Sum(NamedTuple):
    """Of one ballot."""

    words: list[Words]
    voted: list[int]


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

        spreads = self._cast(
            0, Phase.SPREADS, clients, lambda client: {"sealed": _hex(routed.get(client, {}))}
        )
        agreed = self.tally.agreed(spreads.words, len(spreads.voted))
        sides: SideValues = {"delta": {}}
        for name in self.before.shared.get("delta", {}):
            sides["delta"][name] = [(agreed[name],)]
        shared = self.charter.uplink.fold(self.before.shared, self._bounded(sides))
        scales = agreed | {name: float(x) for name, x in shared.get("delta", {}).items()}
        states = {name: torch.tensor([scales[name]]) for name in self.charter.schema.names}
        scales = {name: float(x) for name, x in states.items()}  # as they travel

        votes = self._cast(1, Phase.VOTES, spreads.voted, lambda client: {}, {"delta": states})
        counted = self.tally.counted(votes.words, scales, len(votes.voted))
        folded = self.folded
        folded.vectors = {"delta": counted.total}
        folded.weight = float(len(votes.voted))
        folded.sides = sides
        folded.unanimous = counted.unanimous
        for client in votes.voted:
            message = self.assignments[client].message
            # What is known of each is what is known of all.
            alike = replace(message, error=counted.error, metrics={"loss": counted.loss})
            folded.replies.append(alike)
            folded.failures.pop(client, None)  # it went after its part was in
        sends = self.charter.plan.algorithm.sends
        each = float32_reply_bytes(sends, self.charter.schema)
        folded.float32_bytes = each * len(votes.voted)

    def _bounded(self, sides: SideValues) -> SideValues:
        return bounded_sides(self.before.shared, sides, self.charter.plan.bounds.scale)

    def _introduce(self, clients: list[int]) -> dict[int, dict[int, bytes]]:
        """Keys and shares; who has sent both may cast masked ballots."""
        shown = self._phase(Phase.KEYS, clients, lambda client: {}, spoken.read_keys)
        self.teller.take_keys(shown)
        keys = {client: spoken.say_keys(each) for client, each in shown.items()}

        def around(client: int) -> dict[str, Any]:
            circle = self.teller.session.neighbours(client)
            return {"keys": {peer: keys[peer] for peer in circle if peer in keys}}

        shares = self._phase(
            Phase.SHARES,
            self.teller.active,
            around,
            lambda said: spoken.read_octets(said.get("sealed")),
        )
        return self.teller.route(shares)

    def _cast(
        self,
        number: int,
        phase: Phase,
        clients: Iterable[int],
        saying: Saying,
        states: Shared | None = None,
    ) -> Sum:
        """One ballot, and its sum."""
        layout = self.tally.spread_layout if number == 0 else self.tally.vote_layout
        voters = {"voters": len(self.cohort)}
        said = self._ask_all(phase, clients, lambda client: voters | saying(client), states)
        ballots: dict[int, list[Words]] = {}
        for client, message in said.items():
            with self._blaming(client):
                ballots[client] = self._read_ballot(message, phase)
        told = self._agreed_on(said, ballots) if self.masked else ""
        voted = sorted(ballots)
        if not voted:
            raise MessageError("nobody cast a ballot")
        if not self.masked:
            total = zeros(layout)
            for client in voted:
                add(total, ballots[client])
            return Sum(reduced(layout, total), voted)

        name = {"ballot": number}
        signatures = self._phase(
            Phase.CONSENT,
            voted,
            lambda client: name | {"clients": voted},
            lambda said: spoken.octets(said.get("signature"), spoken.SIGNATURE_BYTES),
            f"consent-{number}",
        )
        around = self.teller.session.circle
        reveals = self._phase(
            Phase.REVEAL,
            sorted(signatures),
            lambda client: (
                name
                | {
                    "signatures": _hex(
                        {c: signatures[c] for c in around(client) if c in signatures}
                    )
                }
            ),
            spoken.read_reveal,
            f"reveal-{number}",
        )
        poll = Poll(number, told)
        return Sum(self.teller.count(poll, layout, ballots, reveals), voted)

    def _agreed_on(self, said: Mapping[int, Message], ballots: dict[int, list[Words]]) -> str:
        """What stands for all that these ballots were cast on. Masks of one that was cast on
        something else cancel nobody's: it is taken out.
        """
        heard: dict[int, str] = {}
        for client in list(ballots):
            with self._blaming(client):
                told = json.loads(said[client].text).get("told")
                heard[client] = spoken.octets(told, TOLD_BYTES).hex()
        ranked = Counter(heard.values()).most_common(1)
        usual = ranked[0][0] if ranked else ""
        for client in list(ballots):
            if heard.get(client) != usual:
                del ballots[client]
                why = "its ballot is not cast on the model and the scales that the others had"
                self.folded.failures.setdefault(client, why)
        return usual

    def _read_ballot(self, message: Message, phase: Phase) -> list[Words]:
        said = spoken.octets(json.loads(message.text).get("ballot"))
        if phase == Phase.SPREADS:
            spreads = unpack(self.tally.spread_layout, said)
            if not self.masked:
                self.tally.require_spreads(spreads)
            return spreads
        *parts, last = self.tally.vote_wire
        packets = message.packets.get("delta", {})
        found = []
        for name, part in zip(self.charter.schema.names, parts, strict=True):
            found.append(VOTES.read(packets[name], part))
        votes = [*found, *unpack([last], said)]
        if not self.masked:
            self.tally.require_votes(votes)
        return votes

    # Orders and answers.

    def _phase(
        self,
        phase: Phase,
        clients: Iterable[int],
        saying: Saying,
        read: Callable[[Any], Any],
        name: str = "",
    ) -> dict[int, Any]:
        """What each client says in a phase of words; who says nothing that can be read is out."""
        found: dict[int, Any] = {}
        for client, message in self._ask_all(phase, clients, saying, None, name).items():
            with self._blaming(client):
                found[client] = read(json.loads(message.text))
        return found

    def _ask_all(
        self,
        phase: Phase,
        clients: Iterable[int],
        saying: Saying,
        states: Shared | None = None,
        name: str = "",
    ) -> dict[int, Message]:
        """The answers of one phase, in client order."""
        orders: dict[int, Order] = {}
        trains = phase == Phase.SPREADS
        for client in clients:
            asked = self.assignments[client]
            said = {"phase": phase, **saying(client)}
            if self.masked:
                said["cohort"] = self.cohort
            message = replace(
                asked.message,
                kind=Kind.PHASE,
                nonce=self.journal.nonce,
                rates=(),
                packets=asked.message.packets if trains else {},
                states=states or {},
                text=json.dumps(said),
            )
            head = encode(message, self.charter.schema)
            own = asked.order.body if trains else b""
            orders[client] = Order(asked.order.key, head, own, cost=asked.order.cost * trains)
            self.folded.more_down_bytes += len(head)
            if trains:  # the assignment has the body, and an order that was not sent
                self.folded.more_down_bytes -= len(asked.order.head)

        payloads = self.journal.phase(name or str(phase), lambda: self._ask(orders, trains))
        found: dict[int, Message] = {}
        for client in sorted(payloads.keys() & orders.keys()):
            lengths = self.folded.lengths
            lengths[client] = lengths.get(client, 0) + len(payloads[client])
            with self._blaming(client):
                found[client] = self._read(payloads[client], orders[client], phase)
        for client in orders.keys() - payloads.keys():
            self.folded.failures.setdefault(client, f"no reply in the phase {phase}")
        return found

    def _ask(self, orders: Mapping[int, Order], trains: bool) -> dict[int, bytes]:
        deadline = deadline_in(self.charter.plan.deadline)
        body = self.body if trains else b""
        asking = Asking(self.transport, body, list(orders.values()), deadline)
        found: dict[int, bytes] = {}
        for done, answer in enumerate(asking, 1):
            client = answer.key.client
            if client not in orders or answer.key != orders[client].key:
                continue
            if isinstance(answer, Failure):
                self.folded.failures.setdefault(client, answer.reason)
            else:
                found.setdefault(client, answer.payload)
            if trains and self.progress is not None:
                self.progress(min(done, len(orders)), len(orders))
        self.folded.asked_again |= asking.again
        return found

    def _read(self, payload: bytes, order: Order, phase: Phase) -> Message:
        """A client's answer to this very order, or `MessageError`."""
        message = decode(payload, self.charter.schema)
        self.charter.require(message)
        if message.key != order.key or message.nonce != self.journal.nonce:
            raise MessageError(f"an answer to another order: {message.key}, expected {order.key}")
        if message.kind == Kind.FORGOT and phase == Phase.SPREADS:
            self.folded.forgot.append(order.key.client)
            raise MessageError("it lost its memory of earlier rounds and starts anew")
        said = spoken.table(json.loads(message.text)) if message.text else {}
        if message.kind != Kind.SAID or said.get("phase") != phase:
            raise MessageError(f"an answer to another phase than {phase}")
        return message

    def _blaming(self, client: int) -> "Blame":
        return Blame(self.folded, client)


class Blame:
    """What a client says that cannot be read is its failure, and nobody else's."""

    def __init__(self, folded: Folded, client: int) -> None:
        self.folded = folded
        self.client = client

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, traceback: object) -> bool:
        if not isinstance(error, MessageError | ValueError | RecursionError | KeyError):
            return False
        self.folded.failures.setdefault(self.client, f"MessageError: {error}")
        return True


def _hex(by_client: Mapping[int, bytes]) -> dict[str, str]:
    return spoken.say_octets(by_client)
