"""Who has what: clients that each hold their own data are the clients of a simulation."""

import pytest
import torch

from fedwsq.core.errors import DataError, MessageError, RunError
from fedwsq.core.tree import fingerprint
from fedwsq.data import Dataset, Examples
from fedwsq.federation.charter import Charter
from fedwsq.federation.evaluator import OwnEvaluator, Scorer
from fedwsq.federation.owners import (
    Census,
    ExampleFormat,
    ModelSpec,
    OwnData,
    Size,
    TestData,
    format_of,
    size_of,
)
from fedwsq.federation.server import Server, first_snapshot
from fedwsq.federation.simulation import simulate
from fedwsq.federation.site import Site
from fedwsq.transports import Serial, attempt
from fedwsq.wire.message import Kind
from fedwsq.wire.parse import kind_of
from harness import timeless, tiny

CPU = torch.device("cpu")


class Apart:
    """One site a client, each with nothing but that client's data; orders go to whose they are."""

    def __init__(self, simulation, folder):
        self.simulation = simulation
        self.folder = folder
        self.sites = {}

    def dispatch(self, body, orders, deadline=None):
        for order in orders:
            assert kind_of(order.head) in (Kind.ORDER, Kind.EVALUATE)
            site = self.site(order.key.client)
            (answer,) = Serial(site.answer).dispatch(body, [order])
            yield answer

    def site(self, client):
        if client not in self.sites:
            data = own_data(self.simulation, client)
            # Built anew: nothing of the simulation's model is shared.
            charter = Charter(self.simulation.plan, ModelSpec(self.simulation.plan, data.format))
            store = None if self.folder is None else self.folder / str(client)
            self.sites[client] = Site(charter, data, CPU, store)
        return self.sites[client]


def own_data(simulation, client):
    """What a client of the simulation holds, as a data set of its own."""
    whole = simulation.clients.dataset
    train = simulation.clients.shard(client)
    test = simulation.clients.test_shard(client)
    mine = Dataset(
        Examples([train.x], train.y),
        Examples([test.x], test.y),
        whole.classes,
        mean=whole.mean,
        std=whole.std,
        augment=whole.augment,
    )
    return OwnData(client, mine, format_of(mine, simulation.plan))


CHAIN = {"downlink": {"codec": "danuq", "bits": 2, "mode": "chain", "select": "all"}}
CASES = {
    "fedavg": {},
    "scaffold": {"algorithm": "scaffold"},
    "feedback": {"uplink.error_feedback": True},
    "chain": CHAIN,
    "start": {"downlink": CHAIN["downlink"] | {"mode": "start"}},
    "own tests": {"data.client_test": 0.2, "eval_clients": True},
}


@pytest.mark.parametrize("settings", CASES.values(), ids=list(CASES))
def test_clients_that_keep_their_data_learn_what_a_simulation_learns(settings, tmp_path):
    simulation = simulate(tiny(clients_per_round=4, **settings))
    start = first_snapshot(simulation.charter)
    together = simulation.server(simulation.serial(CPU, tmp_path / "together"), start)
    evaluator = OwnEvaluator(Scorer(simulation.charter, CPU), simulation.test)
    transport = Apart(simulation, tmp_path)
    apart = Server(simulation.charter, transport, evaluator, Census(), start)
    for _ in range(3):
        one = timeless(vars(together.step()))
        two = timeless(vars(apart.step()))
        assert one == two
        assert one["failures"] == {}
    assert fingerprint(apart.params) == fingerprint(together.params)
    assert len(transport.sites) > 4


def test_a_clients_data_is_for_that_client_alone():
    simulation = simulate(tiny(**{"data.client_test": 0.2}))
    data = own_data(simulation, 3)
    assert torch.equal(data.shard(3).x, simulation.clients.shard(3).x)
    assert torch.equal(data.test_shard(3).y, simulation.clients.test_shard(3).y)
    assert data.size(3) == simulation.clients.size(3)
    for ask in (data.shard, data.test_shard, data.size):
        with pytest.raises(MessageError, match="order for client 4, but client 3 lives here"):
            ask(4)


def test_a_client_outside_the_split_is_refused():
    clients = simulate(tiny(**{"data.client_test": 0.2})).clients
    for client in (10, -1, 2**64 - 1):
        for ask in (clients.shard, clients.test_shard, clients.size):
            with pytest.raises(MessageError, match=f"client {client}, the split has 10"):
                ask(client)


def test_orders_to_the_wrong_site_fail():
    simulation = simulate(tiny(eval_every=9))
    transport = Apart(simulation, None)
    site = transport.site(3)
    transport.site = lambda client: site
    evaluator = OwnEvaluator(Scorer(simulation.charter, CPU), simulation.test)
    start = first_snapshot(simulation.charter)
    server = Server(simulation.charter, transport, evaluator, Census(), start)
    record = server.step()
    for client, why in record.failures.items():
        assert why == f"MessageError: order for client {client}, but client 3 lives here"
    assert record.failed >= 4


def test_sizes_tell_labels_only_where_there_are_classes():
    assert size_of(torch.tensor([0, 2, 2]), 4) == Size(3, (1, 0, 2, 0))
    assert size_of(torch.tensor([0.5, 2.0]), 4) == Size(2)
    assert size_of(torch.zeros(5, 2, dtype=torch.int64), 4) == Size(5)
    assert size_of(torch.zeros(0, dtype=torch.int64), 2) == Size(0, (0, 0))


def test_a_format_is_what_an_example_looks_like():
    simulation = simulate(tiny())
    form = simulation.model.format
    assert form == ExampleFormat(10, (1, 8, 8), *form[2:])
    assert form.channels == 1
    assert ExampleFormat(3, ()).channels == 1
    off = simulate(tiny(**{"data.augment": False})).model.format
    assert off == form._replace(augment=False)


def test_test_data_must_not_be_empty():
    simulation = simulate(tiny())
    test = simulation.clients.dataset.test
    with pytest.raises(DataError, match=r"hold some of the others out with data\.validation=0\.1"):
        TestData("test", test, torch.arange(0), simulation.model.format)


def test_test_data_comes_in_batches_that_cover_it():
    test = simulate(tiny()).test
    batches = [test.batch(start) for start in test.starts]
    assert sum(len(batch.y) for batch in batches) == len(test.chosen)
    assert [len(batch.y) for batch in batches[:-1]] == [100] * (len(batches) - 1)
    assert torch.equal(torch.cat([batch.y for batch in batches]), test.examples.labels[test.chosen])


def test_the_initial_weights_depend_on_the_seed_alone():
    form = simulate(tiny()).model.format
    one = ModelSpec(tiny(), form)
    torch.rand(3)  # the global generator plays no part
    two = ModelSpec(tiny(rounds=9, **{"training.lr": 0.5}), form)
    other = ModelSpec(tiny(seed=1), form)
    assert fingerprint(one.initial_params()) == fingerprint(two.initial_params())
    assert fingerprint(one.initial_params()) != fingerprint(other.initial_params())
    # Training changes the network in place, and not where a run starts.
    with torch.no_grad():
        for p in one.network.parameters():
            p.zero_()
    assert fingerprint(one.initial_params()) == fingerprint(two.initial_params())


@pytest.mark.parametrize("downlink", [{}, {"mode": "start", "codec": "danuq", "bits": 4}])
def test_the_network_is_built_to_train_and_once_more_for_where_it_starts(monkeypatch, downlink):
    """A large one takes seconds each time."""
    built = []
    build = ModelSpec._build
    monkeypatch.setattr(ModelSpec, "_build", lambda spec: built.append(spec) or build(spec))
    simulation = simulate(tiny(downlink=downlink, algorithm="scaffold"))
    server = simulation.server(simulation.serial(torch.device("cpu")))
    record = server.step()
    assert record.replied == 5
    assert len(built) == 2
    assert server.charter.digest == Charter(simulation.plan, simulation.model).digest


def test_where_a_run_starts_is_not_moved_with_its_model():
    charter = simulate(tiny(downlink={"mode": "start", "codec": "danuq", "bits": 4})).charter
    for x in first_snapshot(charter).server["params"].values():
        x.zero_()
    assert fingerprint(charter.start) == fingerprint(charter.model.initial_params())


def test_the_servers_data_is_not_at_a_site_of_its_own():
    simulation = simulate(tiny())
    heard = []

    class Listening:
        def dispatch(self, body, orders, deadline=None):
            heard.extend((body, order) for order in orders)
            return iter(())

    server = simulation.server(Listening())
    with pytest.raises(RunError, match="evaluation failed"):
        server.evaluate(server.snapshot)
    body, order = heard[0]
    assert kind_of(order.head) is Kind.SCORE
    answer = attempt(Apart(simulation, None).site(0).answer, body, order)
    assert answer.reason == "MessageError: the server's test data is not here"
