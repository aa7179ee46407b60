"""Weight decay that is left to the server: what it adds, and what codes cannot take from it."""

import math
from dataclasses import replace

import pytest
import torch

from fedwsq.core.errors import ConfigError
from fedwsq.core.tree import axpy, fingerprint, norm, sub
from fedwsq.federation.downlink import share_kept
from fedwsq.federation.simulation import simulate
from fedwsq.training import Training
from fedwsq.transports import Reply
from fedwsq.wire import decode, encode
from harness import tiny

CPU = torch.device("cpu")
ON_SERVER = {"training.decay_on": "server"}
# Two steps of 0.1 and ten times the usual decay: what is kept of the weights is exp(-0.02).
FEDAVG = {
    "method": "fedavg",
    "training.lr": 0.1,
    "training.weight_decay": 0.1,
    "training.epochs": 1,
    "training.batches_per_epoch": 2,
}
QUARTER = {"uplink": {"codec": "ecq", "bits": 0.25, "select": "weights"}}


def after(rounds, settings):
    """The start of a run, and where so many rounds lead."""
    simulation = simulate(tiny(rounds=rounds, **settings))
    server = simulation.server(simulation.serial(CPU))
    start = server.params
    for _ in range(rounds):
        server.step()
    return start, server.params


def test_shrinkage_by_hand():
    """Fifty steps of 0.1 at 1e-3: exp(-0.005) - 1."""
    assert Training().shrinkage(5.0) == 0
    assert Training(decay_on="server").shrinkage(5.0) == pytest.approx(-0.00498752, rel=1e-6)
    assert Training(decay_on="server").local_decay == 0
    assert Training().local_decay == 1e-3


def test_it_is_what_clients_learn_without_decay_and_a_share_of_where_they_started():
    start, found = after(1, FEDAVG | ON_SERVER)
    _, without = after(1, FEDAVG | {"training.weight_decay": 0.0})
    expected = axpy(math.expm1(-0.02), start, without)
    assert norm(sub(found, expected)) < 1e-6 * norm(start)
    assert norm(sub(found, without)) > 0.01 * norm(start)


def test_in_float32_it_is_nearly_what_clients_do_themselves():
    start, on_server = after(1, FEDAVG | ON_SERVER)
    _, on_clients = after(1, FEDAVG)
    taken = abs(math.expm1(-0.02)) * norm(start)
    assert norm(sub(on_server, on_clients)) < 0.1 * taken


def test_a_quarter_of_a_bit_loses_what_clients_take_and_not_what_the_server_does():
    settings = FEDAVG | QUARTER
    start, on_server = after(3, settings | ON_SERVER)
    _, on_clients = after(3, settings)
    _, without = after(3, settings | {"training.weight_decay": 0.0})
    coded = [name for name, x in start.items() if x.dim() > 1]

    def taken(params):
        return share_kept(without, start, coded) - share_kept(params, start, coded)

    whole = 1 - math.exp(-3 * 0.02)
    assert taken(on_server) == pytest.approx(whole, rel=0.15)
    assert taken(on_clients) < whole / 2


def test_who_counts_for_more_decays_more():
    """Batches of ten: clients take as many steps as they have examples, and count as much."""
    unequal = {
        "training.batch_size": 10,
        "data.partition": {"name": "dirichlet", "alpha": 0.1},
        "aggregation": "examples",
    }
    settings = FEDAVG | unequal
    start, on_server = after(1, settings | ON_SERVER)
    _, on_clients = after(1, settings)
    _, without = after(1, settings | {"training.weight_decay": 0.0})
    taken = norm(sub(on_clients, without))
    assert taken > 0.02 * norm(start)
    assert norm(sub(on_server, on_clients)) < 0.2 * taken


@pytest.mark.parametrize("method", ["feddyn", "fedsmoo"])
def test_methods_that_sum_updates_at_both_ends_refuse_it(method):
    simulate(tiny(method=method)).charter.model.initial_params()
    with pytest.raises(ConfigError, match=f"{method} keeps sums of updates at both ends"):
        simulate(tiny(method=method, **ON_SERVER)).charter.model.initial_params()


def test_momentum_is_refused():
    momentum = {"training.optimizer": {"name": "sgd", "momentum": 0.9}}
    tiny(**momentum)
    with pytest.raises(ConfigError, match="momentum multiplies decay too"):
        tiny(**momentum, **ON_SERVER)


class Lying:
    """A real serial transport; what one client says of its steps is not true."""

    def __init__(self, inner, schema, lr_sum):
        self.inner = inner
        self.schema = schema
        self.lr_sum = lr_sum

    def dispatch(self, body, orders, deadline=None):
        liar = min(order.key.client for order in orders)
        for answer in self.inner.dispatch(body, orders, deadline):
            if isinstance(answer, Reply) and answer.key.client == liar:
                said = decode(answer.payload, self.schema)
                metrics = {**said.metrics, "lr_sum": self.lr_sum}
                forged = encode(replace(said, metrics=metrics), self.schema)
                answer = Reply(answer.key, forged)
            yield answer

    def close(self):
        self.inner.close()


@pytest.mark.parametrize("lr_sum", [1e12, 0.0, 20.0])
def test_one_that_lies_about_its_steps_changes_nothing(lr_sum):
    """What counts is how many examples it has, which the server knows."""
    _, honest = after(1, FEDAVG | ON_SERVER)
    simulation = simulate(tiny(rounds=1, **FEDAVG, **ON_SERVER))
    lying = Lying(simulation.serial(CPU), simulation.charter.schema, lr_sum)
    server = simulation.server(lying)
    row = server.step()
    assert row.replied == 5
    assert fingerprint(server.params) == fingerprint(honest)


@pytest.mark.parametrize(
    "settings",
    [
        {"uplink.counts": True, "uplink.bits": 1, "aggregation": "uniform"},
        {"privacy": {"clip": 1.0, "noise": 1.0}, "aggregation": "uniform"},
    ],
)
def test_where_clients_report_no_steps_it_is_refused(settings):
    tiny(**settings)
    with pytest.raises(ConfigError, match="decay_on = server goes by how many examples"):
        tiny(**settings, **ON_SERVER)
