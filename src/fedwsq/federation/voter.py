"""A client's part in a round that counts: it trains once, and answers phase by phase."""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedwsq.core.errors import MessageError
from fedwsq.federation.charter import Charter
from fedwsq.federation.learned import Learned, Work
from fedwsq.federation.memory import ClientMemory, ClientStore, MemoryLost
from fedwsq.federation.phases import BALLOTS, VOTES, Phase, session_of
from fedwsq.federation.tally import Scales, Tally
from fedwsq.secure import spoken
from fedwsq.secure.keys import Keyring, SimulatedKeys
from fedwsq.secure.member import Member, Memory
from fedwsq.secure.memory import Vault
from fedwsq.secure.ring import Layout, Words, pack, reduced
from fedwsq.wire import Kind, Message
from fedwsq.wire.link import MAX_VOTERS


@dataclass
class Voter:
    """All clients of a site. `keyring` is None where nothing is masked.

    What lies between two phases of a round is on disk: any process of the site may be asked next.
    """

    charter: Charter
    folder: Path
    keyring: Keyring | None

    def answer(self, order: Message, work: Work) -> Message:
        """What the client says in this phase."""
        try:
            asked = spoken.table(json.loads(order.text))
            phase = Phase(str(asked.get("phase")))
        except (ValueError, RecursionError):
            raise MessageError("an order for no phase of a round that counts") from None
        said = Message(Kind.SAID, order.key, order.run, order.nonce, order.agreement)
        if phase == Phase.SPREADS:
            text = self._cast_spreads(order, asked, work.learn())
            return replace(said, text=json.dumps({"phase": phase, "ballot": text}))
        if phase == Phase.VOTES:
            learned = self._learned(order)
            scales = read_scales(order, self.charter)
            cast = self._tally(asked).votes(learned.delta, scales, learned.loss)
            work.remember(learned, cast.decoded)
            if self.keyring is not None:
                with self._session(order, asked) as here:
                    before = here.memory.told.get(0, "")
                    here.member.hear(here.memory, 1, told(before, asked, scales))
            return self._cast_votes(order, asked, cast.words, said)
        return replace(said, text=json.dumps({"phase": phase, **self._talk(phase, order, asked)}))

    # The two ballots.

    def _cast_spreads(self, order: Message, asked: dict[str, Any], learned: Learned) -> str:
        figures = {"loss": torch.tensor([learned.loss], dtype=torch.float64)}
        kept = {"delta": learned.delta, "figures": figures}
        memory = ClientMemory(learned.state, kept, learned.start)
        self._pending.stage(order.key.client, order.key.round, 0, memory)
        tally = self._tally(asked)
        if self.keyring is not None:
            with self._session(order, asked) as here:
                here.member.receive(here.memory, spoken.read_octets(asked.get("sealed")))
                here.member.hear(here.memory, 0, told(learned.received, asked))
        words = tally.spreads(learned.delta)
        masked = self._masked(order, asked, 0, tally.spread_layout, words)
        return pack(tally.spread_layout, masked).hex()

    def _learned(self, order: Message) -> Learned:
        """What this client learned when it was asked for its spreads."""
        try:
            kept = self._pending.load(order.key.client, order.key.round)
        except MemoryLost:
            raise MessageError("asked to vote on an update that was not trained here") from None
        loss = float(kept.residuals["figures"]["loss"])
        return Learned(kept.residuals["delta"], loss, kept.algorithm, kept.model)

    def _cast_votes(
        self, order: Message, asked: dict[str, Any], words: list[Words], said: Message
    ) -> Message:
        tally = self._tally(asked)
        *tensors, figures = self._masked(order, asked, 1, tally.vote_layout, words)
        *parts, last = tally.vote_wire
        packets = {}
        for name, part, each in zip(self.charter.schema.names, parts, tensors, strict=True):
            packets[name] = VOTES.packet(part, part.pack(each))
        text = json.dumps({"phase": Phase.VOTES, "ballot": last.pack(figures).hex()})
        return replace(said, packets={"delta": packets}, text=text)

    def _masked(
        self,
        order: Message,
        asked: dict[str, Any],
        ballot: int,
        layout: Layout,
        words: list[Words],
    ) -> list[Words]:
        if self.keyring is None:
            return reduced(layout, words)
        with self._session(order, asked) as here:
            return here.member.ballot(here.memory, ballot, layout, words)

    # What is said around them.

    def _talk(self, phase: Phase, order: Message, asked: dict[str, Any]) -> dict[str, Any]:
        if self.keyring is None:
            raise MessageError("asked for a masked sum, but uplink.secure is off here")
        with self._session(order, asked) as here:
            if phase == Phase.KEYS:
                return spoken.say_keys(here.member.keys(here.memory))
            if phase == Phase.SHARES:
                found = spoken.by_client(asked.get("keys"))
                keys = {peer: spoken.read_keys(said) for peer, said in found.items()}
                return {"sealed": spoken.say_octets(here.member.shares(here.memory, keys))}
            ballot = asked.get("ballot")
            if type(ballot) is not int or ballot not in range(BALLOTS):
                raise MessageError(f"a phase of ballot {ballot!r}, a round has {BALLOTS}")
            if phase == Phase.CONSENT:
                voted = spoken.clients(asked.get("clients"))
                here.vault.promise(here.member.session, ballot, voted)
                return {"signature": here.member.consent(here.memory, ballot, voted).hex()}
            signatures = spoken.read_octets(asked.get("signatures"), spoken.SIGNATURE_BYTES)
            return spoken.say_reveal(here.member.reveal(here.memory, ballot, signatures))

    def _session(self, order: Message, asked: dict[str, Any]) -> "Here":
        assert self.keyring is not None
        client = order.key.client
        session = session_of(order, spoken.clients(asked.get("cohort")))
        if client not in session.cohort:
            raise MessageError(f"client {client} is asked into a session that it is not part of")
        identity = self.keyring.identity(client)
        member = Member(session, client, identity, self.keyring.public)
        return Here(member, Vault(self.folder / "sessions" / str(client)))

    def _tally(self, asked: dict[str, Any]) -> Tally:
        voters = asked.get("voters")
        if type(voters) is not int or not 1 <= voters <= MAX_VOTERS:
            raise MessageError(f"a ballot of {voters!r} clients, 1 to {MAX_VOTERS} can be counted")
        return Tally(self.charter.uplink, voters)

    @property
    def _pending(self) -> ClientStore:
        folder = self.folder / "pending"
        folder.mkdir(parents=True, exist_ok=True)
        return ClientStore(folder)


def open_voter(charter: Charter, folder: Path, keyring: Keyring | None) -> Voter:
    """The voter of a site; without keys of their own its clients are simulated ones."""
    if not charter.plan.uplink.secure:
        return Voter(charter, folder, None)
    return Voter(charter, folder, keyring or SimulatedKeys(folder))


class Here:
    """One client in one session; what changed in its memory is on disk before it speaks."""

    def __init__(self, member: Member, vault: Vault) -> None:
        self.member = member
        self.vault = vault
        self.memory: Memory = vault.load(member.session) or member.begin()

    def __enter__(self) -> "Here":
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            self.vault.save(self.member.session, self.memory)


def told(before: str, asked: dict[str, Any], scales: Scales | None = None) -> str:
    """Stands for what a ballot is cast on: the model, the number of voters, the scales."""
    said = json.dumps([before, asked["voters"], scales])
    return hashlib.blake2b(said.encode(), digest_size=16).hexdigest()


def read_scales(order: Message, charter: Charter) -> dict[str, float]:
    """The agreed scale of every tensor, as the order carries them."""
    states = order.states.get("delta", {})
    names = charter.schema.names
    if list(states) != list(names) or any(x.numel() != 1 for x in states.values()):
        raise MessageError("an order to vote carries one scale for each tensor")
    return {name: float(x) for name, x in states.items()}
