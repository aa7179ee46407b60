"""A round: replies in any order, late, lost, twice, damaged or from elsewhere."""

import functools
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
import torch

from fedwsq.algorithms import FedAvg
from fedwsq.core.errors import RunError
from fedwsq.core.seeds import derive
from fedwsq.core.tree import fingerprint, scale
from fedwsq.core.types import Channel, Key
from fedwsq.data import Split
from fedwsq.federation import server as server_module
from fedwsq.federation.fold import MAX_FOREIGN
from fedwsq.federation.record import scale_ratios
from fedwsq.federation.server import Server, sample
from fedwsq.federation.simulation import simulate
from fedwsq.federation.spool import Spool
from fedwsq.plan import Plan
from fedwsq.runs import Run
from fedwsq.transports import Answer, Failure, Order, Reply, Serial, Transport, seconds_left
from fedwsq.wire import Kind, decode, encode
from fedwsq.wire.parse import kind_of
from harness import timeless, tiny

CPU = torch.device("cpu")
Answers = list[Answer]
Weather = Callable[[int, Answers], Iterable[Answer]]  # round, what was sent -> what arrives


class Network:
    """A real serial transport behind a network of which the test decides what arrives.

    Evaluation is not what these tests are about: it passes as it is.
    """

    def __init__(self, inner: Transport, weather: Weather) -> None:
        self.inner = inner
        self.weather = weather

    def dispatch(
        self, body: bytes, orders: Sequence[Order], deadline: float | None = None
    ) -> Iterator[Answer]:
        if kind_of(orders[0].head) is not Kind.ORDER:
            yield from self.inner.dispatch(body, orders, deadline)
            return
        self.body = body
        self.orders = list(orders)
        yield from self.weather(
            orders[0].key.round, list(self.inner.dispatch(body, orders, deadline))
        )

    def close(self) -> None:
        self.inner.close()


def under(weather: Weather, plan: Plan | None = None) -> Server:
    simulation = simulate(plan or tiny())
    return simulation.server(Network(simulation.serial(CPU), weather))


def play(
    weather: Weather, rounds: int = 2, plan: Plan | None = None
) -> tuple[str, list[dict[str, object]]]:
    """The weights after some rounds, and the rows without timings."""
    server = under(weather, plan)
    records = [server.step() for _ in range(rounds)]
    return fingerprint(server.params), [timeless(vars(record)) for record in records]


def fine(number: int, answers: Answers) -> Answers:
    return answers


def reframed(reply: Reply, server: Server, **changes: object) -> Reply:
    """The same reply with fields changed and a valid checksum, as a liar would send it."""
    message = decode(reply.payload, server.charter.schema)
    return Reply(reply.key, encode(replace(message, **changes), server.charter.schema))


# Order


@pytest.mark.parametrize("order", ["reversed", "shuffled"])
def test_the_order_of_replies_changes_nothing(order):
    def weather(number: int, answers: Answers) -> Answers:
        if order == "reversed":
            return answers[::-1]
        return random.Random(number).sample(answers, len(answers))

    assert play(weather) == play(fine)


def test_replies_that_come_twice_count_once():
    weights, rows = play(lambda number, answers: [*reversed(answers), *answers])
    clients = [str(client) for client in sample(range(10), 5, derive(0, "sample", 1))]
    assert rows[0]["duplicates"] == dict.fromkeys(clients, 1)
    once = [row | {"duplicates": {}} for row in rows]
    assert (weights, once) == play(fine)


def test_replies_that_wait_on_disk_change_nothing(monkeypatch, tmp_path):
    spilled = []

    class Watched(Spool):
        def close(self) -> None:
            spilled.append(self._file is not None)
            super().close()

    monkeypatch.setattr(server_module, "Spool", functools.partial(Watched, limit_bytes=20_000))
    server = under(lambda number, answers: answers[::-1])
    server.spill = tmp_path
    for _ in range(2):
        server.step()
    assert spilled == [True, True]
    assert fingerprint(server.params) == play(fine)[0]
    assert list(tmp_path.iterdir()) == []


# Loss


def test_a_lost_reply_leaves_the_mean_over_the_others():
    server = under(lambda number, answers: answers[:2] + answers[3:])
    before = dict(server.params)
    shared = server.snapshot.shared
    clients = sample(range(10), 5, derive(0, "sample", 1))
    record = server.step()
    assert (record.sampled, record.replied, record.failed) == (5, 4, 1)
    assert record.failures == {str(clients[2]): "no reply"}
    network = server.transport
    assert isinstance(network, Network)
    heard = [order for order in network.orders if order.key.client != clients[2]]
    # Asked once more, to see what each of the four had sent.
    answers = network.inner.dispatch(network.body, heard)
    kept = [decode(answer.payload, server.charter.schema) for answer in answers]
    examples = sum(message.weight for message in kept)
    sent = [server.charter.uplink.receive(m.packets, shared, m.key)["delta"] for m in kept]
    for name, start in before.items():
        deltas = [m.weight * delta[name] for m, delta in zip(kept, sent, strict=True)]
        expected = start + sum(deltas) / examples
        torch.testing.assert_close(server.params[name], expected, rtol=1e-6, atol=1e-7)
    accepted = server.snapshot.accepted.nonzero()[0].tolist()
    assert set(accepted) == set(clients) - {clients[2]}


def test_a_failure_and_a_lost_reply_give_the_same_weights():
    def fails(number: int, answers: Answers) -> Answers:
        return [Failure(answers[0].key, "battery"), *answers[1:]]

    failed, rows = play(fails)
    assert failed == play(lambda number, answers: answers[1:])[0]
    assert failed != play(fine)[0]
    assert list(rows[0]["failures"].values()) == ["battery"]


def test_no_replies_leave_everything_but_the_round_as_it_was():
    server = under(lambda number, answers: ())
    before = server.snapshot
    record = server.step()
    after = server.snapshot
    assert (record.replied, record.failed, record.uplink_bytes) == (0, 5, 0)
    assert record.train_loss is None
    assert record.bits is None
    assert set(record.failures.values()) == {"no reply"}
    assert record.test_accuracy is not None
    assert after.accepted.tolist() == before.accepted.tolist()
    after = replace(after, accepted=before.accepted)  # arrays do not compare
    assert after == replace(before, round=1, accuracy_ema=record.test_accuracy)


@pytest.mark.parametrize("mode", ["start", "chain"])
def test_a_codec_of_ones_own_at_a_rate_that_float32_cannot_hold(tmp_path, mode):
    codec = {"name": "user_code:Ternary", "offered": [1.6, 3.2]}
    links = {
        "uplink": {"codec": "user_code:Ternary", "error_feedback": True},
        "downlink": {"codec": codec, "bits": 1.6, "mode": mode},
    }
    with Run.create(tiny(rounds=2, **links), tmp_path / "run", workers=1) as run:
        run.go()
    assert [row.replied for row in run.records] == [5, 5]
    assert (tmp_path / "run/config.toml").read_text().count("bits = 1.6\n") == 2


def test_three_empty_rounds_in_a_row_end_the_run_with_the_reason(tmp_path):
    plan = tiny(rounds=9, **{"model.name": "user_code:failing_cnn"})
    with Run.create(plan, tmp_path / "run", workers=1) as run, pytest.raises(RunError) as caught:
        run.go()
    assert "3 rounds in a row without a reply" in str(caught.value)
    assert "RuntimeError: shapes do not fit" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [(row.round, row.replied) for row in run.records] == [(1, 0), (2, 0), (3, 0)]


def test_two_empty_rounds_are_survived():
    def weather(number: int, answers: Answers) -> Answers:
        return [] if number in (1, 2, 4) else answers

    _, rows = play(weather, rounds=5)
    assert [row["replied"] for row in rows] == [0, 0, 5, 0, 5]


# Damage and lies


def test_a_damaged_reply_never_reaches_the_model():
    def weather(number: int, answers: Answers) -> Answers:
        payload = bytearray(answers[1].payload)
        payload[len(payload) // 2] ^= 1
        return [answers[0], Reply(answers[1].key, bytes(payload)), *answers[2:]]

    weights, rows = play(weather)
    assert weights == play(lambda number, answers: [answers[0], *answers[2:]])[0]
    assert all(row["failed"] == 1 for row in rows)
    assert [list(row["failures"].values()) for row in rows] == [
        ["MessageError: bad checksum: the message was damaged on its way"]
    ] * 2


def test_a_reply_sent_again_in_a_later_round_is_refused():
    held: dict[int, Reply] = {}

    def weather(number: int, answers: Answers) -> Answers:
        replayed = [held.get(a.key.client, a) for a in answers]
        held.update(
            {a.key.client: Reply(a.key._replace(round=number + 1), a.payload) for a in answers}
        )
        return replayed

    plan = tiny(clients_per_round=10)
    weights, (first, second) = play(weather, plan=plan)
    assert (first["replied"], second["replied"]) == (10, 0)
    assert all("reply to another order" in why for why in second["failures"].values())
    assert weights == play(lambda number, answers: answers if number == 1 else [], plan=plan)[0]


def test_a_reply_to_an_earlier_attempt_at_the_round_is_refused():
    """After a kill the round is run again, with the same key; only the nonce tells the attempts
    apart.
    """
    first = under(fine)
    answers: Answers = []
    first.transport.weather = lambda number, sent: answers.extend(sent) or sent
    start = first.snapshot
    first.step()
    again = under(lambda number, sent: [answers[0], *sent[1:]])
    again.snapshot = start
    record = again.step()
    assert [int(client) for client in record.failures] == [answers[0].key.client]
    assert "reply to another order" in next(iter(record.failures.values()))


def test_the_reply_of_another_client_is_refused():
    def weather(number: int, answers: Answers) -> Answers:
        return [answers[0], Reply(answers[1].key, answers[0].payload), *answers[2:]]

    weights, (row, *_) = play(weather, rounds=1)
    assert weights == play(lambda number, answers: [answers[0], *answers[2:]], rounds=1)[0]
    assert row["failed"] == 1
    assert "reply to another order" in next(iter(row["failures"].values()))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"run": bytes(16)}, "not of this run"),
        ({"agreement": bytes(16)}, "the other end works by other settings"),
        ({"nonce": bytes(16)}, "reply to another order"),
        ({"key": Key(0, 1, 12345)}, "reply to another order"),
        ({"kind": Kind.BROADCAST}, "kind broadcast, expected reply"),
        ({"kind": Kind.SCORES}, "kind scores, expected reply"),
        ({"kind": Kind.FORGOT, "nonce": bytes(16)}, "reply to another order"),
        ({"kind": Kind.FORGOT, "run": bytes(16)}, "not of this run"),
        ({"kind": Kind.FORGOT, "agreement": bytes(16)}, "works by other settings"),
        ({"weight": float("inf")}, "aggregation weight"),
        ({"weight": -1.0}, "aggregation weight"),
        ({"weight": 1e-46}, "aggregation weight"),
        ({"weight": 0.0}, "aggregation weight"),
        ({"packets": {}}, "message carries []"),
    ],
)
def test_a_lie_with_a_valid_checksum_is_refused(changes, why):
    server = under(fine)
    server.transport.weather = lambda number, answers: [
        reframed(answers[0], server, **changes),
        *answers[1:],
    ]
    record = server.step()
    assert (record.replied, record.failed) == (4, 1)
    assert why in next(iter(record.failures.values()))
    assert fingerprint(server.params) == play(lambda number, answers: answers[1:], rounds=1)[0]


def test_a_reply_longer_than_any_is_refused_before_it_is_kept(monkeypatch):
    """Replies wait in memory and on disk: neither is for one client to fill."""
    kept: list[int] = []
    put = Spool.put

    def note(spool: Spool, client: int, payload: bytes) -> None:
        kept.append(len(payload))
        put(spool, client, payload)

    monkeypatch.setattr(Spool, "put", note)
    server = under(fine)
    # With a valid checksum, as long as somebody likes.
    server.transport.weather = lambda number, answers: [
        reframed(answers[0], server, text=" " * 2**20),
        *answers[1:],
    ]
    row = server.step()
    assert (row.replied, row.failed) == (4, 1)
    assert "bytes, a reply to this order has at most" in next(iter(row.failures.values()))
    assert row.uplink_bytes > 2**20  # they were paid for
    assert len(kept) == 4
    assert max(kept) < 2**20
    assert fingerprint(server.params) == play(lambda number, answers: answers[1:], rounds=1)[0]


def test_a_method_that_adds_metrics_of_its_own_is_not_too_long():
    server = under(fine)
    many = {f"{number:064}": 1.0 for number in range(60)}
    server.transport.weather = lambda number, answers: [
        reframed(each, server, metrics={"loss": 1.0, **many}) for each in answers
    ]
    assert server.step().replied == 5


def test_a_code_at_more_bits_than_granted_is_refused():
    server = under(fine)
    uplink = server.charter.uplink

    def weather(number: int, answers: Answers) -> Answers:
        message = decode(answers[0].payload, server.charter.schema)
        shared = server.snapshot.shared
        vectors = uplink.receive(message.packets, shared, message.key)
        finer = uplink.send(vectors, shared, message.key, (2.0,))
        return [reframed(answers[0], server, packets=finer.packets), *answers[1:]]

    server.transport.weather = weather
    record = server.step()
    assert "rate 2, the order was for 4" in next(iter(record.failures.values()))
    assert fingerprint(server.params) == play(lambda number, answers: answers[1:], rounds=1)[0]


@pytest.mark.parametrize("turned", [False, True], ids=["in turn", "out of turn"])
def test_of_a_failure_and_a_reply_the_first_counts(turned):
    """Whether others are still awaited makes no difference."""

    def weather(number: int, answers: Answers) -> Answers:
        mixed = [Failure(answers[1].key, "battery"), answers[1]]
        return [*mixed, answers[0], *answers[2:]] if turned else [answers[0], *mixed, *answers[2:]]

    weights, rows = play(weather, rounds=1)
    assert weights == play(lambda number, answers: [answers[0], *answers[2:]], rounds=1)[0]
    assert (rows[0]["replied"], rows[0]["failed"]) == (4, 1)
    assert list(rows[0]["failures"].values()) == ["battery"]


def test_answers_that_nobody_asked_for_are_passed_over():
    stranger = Key(0, 1, 77)

    def weather(number: int, answers: Answers) -> Answers:
        late = Failure(answers[0].key, "after its reply")
        return [Failure(stranger, "who?"), Reply(stranger, b"junk"), *answers, late, answers[1]]

    weights, rows = play(weather)
    assert rows[0]["foreign"] == {"round 1, client 77": 2}
    first, second = (str(client) for client in sample(range(10), 5, derive(0, "sample", 1))[:2])
    assert rows[0]["duplicates"] == {first: 1, second: 1}
    unasked = [row | {"foreign": {}, "duplicates": {}} for row in rows]
    assert (weights, unasked) == play(fine)
    assert rows[0]["failures"] == {}


def test_what_an_earlier_round_left_behind_is_foreign():
    """A failure, too, is of the order that it names: the client has answered in this round."""

    def weather(number: int, answers: Answers) -> Answers:
        old = [answer.key._replace(round=number - 1) for answer in answers]
        return [*(Failure(key, "long ago") for key in old), *(Reply(k, b"") for k in old), *answers]

    weights, rows = play(weather)
    clients = sample(range(10), 5, derive(0, "sample", 2))
    assert rows[1]["foreign"] == {f"round 1, client {client}": 2 for client in clients}
    assert (weights, [row | {"foreign": {}} for row in rows]) == play(fine)


def test_a_row_does_not_grow_with_what_strangers_send():
    def weather(number: int, answers: Answers) -> Answers:
        return [*(Reply(Key(0, 1, client), b"") for client in range(100, 1100)), *answers]

    _, rows = play(weather, rounds=1)
    foreign = rows[0]["foreign"]
    assert len(foreign) == MAX_FOREIGN + 1
    assert foreign["others"] == 1000 - MAX_FOREIGN


# Deadlines


class Careless:
    """A real serial transport that loses some orders on the way, the first times that it is asked.

    `lost` are clients and how often.
    """

    def __init__(self, inner: Transport, lost: dict[int, int]) -> None:
        self.inner = inner
        self.lost = lost

    def dispatch(
        self, body: bytes, orders: Sequence[Order], deadline: float | None = None
    ) -> Iterator[Answer]:
        for order in orders:
            client = order.key.client
            if self.lost.get(client, 0) and kind_of(order.head) is Kind.ORDER:
                self.lost[client] -= 1
                yield Failure(order.key, "its worker process died", lost=True)
            else:
                yield from self.inner.dispatch(body, [order], deadline)

    def close(self) -> None:
        self.inner.close()


def careless(times: int) -> tuple[str, list[dict[str, object]]]:
    """Two rounds in the first of which the second client's order is lost so many times."""
    simulation = simulate(tiny())
    unlucky = sample(range(10), 5, derive(0, "sample", 1))[1]
    server = simulation.server(Careless(simulation.serial(CPU), {unlucky: times}))
    records = [server.step() for _ in range(2)]
    return fingerprint(server.params), [timeless(vars(record)) for record in records]


def test_work_that_was_lost_is_asked_for_again_and_nothing_else_changes():
    weights, rows = careless(1)
    unlucky = str(sample(range(10), 5, derive(0, "sample", 1))[1])
    assert rows[0]["asked_again"] == {unlucky: "its worker process died"}
    assert (weights, [row | {"asked_again": {}} for row in rows]) == play(fine)


def test_work_that_was_lost_twice_is_a_failure():
    weights, rows = careless(2)
    unlucky = str(sample(range(10), 5, derive(0, "sample", 1))[1])
    assert rows[0]["failures"] == {unlucky: "its worker process died"}
    assert (rows[0]["replied"], rows[0]["failed"], rows[0]["missing"]) == (4, 1, 0)

    def without(number: int, answers: Answers) -> Answers:
        return [a for a in answers if (number, str(a.key.client)) != (1, unlucky)]

    assert weights == play(without)[0]


def test_a_round_ends_at_its_deadline_with_the_replies_it_has():
    """The third client takes until the deadline: it is late, and the last two are not begun."""
    simulation = simulate(tiny(deadline=30.0, eval_every=9))
    clients = sample(range(10), 5, derive(0, "sample", 1))
    site = simulation.site(CPU)
    asked: list[float] = []

    class Slow(Serial):
        def dispatch(
            self, body: bytes, orders: Sequence[Order], deadline: float | None = None
        ) -> Iterator[Answer]:
            assert deadline is not None
            asked.append(seconds_left(deadline))
            soon = time.monotonic() + 5.0

            def serve(body: bytes | memoryview, order: Order) -> bytes:
                payload = site.answer(body, order)
                if order.key.client == clients[2]:
                    time.sleep(seconds_left(soon))
                return payload

            return Serial(serve).dispatch(body, orders, soon)

    server = simulation.server(Slow(site.answer))
    record = server.step()
    assert 29 < asked[0] <= 30
    assert (record.replied, record.failed, record.late, record.missing) == (2, 3, 3, 0)
    assert list(record.failures) == [str(client) for client in clients[2:]]
    first_two = play(lambda number, answers: answers[:2], rounds=1)
    assert fingerprint(server.params) == first_two[0]
    assert first_two[1][0]["missing"] == 3


def test_a_round_with_too_few_replies_leaves_everything_as_it_was():
    few = lambda number, answers: answers if number == 2 else answers[:2]
    server = under(few, tiny(min_replies=3))
    before = server.snapshot
    row = server.step()
    assert (row.replied, row.failed, row.missing) == (0, 5, 3)
    assert row.uplink_bytes > 0  # they were sent all the same
    refused = [why for why in row.failures.values() if why != "no reply"]
    assert refused == ["of 3 replies that a round needs it had 2; not used"] * 2
    assert server.snapshot.server == before.server
    assert not server.snapshot.accepted.any()
    assert all(
        torch.equal(server.snapshot.shared[vector][name], state)
        for vector, states in before.shared.items()
        for name, state in states.items()
    )
    assert server.step().replied == 5


def test_as_many_replies_as_a_round_needs_are_enough():
    three = lambda number, answers: answers[:3]
    assert play(three, plan=tiny(min_replies=3))[0] == play(three)[0]


# Determinism and records


def test_a_round_interrupted_half_way_leaves_no_trace():
    server = under(fine)

    def interrupt(done: int, asked: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    before = server.snapshot
    with pytest.raises(KeyboardInterrupt):
        server.step(interrupt)
    assert server.snapshot is before
    server.step()
    server.step()
    assert fingerprint(server.params) == play(fine)[0]


@dataclass(frozen=True)
class Diverging(FedAvg):
    """A server whose second step leaves the numbers."""

    def server_update(self, server, mean, cohort):
        after = super().server_update(server, mean, cohort)
        factor = float("inf") if cohort.round == 2 else 1.0
        return {**after, "params": scale(factor, after["params"])}


def test_a_model_that_is_not_finite_is_never_taken_over():
    server = under(fine, replace(tiny(), algorithm=Diverging()))
    server.step()
    before = server.snapshot
    record = server.step()
    assert (record.replied, record.failed) == (0, 5)
    assert all("not finite" in reason for reason in record.failures.values())
    assert fingerprint(server.params) == fingerprint(before.server["params"])
    assert server.snapshot.accepted.tolist() == before.accepted.tolist()
    assert server.step().replied == 5


def test_progress_counts_every_client():
    seen = []
    under(lambda number, answers: answers[::-1]).step(
        lambda done, asked: seen.append((done, asked))
    )
    assert seen == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]


def test_sampling_is_without_replacement_and_covers_everyone():
    drawn = [sample(range(10), 4, seed) for seed in range(200)]
    assert all(len(set(clients)) == 4 and clients == sorted(clients) for clients in drawn)
    counts = [sum(client in clients for clients in drawn) for client in range(10)]
    assert min(counts) > 50  # 80 expected, standard deviation 7
    assert sample(range(3), 3, 0) == [0, 1, 2]
    assert len(sample(range(10**12), 2, 0)) == 2  # a population that would not fit in memory


def test_aggregation_weighs_by_examples_or_all_alike():
    """Shards of 1, 2 and 3 examples: the two means differ, and each is the one its name says."""
    plan = {"data.partition": "test_round:uneven", "data.clients": 3, "clients_per_round": 3}
    for aggregation, shares in (("examples", (1, 2, 3)), ("uniform", (1, 1, 1))):
        server = under(fine, tiny(aggregation=aggregation, **plan))
        kept: Answers = []
        server.transport.weather = lambda number, sent, kept=kept: kept.extend(sent) or sent
        before = dict(server.params)
        shared = server.snapshot.shared
        server.step()
        messages = [decode(reply.payload, server.charter.schema) for reply in kept]
        assert [message.weight for message in messages] == [1.0, 2.0, 3.0]
        uplink = server.charter.uplink
        deltas = [uplink.receive(m.packets, shared, m.key)["delta"] for m in messages]
        for name, start in before.items():
            each = [share * delta[name] for share, delta in zip(shares, deltas, strict=True)]
            expected = start + sum(each) / sum(shares)
            torch.testing.assert_close(server.params[name], expected, rtol=1e-6, atol=1e-7)


def uneven(labels, clients, seed):
    return Split(torch.arange(6), torch.tensor([0, 1, 3, 6]))


def test_scale_ratios_by_hand():
    shared = {
        "delta": {"a": torch.tensor([2.0]), "b": torch.tensor([1.0]), "c": torch.tensor([4.0])}
    }
    sides = {"delta": {"a": [(1.0,), (3.0,), (0.0,)], "b": [(3.0,)], "c": [(2.0,), (2.0,)]}}
    # a: mean(1, 3) / 2, where the zero is left out; b: 3 / 1; c: 2 / 4.
    assert scale_ratios(shared, sides) == {"a": 1.0, "b": 3.0, "c": 0.5}
    assert scale_ratios({"control": shared["delta"]}, {"control": {"b": [(3.0,)]}}) == {
        "control/b": 3.0
    }
    assert scale_ratios(shared, {}) == {}
    assert scale_ratios({}, sides) == {}


def test_the_scale_ratio_of_a_round_is_the_median_over_its_tensors():
    server = under(fine, tiny(**{"uplink.select": "weights", "uplink.codec.scale_init": 1e-3}))
    kept: Answers = []
    server.transport.weather = lambda number, sent: kept.extend(sent) or sent
    shared = server.snapshot.shared["delta"]
    record = server.step()
    packets = [decode(each.payload, server.charter.schema).packets["delta"] for each in kept]
    ratios = []
    for name, state in shared.items():
        local = [packet[name].side[0] for packet in packets]
        ratios.append(sum(local) / len(local) / float(state))
        assert record.scale_ratios[name] == pytest.approx(ratios[-1], rel=1e-6)
    assert len(ratios) == len(record.scale_ratios) > 2
    assert record.scale_ratio == pytest.approx(statistics.median(ratios), rel=1e-6)


def test_rounds_are_drawn_from_those_that_are_there():
    """All of them: the draw of a server that does not ask. Fewer than a round wants: all those."""
    simulation = simulate(tiny())
    plain = simulation.server(simulation.serial(CPU))
    drawn = plain.sample(1)
    for present, expected in ((range(10), drawn), ([1, 8], {1: None, 8: None})):
        census = replace(simulation.census, present=functools.partial(list, present))
        assert replace(plain, census=census).sample(1) == expected
    measured = Channel(1.0, 2.0, 3.0, 4.0)
    census = replace(simulation.census, present=lambda: [1, 5], channel={5: measured}.get)
    assert replace(plain, census=census).sample(1) == {1: None, 5: measured}
