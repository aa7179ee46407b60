"""Test examples of each client's own: kept back from training, scored client by client."""

from dataclasses import replace

import pytest
import torch

from fedwsq.core.errors import ConfigError
from fedwsq.core.threads import one_thread
from fedwsq.data import Dataset
from fedwsq.data.batches import normalize
from fedwsq.data.digits import digits
from fedwsq.federation import owners
from fedwsq.federation.owners import batches_of
from fedwsq.federation.simulation import simulate
from fedwsq.plan import LoadData
from fedwsq.runs import run
from fedwsq.training.local import load
from fedwsq.transports import Failure, Reply
from fedwsq.wire import Kind, kind_of
from harness import rows, timeless, tiny

CPU = torch.device("cpu")
OWN = {"data.client_test": 0.2, "eval_clients": True}


def test_each_client_keeps_its_share_back():
    whole = simulate(tiny()).clients
    parted = simulate(tiny(**OWN)).clients
    assert whole.tests is None
    for client in range(10):
        mine = whole.split[client].tolist()
        train = parted.split[client].tolist()
        test = parted.tests[client].tolist()
        assert len(test) == round(0.2 * len(mine))
        assert sorted(train + test) == sorted(mine)
        assert len(parted.shard(client).y) == len(train)
        assert len(parted.test_shard(client).y) == len(test)
        assert len(whole.test_shard(client).y) == 0
    again = simulate(tiny(**OWN)).clients
    other = simulate(tiny(seed=1, **OWN)).clients
    assert torch.equal(again.tests.indices, parted.tests.indices)
    assert not torch.equal(other.tests.indices, parted.tests.indices)


def test_batches_cover_a_clients_own_test_examples(monkeypatch):
    monkeypatch.setattr(owners, "EVAL_BATCH", 7)
    uneven = {"data.partition": "dirichlet_label", "data.partition.alpha": 0.5}
    held_out = {"data.validation": 0.1}
    simulation = simulate(tiny(**uneven, **held_out, **OWN))
    clients = simulation.clients
    for client in range(10):
        batches = batches_of(clients.test_shard(client))
        assert all(1 <= len(batch.y) <= 7 for batch in batches)
        stored, labels = clients.dataset.train.take(clients.kept[clients.tests[client]])
        assert torch.equal(torch.cat([batch.y for batch in batches]), labels)
        x = normalize(stored, clients.dataset.mean, clients.dataset.std)
        assert torch.equal(torch.cat([batch.x for batch in batches]), x)
    # The server's evaluation is what it is without client tests.
    plain = simulate(tiny(**held_out)).test
    assert plain.starts == simulation.test.starts
    for start in plain.starts:
        assert torch.equal(plain.batch(start).x, simulation.test.batch(start).x)
        assert torch.equal(plain.batch(start).y, simulation.test.batch(start).y)


def accuracies(simulation, params, those):
    """What these clients' own test examples say of a model, worked out here."""
    clients = simulation.clients
    network = simulation.model.network
    load(network, params)
    network.eval()
    found = []
    with torch.inference_mode(), one_thread():
        for client in those:
            x, y = clients.dataset.train.take(clients.kept[clients.tests[client]])
            outputs = network(normalize(x, clients.dataset.mean, clients.dataset.std))
            found.append(float((outputs.argmax(dim=1) == y).double().mean()))
    return found


def test_client_accuracy_is_measured_on_each_clients_own_examples():
    simulation = simulate(tiny(rounds=2, **{"training.epochs": 5, "data.clients": 20}, **OWN))
    server = simulation.server(simulation.serial(CPU))
    for _ in range(2):
        record = server.step()
        each = accuracies(simulation, server.params, range(20))
        assert record.client_accuracy == pytest.approx(sum(each) / 20)
        assert record.client_accuracy_worst_decile == pytest.approx(sum(sorted(each)[:2]) / 2)
        assert len(set(each)) > 3


class Network:
    """A serial transport whose answers to evaluation pass through `weather`."""

    def __init__(self, inner, weather=lambda answers: answers):
        self.inner = inner
        self.weather = weather
        self.passed = 0  # bytes to and from clients that evaluate

    def dispatch(self, body, orders, deadline=None):
        evaluation = kind_of(orders[0].head) is Kind.EVALUATE
        answers = self.inner.dispatch(body, orders, deadline)
        if not evaluation:
            yield from answers
            return
        self.passed += sum(len(body) + len(order.head) for order in orders)
        for answer in self.weather(list(answers)):
            self.passed += len(getattr(answer, "payload", b""))
            yield answer


def test_the_bytes_of_evaluation_are_counted_apart():
    simulation = simulate(tiny(**OWN))
    network = Network(simulation.serial(CPU))
    record = simulation.server(network).step()
    unasked = simulate(tiny(**{"data.client_test": 0.2}))
    plain = unasked.server(unasked.serial(CPU)).step()
    assert record.evaluation_bytes == network.passed > 0
    assert plain.evaluation_bytes == 0
    assert (record.uplink_bytes, record.downlink_bytes) == (
        plain.uplink_bytes,
        plain.downlink_bytes,
    )


def test_a_client_whose_evaluation_was_lost_is_asked_again():
    simulation = simulate(tiny(**OWN))

    def weather(answers):
        if len(answers) == 1:
            return answers
        return [Failure(answers[0].key, "its worker process died", lost=True), *answers[1:]]

    record = simulation.server(Network(simulation.serial(CPU), weather)).step()
    calm = simulation.server(simulation.serial(CPU)).step()
    assert record.client_accuracy == calm.client_accuracy
    assert record.client_accuracy_worst_decile == calm.client_accuracy_worst_decile


def test_clients_that_fail_to_evaluate_are_left_out():
    """One fails, one's answer is damaged, one answers for another, one is lost; six count."""

    def weather(answers):
        damaged = bytearray(answers[1].payload)
        damaged[-20] ^= 1
        return [
            Failure(answers[0].key, "battery"),
            Reply(answers[1].key, bytes(damaged)),
            Reply(answers[2].key, answers[5].payload),
            *answers[4:],
        ]

    simulation = simulate(tiny(**OWN))
    server = simulation.server(Network(simulation.serial(CPU), weather))
    record = server.step()
    assert record.failures == {}
    each = accuracies(simulation, server.params, range(4, 10))
    assert record.client_accuracy == pytest.approx(sum(each) / 6)


@pytest.mark.slow
def test_a_pool_scores_as_one_process_does_and_runs_are_the_same_without_eval_clients(tmp_path):
    plan = tiny(rounds=2, **OWN)
    run(plan, out=tmp_path / "one", workers=1)
    run(plan, out=tmp_path / "two", workers=2)
    one, two = ([timeless(row) for row in rows(tmp_path / name)] for name in ("one", "two"))
    assert one == two
    run(tiny(rounds=2, **{"data.client_test": 0.2}), out=tmp_path / "unasked", workers=1)
    for row, other in zip(one, rows(tmp_path / "unasked"), strict=True):
        assert other["client_accuracy"] is None
        assert row["test_accuracy"] == other["test_accuracy"]
        assert row["test_loss"] == other["test_loss"]


def test_clients_without_a_test_example_are_left_out():
    cohort = {"data.clients": 4, "clients_per_round": 4}
    plan = tiny(**{"data.partition": "user_code:first_is_empty"}, **cohort, **OWN)
    simulation = simulate(plan)
    assert simulation.clients.tests.sizes.tolist()[0] == 0
    assert batches_of(simulation.clients.test_shard(0)) == []
    server = simulation.server(simulation.serial(CPU))
    record = server.step()
    each = accuracies(simulation, server.params, (1, 2, 3))
    assert record.client_accuracy == pytest.approx(sum(each) / 3)


def test_clients_without_examples_are_left_out_of_estimates():
    cohort = {"data.clients": 4, "clients_per_round": 4, "eval_clients": True}
    simulation = simulate(tiny(**{"data.partition": "user_code:first_is_empty"}, **cohort))
    counts = simulation.clients.label_counts
    server = simulation.server(simulation.serial(CPU))
    record = server.step()
    each = [sum(a * n for a, n in zip(record.class_accuracy, row, strict=True)) / sum(row)
            for row in counts.tolist()[1:]]  # fmt: skip
    assert record.client_accuracy == pytest.approx(sum(each) / 3)
    assert record.client_accuracy_worst_decile == pytest.approx(min(each))

    server.census = replace(server.census, label_counts=lambda: torch.zeros_like(counts))
    record = server.step()
    assert record.test_accuracy is not None
    assert record.client_accuracy is record.client_accuracy_worst_decile is None


def test_a_split_that_leaves_nothing_to_keep_back_is_refused():
    count = len(simulate(tiny()).clients.dataset.train)
    with pytest.raises(ConfigError, match="clients with at least 2 examples"):
        simulate(tiny(**{"data.clients": count, "data.partition": "iid"}, **OWN))
    for share in (1.0, -0.1):
        with pytest.raises(ConfigError, match=f"client_test is {share}"):
            tiny(**{"data.client_test": share})


def grouped() -> Dataset:
    """Handwritten digits by three writers, whose numbers are 0, 5 and 7."""
    data = digits()
    return replace(data, groups=torch.tensor([5, 0, 7, 7])[torch.arange(len(data.train)) % 4])


def test_groups_reach_the_split_less_what_validation_holds_out():
    cohort = {"data.clients": 3, "clients_per_round": 3}
    plan = tiny(**{"data.partition": "group", "data.validation": 0.1}, **cohort)
    with pytest.raises(ConfigError, match="no groups"):
        simulate(plan)
    by_writer = replace(plan, data=replace(plan.data, load=LoadData("grouped", grouped)))
    clients = simulate(by_writer).clients
    for client, places in enumerate([{1}, {0}, {2, 3}]):
        mine = clients.kept[clients.split[client]]
        assert set((mine % 4).tolist()) == places
    assert len(clients.split.indices) == len(clients.kept) < len(clients.dataset.train)
