"""Rounds that count: the same weights in plain and under masks, whoever drops out and whenever."""

import json
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedwsq.core.errors import ConfigError, MessageError, UpdateError
from fedwsq.core.tree import fingerprint
from fedwsq.federation.hello import encode_hello
from fedwsq.federation.learned import SumKeys
from fedwsq.federation.simulation import simulate
from fedwsq.transports import Recorder, Reply, Serial
from fedwsq.wire import Kind, decode, encode, open_message
from fedwsq.wire.message import CHECKSUM_BYTES, HEADER_BYTES
from harness import tiny

pytest.importorskip("cryptography", reason="needs the extra: pip install 'fedwsq[secure]'")
pytest.importorskip("Crypto", reason="needs the extra: pip install 'fedwsq[secure]'")

import fedwsq.federation.counting as counting_module
from fedwsq.federation.ballots import WORDS_BYTES
from fedwsq.federation.counting import Counting
from fedwsq.federation.journal import Journal
from fedwsq.federation.phases import BALLOTS, vote_packet
from fedwsq.federation.tally import Tally
from fedwsq.secure import spoken
from fedwsq.secure.keys import SEED_BYTES, SimulatedKeys, seal
from fedwsq.secure.ring import Part, add, pack, reduced, unpack, zeros
from fedwsq.secure.session import NEIGHBOURS

CPU = torch.device("cpu")
ONE_BIT = {"uplink.codec": {"name": "danuq"}, "uplink.bits": 1, "aggregation": "uniform"}
EVEN = ONE_BIT | {"uplink.codec": {"name": "danuq", "levels": "even"}, "uplink.bits": 4}


def counting(secure, **overrides):
    return tiny(**(ONE_BIT | overrides | {"uplink.counts": True, "uplink.secure": secure}))


class Leaky:
    """Carries everything but the answers of some clients in some phases; remembers all bytes.

    `deaf` has those who do not even get the order.
    """

    def __init__(self, inner, gone=None, deaf=None):
        self.inner = inner
        self.gone = gone or {}
        self.deaf = deaf or {}
        self.phases = []
        self.arrived = []

    def dispatch(self, body, orders, deadline=None):
        phase = ""
        if orders and open_message(orders[0].head).kind == Kind.PHASE:
            said = json.loads(decode(orders[0].head, None).text)
            phase = f"{said['phase']} {said.get('ballot', '')}".strip()
            self.phases.append(phase)
        orders = [each for each in orders if each.key.client not in self.deaf.get(phase, ())]
        for answer in self.inner.dispatch(body, orders, deadline):
            if answer.key.client in self.gone.get(phase, ()):
                continue
            if phase and isinstance(answer, Reply):
                self.arrived.append((phase, answer.key.client, answer.payload))
            yield answer

    def close(self):
        self.inner.close()


def server_of(plan, tmp_path, gone=None, deaf=None):
    simulation = simulate(plan)
    transport = Leaky(simulation.serial(CPU, tmp_path / "clients"), gone, deaf)
    return simulation.server(transport, spill=tmp_path)


def weights(plan, tmp_path, rounds=1, gone=None, deaf=None):
    tmp_path.mkdir(exist_ok=True)
    server = server_of(plan, tmp_path, gone, deaf)
    record = None
    for _ in range(rounds):
        record = server.step()
    return fingerprint(server.params), record


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        EVEN,
        {"method": "fedacg", **ONE_BIT},
        {"uplink.error_feedback": True},
        {"method": "fedprox", "uplink.select": "all", **ONE_BIT},
    ],
    ids=["one bit", "four even bits", "fedacg", "error feedback", "all tensors"],
)
def test_masked_and_plain_sums_give_the_same_weights(overrides, tmp_path):
    plain, in_plain = weights(counting(False, **overrides), tmp_path / "plain", rounds=2)
    masked, under_masks = weights(counting(True, **overrides), tmp_path / "masked", rounds=2)
    assert masked == plain
    assert under_masks.replied == 5
    assert under_masks.train_loss == in_plain.train_loss > 0
    assert under_masks.unanimous == in_plain.unanimous >= 0
    assert under_masks.uplink_bytes > in_plain.uplink_bytes


@pytest.mark.parametrize(
    ("phase", "as_if"),
    [
        ("keys", "spreads"),
        ("shares", "spreads"),
        ("spreads", "spreads"),
        ("consent 0", None),
        ("reveal 0", None),
        ("votes", "votes"),
        ("consent 1", None),
        ("reveal 1", None),
    ],
)
def test_who_drops_out_is_as_if_it_had_dropped_out_in_plain(phase, as_if, tmp_path):
    plan = counting(True)
    client = list(server_of(plan, tmp_path).sample(1))[2]
    here, record = weights(plan, tmp_path / "masked", gone={phase: [client]})
    there, _ = weights(counting(False), tmp_path / "plain", gone={as_if: [client]})
    assert here == there
    # Whose ballot is in stays in the sum.
    assert record.replied == (4 if as_if else 5)


@pytest.mark.parametrize(
    ("phase", "as_if"), [("consent 0", "votes"), ("reveal 0", None), ("consent 1", None)]
)
def test_who_was_out_of_reach_in_a_phase_is_out_or_in_as_a_whole(phase, as_if, tmp_path):
    """Back again, who does not know whose spreads were summed cannot tell whom to share masks with:
    it casts no vote.
    """
    plan = counting(True)
    client = list(server_of(plan, tmp_path).sample(1))[2]
    here, record = weights(plan, tmp_path / "masked", deaf={phase: [client]})
    there, _ = weights(counting(False), tmp_path / "plain", gone={as_if: [client]})
    assert here == there
    assert record.replied == (4 if as_if else 5)


def test_with_too_few_left_a_round_is_empty_and_says_so(tmp_path):
    plan = counting(True)
    clients = list(server_of(plan, tmp_path).sample(1))
    start = fingerprint(server_of(plan, tmp_path).params)
    after, record = weights(plan, tmp_path / "run", gone={"reveal 1": clients[:2]})
    assert after == start
    assert record.replied == 0
    assert len(record.failures) == 5
    assert sum("are needed" in why for why in record.failures.values()) == 3


class Killed(Exception):
    pass


@pytest.mark.parametrize("phase", ["spreads", "consent 0", "votes", "reveal 1"])
def test_a_server_that_is_killed_finishes_the_attempt_that_it_began(phase, tmp_path):
    plan = counting(True)
    undisturbed, _ = weights(plan, tmp_path / "other")
    first = server_of(plan, tmp_path)
    carried = first.transport.dispatch

    def dies(body, orders, deadline=None):
        for answer in carried(body, orders, deadline):
            if first.transport.phases and first.transport.phases[-1] == phase:
                raise Killed
            yield answer

    first.transport.dispatch = dies
    with pytest.raises(Killed):
        first.step()

    second = simulate(plan).server(
        Leaky(simulate(plan).serial(CPU, tmp_path / "clients")), first.snapshot, tmp_path
    )
    second.step()
    assert fingerprint(second.params) == undisturbed
    assert second.transport.phases[0] == phase  # what was closed is not asked again


def test_a_second_attempt_with_others_is_refused_by_the_clients(tmp_path):
    plan = counting(True)
    server = server_of(plan, tmp_path)
    before = server.snapshot
    server.step()
    client = next(iter(server.sample(1)))
    # A server that has lost its journal, or pretends to, and leaves one client out.
    again = simulate(plan).server(
        Leaky(simulate(plan).serial(CPU, tmp_path / "clients"), {"votes": [client]}), before
    )
    record = again.step()
    assert record.replied == 0
    assert any("another set of clients" in why for why in record.failures.values())


def test_what_the_server_receives_of_a_client_tells_nothing_of_its_update(tmp_path):
    """Every masked integer is uniform: chi-squared of 8 values, 99.99 % are below 29.9."""
    server = server_of(counting(True), tmp_path)
    server.step()
    counts = np.zeros(8)
    tally = Tally(server.charter.uplink, 5)
    for phase, _, payload in server.transport.arrived:
        if phase != "votes":
            continue
        message = decode(payload, server.charter.schema)
        assert message.weight == message.error == 0
        assert not message.metrics
        for name, part in zip(server.charter.schema.names, tally.vote_wire, strict=False):
            packet = message.packets["delta"][name]
            assert packet.side == ()
            if part.bits == 3:
                counts += np.bincount(part.unpack(packet.code), minlength=8)
    expected = counts.sum() / 8
    assert ((counts - expected) ** 2 / expected).sum() < 29.9


def test_a_vote_takes_three_bits_under_masks_and_one_in_plain(tmp_path):
    for secure, bits in ((True, 3), (False, 1)):
        tally = Tally(simulate(counting(secure)).charter.uplink, 5)
        coded = dict(zip(tally.line.schema.names, tally.vote_wire, strict=False))
        assert {coded[name].bits for name in tally.line.coded} == {bits}


def test_sums_are_what_decoded_updates_add_up_to():
    charter = simulate(counting(False)).charter
    tally = Tally(charter.uplink, 3)
    draw = torch.Generator().manual_seed(0)
    updates = [
        {name: torch.randn(shape, generator=draw) for name, shape in charter.schema.shapes.items()}
        for _ in range(3)
    ]
    spreads = [tally.spreads(update) for update in updates]
    agreed = tally.agreed([sum(each) for each in zip(*spreads, strict=True)], 3)
    assert all(scale == pytest.approx(1, rel=0.5) for scale in agreed.values())
    cast = [tally.votes(update, agreed, loss=0.5) for update in updates]
    words = [
        sum(np.asarray(each, np.uint32) for each in part)
        for part in zip(*(one.words for one in cast), strict=True)
    ]
    counted = tally.counted(words, agreed, 3)
    assert counted.loss == pytest.approx(0.5)
    for name, total in counted.total.items():
        decoded = sum(one.decoded[name] for one in cast)
        assert torch.allclose(total, decoded, atol=1e-5)
        if name not in charter.uplink.coded:
            exact = sum(update[name] for update in updates)
            assert torch.allclose(total, exact, atol=3 * 16 * agreed[name] / 2**15)


@pytest.mark.parametrize("voters", [127, 128, 200, 255, 256])
@pytest.mark.parametrize("overrides", [{}, EVEN], ids=["one bit", "four even bits"])
def test_as_many_as_can_be_counted_cast_the_same(voters, overrides):
    """The sums of both ballots are so many times one client's, however wide a word they take."""
    charter = simulate(counting(False, **overrides)).charter
    tally = Tally(charter.uplink, voters)
    draw = torch.Generator().manual_seed(0)
    update = {
        name: torch.randn(shape, generator=draw) for name, shape in charter.schema.shapes.items()
    }

    def summed(layout, words):
        total = zeros(layout)
        for _ in range(voters):
            add(total, words)
        return reduced(layout, total)

    spreads = tally.spreads(update)
    agreed = tally.agreed(summed(tally.spread_layout, spreads), voters)
    assert agreed == tally.agreed(spreads, 1)
    cast = tally.votes(update, agreed, loss=0.5)
    counted = tally.counted(summed(tally.vote_layout, cast.words), agreed, voters)
    assert counted.loss == 0.5
    assert counted.unanimous > 0
    for name, total in counted.total.items():
        assert torch.allclose(total, voters * cast.decoded[name], rtol=1e-5)


def test_a_tensor_that_did_not_move_adds_nothing_and_a_forged_count_is_refused():
    charter = simulate(counting(False)).charter
    tally = Tally(charter.uplink, 3)
    still = {name: torch.zeros(shape) for name, shape in charter.schema.shapes.items()}
    agreed = tally.agreed([3 * each for each in tally.spreads(still)], 3)
    assert set(agreed.values()) == {0.0}
    cast = tally.votes(still, agreed, loss=0.0)
    words = [3 * np.asarray(each, np.uint32) for each in cast.words]
    assert all(not x.any() for x in tally.counted(words, agreed, 3).total.values())
    words[0][:] = 2**20
    with pytest.raises(MessageError, match="somebody's ballot was none"):
        tally.counted(words, agreed, 3)


@pytest.mark.parametrize(("residue", "replied"), [(8, 5), (2, 0)])
def test_a_residue_that_is_no_vote_leaves_the_round_empty(residue, replied, tmp_path):
    """Masks hide who forged it, and the count shows that somebody did; 8 is 0, modulo 8."""
    server = server_of(counting(True), tmp_path)
    schema = server.charter.schema
    cheat = next(iter(server.sample(1)))
    carried = server.transport.dispatch

    def forging(body, orders, deadline=None):
        for answer in carried(body, orders, deadline):
            said = decode(answer.payload, schema) if answer.key.client == cheat else None
            if said is not None and said.packets:
                for name in server.charter.uplink.coded:
                    tally = Tally(server.charter.uplink, 5)
                    part = tally.vote_wire[schema.index[name]]
                    words = part.unpack(said.packets["delta"][name].code)
                    forged = part.pack(part.reduce(words + np.uint8(residue)))
                    said.packets["delta"][name] = vote_packet(part, forged)
                answer = Reply(answer.key, encode(said, schema))
            yield answer

    server.transport.dispatch = forging
    before = fingerprint(server.params)
    record = server.step()
    assert record.replied == replied
    assert (fingerprint(server.params) == before) == (not replied)
    assert all("somebody's ballot was none" in why for why in record.failures.values())


@pytest.mark.parametrize("forged", ["moved", "log", "loss"])
def test_in_plain_a_ballot_that_is_none_costs_its_client_and_nobody_else(forged, tmp_path):
    """In the sum it would be nobody's fault, and the round would be lost for all."""
    (tmp_path / "a").mkdir()
    server = server_of(counting(False), tmp_path / "a")
    schema = server.charter.schema
    cheat = next(iter(server.sample(1)))
    carried = server.transport.dispatch
    layouts = Tally(server.charter.uplink, 5).spread_layout
    figures = Tally(server.charter.uplink, 1).vote_layout[-1:]

    def forging(body, orders, deadline=None):
        for answer in carried(body, orders, deadline):
            if answer.key.client != cheat or not isinstance(answer, Reply):
                yield answer
                continue
            message = decode(answer.payload, schema)
            said = json.loads(message.text)
            first = not message.packets  # of the two ballots
            if first == (forged != "loss"):
                layout = layouts if first else figures
                words = unpack(layout, bytes.fromhex(said["ballot"]))
                words[1 if forged == "moved" else 0][:] = 7 if forged == "moved" else 2**31
                said["ballot"] = pack(layout, words).hex()
            forged_one = replace(message, text=json.dumps(said))
            yield Reply(answer.key, encode(forged_one, schema))

    server.transport.dispatch = forging
    record = server.step()
    assert (record.replied, list(record.failures)) == (4, [str(cheat)])
    # As if it had been silent from then on.
    phase = "votes" if forged == "loss" else "spreads"
    expected, _ = weights(counting(False), tmp_path / "b", gone={phase: [cheat]})
    assert fingerprint(server.params) == expected


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "masked"])
def test_however_many_answer_one_message_is_open_and_one_ballot_unpacked(
    secure, tmp_path, monkeypatch
):
    opened = Living(counting_module.decode)
    unpacked = Living(Part.unpack)
    monkeypatch.setattr(counting_module, "decode", opened)
    monkeypatch.setattr(Part, "unpack", lambda part, data: unpacked(part, data))
    server = server_of(counting(secure), tmp_path)
    assert server.step().replied == 5
    # One more of each: a name still stands for the one before.
    assert opened.most <= 2
    assert unpacked.most <= 2 * len(Tally(server.charter.uplink, 5).vote_layout)


class Living:
    """Calls a function, and knows how many of its results somebody still had at once."""

    def __init__(self, function):
        self.function = function
        self.found = []
        self.most = 0

    def __call__(self, *args):
        result = self.function(*args)
        self.found = [each for each in self.found if each() is not None]
        self.found.append(weakref.ref(result))
        self.most = max(self.most, len(self.found))
        return result


@pytest.mark.parametrize(
    ("secure", "phase"),
    [(True, "keys"), (True, "consent 0"), (False, "spreads"), (False, "votes")],
)
def test_an_answer_longer_than_any_is_not_kept(secure, phase, tmp_path, monkeypatch):
    server = server_of(counting(secure), tmp_path)
    cheat = next(iter(server.sample(1)))
    carried = server.transport.dispatch
    kept = []
    finished = Journal.phase

    def inflating(body, orders, deadline=None):
        for answer in carried(body, orders, deadline):
            if answer.key.client == cheat and server.transport.phases[-1] == phase:
                answer = Reply(answer.key, bytes(2**20))
            yield answer

    def keep(journal, name, ask):
        answers = finished(journal, name, ask)
        kept.extend(answers.values())
        return answers

    server.transport.dispatch = inflating
    monkeypatch.setattr(Journal, "phase", keep)
    record = server.step()
    assert max(map(len, kept)) < 2**20
    assert record.uplink_bytes > 2**20  # paid for
    # Whose ballot is in stays in the sum.
    assert record.replied == (5 if phase == "consent 0" else 4)
    if record.replied == 4:
        assert (
            f"1048576 bytes, an answer in the phase {phase} has at" in record.failures[str(cheat)]
        )


def test_an_answer_in_words_has_room_for_all_neighbours():
    neighbours = range(10**18, 10**18 + NEIGHBOURS)
    sealed = seal(bytes(32), bytes(2 * SEED_BYTES * BALLOTS), b"")
    said = {"phase": "shares", "sealed": spoken.say_octets(dict.fromkeys(neighbours, sealed))}
    assert 5000 < HEADER_BYTES + len(json.dumps(said)) + CHECKSUM_BYTES < 6400 < WORDS_BYTES


@pytest.mark.parametrize(
    ("forged", "why"),
    [
        ({"pairs": 1, "commitments": 1}, "1 keys and 1 commitments"),
        ({"commitments": 1}, "2 keys and 1 commitments"),
        ({"pairs": 3, "commitments": 3}, "3 keys and 3 commitments"),
        ({"seal": "00" * 32}, "nothing can be agreed with"),
        ({"pairs": ["00" * 32] * 2}, "nothing can be agreed with"),
    ],
)
def test_keys_that_nobody_can_use_cost_their_client_and_nobody_else(forged, why, tmp_path):
    """Its neighbours would all refuse to go on, and the round would have no sum."""
    (tmp_path / "a").mkdir()
    server = server_of(counting(True), tmp_path / "a")
    schema = server.charter.schema
    cheat = next(iter(server.sample(1)))
    carried = server.transport.dispatch

    def forging(body, orders, deadline=None):
        for answer in carried(body, orders, deadline):
            if answer.key.client == cheat and server.transport.phases[-1] == "keys":
                message = decode(answer.payload, schema)
                said = json.loads(message.text)
                for name, what in forged.items():
                    # A number is how many to show of the keys that there are.
                    said[name] = (said[name] * 2)[:what] if isinstance(what, int) else what
                forged_one = replace(message, text=json.dumps(said))
                answer = Reply(answer.key, encode(forged_one, schema))
            yield answer

    server.transport.dispatch = forging
    record = server.step()
    assert (record.replied, list(record.failures)) == (4, [str(cheat)])
    assert why in record.failures[str(cheat)]
    expected, _ = weights(counting(False), tmp_path / "b", gone={"spreads": [cheat]})
    assert fingerprint(server.params) == expected


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "masked"])
def test_a_recorder_keeps_all_that_a_round_is_charged_for(secure, tmp_path):
    server = server_of(counting(secure), tmp_path)
    server.transport = Recorder(server.transport, tmp_path / "messages")
    record = server.step()
    sizes = {path.stem: path.stat().st_size for path in (tmp_path / "messages").iterdir()}
    orders = sum(size for name, size in sizes.items() if name.endswith("-order"))
    assert record.downlink_bytes == orders + 5 * sizes.pop("round-1-spreads-broadcast")
    assert record.uplink_bytes == sum(s for n, s in sizes.items() if not n.endswith("-order"))
    assert len(sizes) == 2 * 5 * (8 if secure else 2)


class Listening:
    """Carries everything, and keeps the first order to train with its broadcast."""

    def __init__(self, inner):
        self.inner = inner
        self.heard = None

    def dispatch(self, body, orders, deadline=None):
        if body and self.heard is None:
            self.heard = (body, orders[0])
        return self.inner.dispatch(body, orders, deadline)

    def close(self):
        self.inner.close()


def test_a_client_gives_nothing_but_its_part_in_a_sum(tmp_path):
    """A server that asks for more, in words that a client of another plan would answer."""
    simulation = simulate(counting(True))
    charter = simulation.charter
    site = simulation.site(CPU, tmp_path / "clients")
    transport = Listening(simulation.serial(CPU, tmp_path / "others"))
    simulation.server(transport, spill=tmp_path).step()
    body, order = transport.heard
    message = decode(order.head, charter.schema)

    for kind, why in ((Kind.ORDER, "an update of its own"), (Kind.EVALUATE, "own examples")):
        asked = replace(message, kind=kind, text="", rates=(1.0,))
        with pytest.raises(MessageError, match=why):
            site.answer(body, order._replace(head=encode(asked, charter.schema)))
    hello = order._replace(head=encode_hello(charter, order.key.client, message.run))
    welcome = json.loads(decode(site.answer(b"", hello), charter.schema).text)
    assert (welcome["examples"], welcome["labels"]) == (1, [])


class TwoTongues:
    """A server that has all but one client cast nothing: it tells them that nothing moved."""

    def __init__(self, inner, charter, client):
        self.inner = inner
        self.charter = charter
        self.client = client
        self.votes = {}  # client -> the order as it was

    def dispatch(self, body, orders, deadline=None):
        sent = []
        for order in orders:
            message = decode(order.head, self.charter.schema)
            if message.kind == Kind.PHASE and message.states:
                self.votes[order.key.client] = order
                if order.key.client != self.client:
                    order = self.stilled(order)
            sent.append(order)
        return self.inner.dispatch(body, sent, deadline)

    def stilled(self, order):
        message = decode(order.head, self.charter.schema)
        states = {name: torch.zeros(1) for name in message.states["delta"]}
        silent = replace(message, states={"delta": states})
        return order._replace(head=encode(silent, self.charter.schema))

    def close(self):
        self.inner.close()


def two_tongues(tmp_path, gone=None):
    """A server of that kind, and the one to whom it tells the truth."""
    plan = counting(True)
    simulation = simulate(plan)
    client = next(iter(server_of(plan, tmp_path).sample(1)))
    site = simulation.site(CPU, tmp_path / "clients")
    gone = {phase: [client] for phase in gone or ()}
    transport = TwoTongues(Leaky(Serial(site.answer), gone), simulation.charter, client)
    return simulation.server(transport, spill=tmp_path), site, client


def test_who_was_told_otherwise_than_the_others_is_in_no_sum(tmp_path):
    server, site, client = two_tongues(tmp_path)
    record = server.step()
    assert record.replied == 4
    assert "model and the scales that the others had" in record.failures[str(client)]
    # Nor does it help to ask the one again, for nothing: the difference would be its update.
    tongues = server.transport
    with pytest.raises(MessageError, match="told otherwise than before"):
        site.answer(b"", tongues.stilled(tongues.votes[client]))
    assert site.answer(b"", tongues.votes[client])


def test_a_server_that_counts_whom_it_told_otherwise_finds_noise(tmp_path, monkeypatch):
    """Four of five signatures are enough, so it leaves out the one that would not hold."""
    agreed_on = Counting._agreed_on
    monkeypatch.setattr(
        Counting, "_agreed_on", lambda counting, ballots: agreed_on(counting, dict(ballots))
    )
    server, _, _ = two_tongues(tmp_path, gone=["consent 1"])
    before = fingerprint(server.params)
    record = server.step()
    assert record.replied == 0
    assert any("ballot was none" in why for why in record.failures.values())
    assert fingerprint(server.params) == before


class OtherModel:
    """A server that has a client train once more, on another model, before it votes."""

    def __init__(self, inner, site, charter, client):
        self.inner = inner
        self.site = site
        self.charter = charter
        self.client = client
        self.spreads = None
        self.refused = ""

    def dispatch(self, body, orders, deadline=None):
        mine = {order.key.client: order for order in orders}.get(self.client)
        said = decode(mine.head, self.charter.schema) if mine else None
        if said is not None and said.text and json.loads(said.text)["phase"] == "spreads":
            self.spreads = self.other(body), mine
        if said is not None and said.states:
            try:
                self.site.answer(*self.spreads)
            except MessageError as error:
                self.refused = str(error)
        return self.inner.dispatch(body, orders, deadline)

    def other(self, body):
        """The same broadcast, with a tensor of zeros."""
        message = decode(body, self.charter.schema)
        name = self.charter.schema.names[0]
        packet = message.packets["params"][name]
        message.packets["params"][name] = packet._replace(code=bytes(len(packet.code)))
        return encode(message, self.charter.schema)

    def close(self):
        self.inner.close()


def test_a_client_votes_on_the_model_that_its_spreads_were_of(tmp_path):
    plan = counting(True)
    undisturbed, _ = weights(plan, tmp_path / "other")
    simulation = simulate(plan)
    site = simulation.site(CPU, tmp_path / "clients")
    client = next(iter(server_of(plan, tmp_path).sample(1)))
    transport = OtherModel(Serial(site.answer), site, simulation.charter, client)
    server = simulation.server(transport, spill=tmp_path)
    server.step()
    assert "told otherwise than before" in transport.refused
    assert fingerprint(server.params) == undisturbed


@pytest.mark.parametrize(("gone", "replied"), [({}, 5), ({"votes": [None]}, 0)])
def test_the_same_plan_begun_anew_unmasks_no_other_set(gone, replied, tmp_path):
    """Another run of the same plan trains to the same updates: it is held to the same sets."""
    plan = counting(True)
    simulation = simulate(plan)
    keys = SimulatedKeys(tmp_path)

    def begin(gone):
        store = tmp_path / str(len(list(tmp_path.iterdir())))
        site = simulation.site(CPU, store, SumKeys(keys, tmp_path / "promises"))
        return simulation.server(Leaky(Serial(site.answer), gone))

    first = begin({})
    assert first.step().replied == 5
    client = next(iter(first.sample(1)))
    record = begin({phase: [client] for phase in gone}).step()
    assert record.replied == replied
    if not replied:
        assert any("choose another seed" in why for why in record.failures.values())


def test_why_a_client_could_not_train_stays_with_it(tmp_path):
    plan = counting(True, algorithm="user_code:Flaky", **{"algorithm.round": 1})
    _, record = weights(plan, tmp_path)
    assert record.replied < 5
    reasons = [why for why in record.failures.values() if "could not train" in why]
    assert reasons
    assert all("with uplink.secure it does not say why" in why for why in reasons)


def test_an_update_that_is_not_finite_has_no_part_in_a_sum():
    charter = simulate(counting(False)).charter
    update = {name: torch.zeros(shape) for name, shape in charter.schema.shapes.items()}
    update[charter.schema.names[-1]][0] = float("nan")
    with pytest.raises(UpdateError, match="not finite"):
        Tally(charter.uplink, 3).spreads(update)


def test_sums_are_held_to_what_those_who_voted_can_cast():
    """One of five dropped out: a fifth that moved is a forgery, and so is a loss beyond all."""
    charter = simulate(counting(False)).charter
    tally = Tally(charter.uplink, 5)
    names = charter.schema.names
    moved = [np.zeros(len(names), np.uint32), np.full(len(names), 5, np.uint8)]
    with pytest.raises(MessageError, match="beyond what these clients can cast"):
        tally.agreed(moved, 4)
    still = {name: torch.zeros(shape) for name, shape in charter.schema.shapes.items()}
    words = tally.votes(still, dict.fromkeys(names, 0.0), loss=128.0).words
    fourfold = [4 * np.asarray(each, np.uint32) for each in words]
    assert tally.counted(fourfold, dict.fromkeys(names, 0.0), 4).loss == 128
    fourfold[-1][0] += 1
    with pytest.raises(MessageError, match="somebody's ballot was none"):
        tally.counted(fourfold, dict.fromkeys(names, 0.0), 4)


def test_a_server_killed_while_it_opened_a_round_opens_it_again(tmp_path):
    """Between making the folder and the attempt in it, or while it removed the one before."""
    (tmp_path / "counting").mkdir()
    (tmp_path / "counting" / "keys").write_bytes(b"of another attempt")
    journal = Journal(tmp_path, b"round 2")
    assert journal.phase("keys", lambda: {1: b"new"}) == {1: b"new"}
    assert Journal(tmp_path, b"round 2").nonce == journal.nonce


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ({"uplink.bits": 4}, "even steps"),
        ({"data.client_test": 0.2}, "own examples"),
        ({"eval_clients": True}, "own examples"),
        ({"uplink.codec": {"name": "uq"}, "uplink.bits": 4}, "even steps"),
        ({"uplink.rest": "danuq8"}, "fixed-point"),
        ({"uplink.bits": {"name": "per_client", "choices": [1, 2]}}, "different widths"),
        ({"uplink.codec": {"name": "ecq"}}, "ecq at 1 bits"),
        ({"uplink.codec": {"name": "danuq", "dequantize": "own"}}, "own scales"),
        ({"aggregation": "error"}, "aggregation=uniform"),
        ({"aggregation": "examples"}, "aggregation=uniform"),
        ({"method": "scaffold", **ONE_BIT}, "scaffold needs more"),
        ({"method": "fedcm", **ONE_BIT}, "fedcm needs more"),
        ({"clients_per_round": 2}, "at least 3"),
        ({"combine": "median"}, "combine=mean"),
    ],
)
def test_what_cannot_be_summed_is_refused_with_the_way_out(overrides, why):
    with pytest.raises(ConfigError, match=why):
        counting(True, **overrides)
