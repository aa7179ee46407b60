"""A client's part in a round that counts: it trains once, and answers phase by phase."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch

from fedwsq.core.errors import MessageError
from fedwsq.federation.charter import Charter
from fedwsq.federation.learned import Learned, SumKeys, Work
from fedwsq.federation.memory import ClientMemory, ClientStore, MemoryLost
from fedwsq.federation.phases import BALLOTS, TOLD_BYTES, Phase, session_of, vote_packet
from fedwsq.federation.tally import Scales, Tally
from fedwsq.secure import spoken
from fedwsq.secure.keys import Keyring, SimulatedKeys
from fedwsq.secure.member import Member, Memory
from fedwsq.secure.memory import Vault
from fedwsq.secure.ring import Layout, Words, pack, reduced
from fedwsq.wire import Kind, Message, Packets
from fedwsq.wire.link import MAX_VOTERS

Heard: TypeAlias = dict[str, str]  # what stands for what was told, where anything is masked


@dataclass
class Voter:
    """All clients of a site. `keyring` is None where nothing is masked. `promises` is a folder that
    outlives runs: what its clients have ever consented to.

    What lies between two phases of a round is on disk: any process of the site may be asked next.
    """

    charter: Charter
    folder: Path
    keyring: Keyring | None
    promises: Path

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
            return replace(said, text=json.dumps({"phase": phase, **text}))
        if phase == Phase.VOTES:
            learned = self._learned(order)
            scales = read_scales(order, self.charter)
            heard = self._hear_scales(order, asked, scales)
            cast = self._tally(asked).votes(learned.delta, scales, learned.loss)
            work.remember(learned, cast.decoded)
            packets, text = self._cast_votes(order, asked, cast.words)
            text = {"phase": phase, **text, **heard}
            return replace(said, packets=packets, text=json.dumps(text))
        return replace(said, text=json.dumps({"phase": phase, **self._talk(phase, order, asked)}))

    # The two ballots.

    def _cast_spreads(
        self, order: Message, asked: dict[str, Any], learned: Learned
    ) -> dict[str, Any]:
        tally = self._tally(asked)
        # Before the update is kept: one that was trained on another model is never voted on.
        heard = self._hear_model(order, asked, learned)
        figures = {"loss": torch.tensor([learned.loss], dtype=torch.float64)}
        kept = {"delta": learned.delta, "figures": figures}
        memory = ClientMemory(learned.state, kept, learned.start)
        self._open_pending().stage(order.key.client, order.key.round, 0, memory)
        words = tally.spreads(learned.delta)
        masked = self._masked(order, asked, 0, tally.spread_layout, words)
        return {"ballot": pack(tally.spread_layout, masked).hex(), **heard}

    def _hear_model(self, order: Message, asked: dict[str, Any], learned: Learned) -> Heard:
        if self.keyring is None:
            return {}
        with self._session(order, asked) as here:
            here.member.receive(here.memory, spoken.read_octets(asked.get("sealed")))
            heard = told(learned.received, asked)
            here.member.hear(here.memory, 0, heard)
            here.memory.training = training_digest(here.member, order, learned)
        return {"told": heard}

    def _hear_scales(self, order: Message, asked: dict[str, Any], scales: Scales) -> Heard:
        if self.keyring is None:
            return {}
        with self._session(order, asked) as here:
            heard = told(here.memory.told.get(0, ""), asked, scales)
            here.member.hear(here.memory, 1, heard)
        return {"told": heard}

    def _learned(self, order: Message) -> Learned:
        """What this client learned when it was asked for its spreads."""
        try:
            kept = self._open_pending().load(order.key.client, order.key.round)
        except MemoryLost:
            raise MessageError("asked to vote on an update that was not trained here") from None
        loss = float(kept.residuals["figures"]["loss"])
        return Learned(kept.residuals["delta"], loss, kept.algorithm, kept.model)

    def _cast_votes(
        self, order: Message, asked: dict[str, Any], words: list[Words]
    ) -> tuple[Packets, dict[str, Any]]:
        tally = self._tally(asked)
        *tensors, figures = self._masked(order, asked, 1, tally.vote_layout, words)
        *parts, last = tally.vote_wire
        packets = {}
        for name, part, each in zip(self.charter.schema.names, parts, tensors, strict=True):
            packets[name] = vote_packet(part, part.pack(each))
        return {"delta": packets}, {"ballot": last.pack(figures).hex()}

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
                signature = here.member.consent(here.memory, ballot, voted)
                here.vault.promise(here.member.session, ballot, here.memory)
                return {"signature": signature.hex()}
            signatures = spoken.read_octets(asked.get("signatures"), spoken.SIGNATURE_BYTES)
            return spoken.say_reveal(here.member.reveal(here.memory, ballot, signatures))

    @contextmanager
    def _session(self, order: Message, asked: dict[str, Any]) -> Iterator["Here"]:
        """What changes in a client's memory is on disk before it speaks, or it does not change."""
        assert self.keyring is not None
        client = order.key.client
        session = session_of(order, spoken.clients(asked.get("cohort")))
        if client not in session.cohort:
            raise MessageError(f"client {client} is asked into a session that it is not part of")
        identity = self.keyring.identity(client)
        member = Member(session, client, identity, self.keyring.public)
        home = self.folder / "sessions" / str(client)
        vault = Vault(home, self.promises / str(client))
        with vault.locked():
            memory = vault.load(session) or member.begin()
            yield Here(member, vault, memory)
            vault.save(session, memory)

    def _tally(self, asked: dict[str, Any]) -> Tally:
        voters = asked.get("voters")
        if type(voters) is not int or not 1 <= voters <= MAX_VOTERS:
            raise MessageError(f"a ballot of {voters!r} clients, 1 to {MAX_VOTERS} can be counted")
        return Tally(self.charter.uplink, voters)

    def _open_pending(self) -> ClientStore:
        """Updates that were trained and are still to be voted on."""
        folder = self.folder / "pending"
        folder.mkdir(parents=True, exist_ok=True)
        return ClientStore(folder)


def open_voter(charter: Charter, folder: Path, keys: SumKeys) -> Voter:
    """The voter of a site; without keys of their own its clients are simulated ones."""
    promises = keys.promises or folder / "promises"
    if not charter.plan.uplink.secure:
        return Voter(charter, folder, None, promises)
    keyring = keys.keyring
    if keyring is None:
        keyring = SimulatedKeys(folder)
    return Voter(charter, folder, keyring, promises)


class Here(NamedTuple):
    """One client in one session."""

    member: Member
    vault: Vault
    memory: Memory


def told(before: str, asked: dict[str, Any], scales: Scales | None = None) -> str:
    """Stands for what a ballot is cast on: the model, the number of voters, the scales."""
    said = json.dumps([before, asked["voters"], scales])
    return hashlib.blake2b(said.encode(), digest_size=TOLD_BYTES).hexdigest()


def training_digest(member: Member, order: Message, learned: Learned) -> str:
    """Stands for what an update follows from, besides the client's examples and its memory."""
    who = member.identity.public.hex()
    said = json.dumps([who, order.key.seed, order.key.round, learned.received])
    return hashlib.blake2b(said.encode(), digest_size=16).hexdigest()


def read_scales(order: Message, charter: Charter) -> dict[str, float]:
    """The agreed scale of every tensor, as the order carries them; the wire refuses what is not
    finite or negative.
    """
    states = order.states.get("delta", {})
    names = charter.schema.names
    if list(states) != list(names) or any(x.numel() != 1 for x in states.values()):
        raise MessageError("an order to vote carries one scale for each tensor")
    return {name: float(x) for name, x in states.items()}
