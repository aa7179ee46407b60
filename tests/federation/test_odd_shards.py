"""Clients with hardly any examples, or none."""

from fedwsq.federation.simulation import simulate
from fedwsq.runs import run
from harness import rows, tiny


def test_as_many_clients_as_examples_train_on_one_each(tmp_path):
    count = len(simulate(tiny()).clients.dataset.train)
    plan = tiny(**{"data.clients": count, "data.partition": "iid", "rounds": 2})
    clients = simulate(plan).clients
    assert {len(clients.shard(client).y) for client in range(count)} == {1}
    summary = run(plan, out=tmp_path / "run", workers=1)
    assert [(row["replied"], row["failures"]) for row in rows(tmp_path / "run")] == [
        (5, {}),
        (5, {}),
    ]
    assert summary.accuracy is not None


def test_a_client_without_examples_fails_and_the_others_go_on(tmp_path):
    plan = tiny(
        **{"data.partition": "user_code:first_is_empty", "data.clients": 4, "clients_per_round": 4}
    )
    clients = simulate(plan).clients
    assert [len(clients.shard(client).y) for client in range(2)] == [0, 479]
    run(plan, out=tmp_path / "run", workers=1)
    for row in rows(tmp_path / "run"):
        assert (row["replied"], row["failed"]) == (3, 1)
        assert row["failures"] == {"0": "UpdateError: client 0 has no examples"}


def test_a_population_of_empty_clients_but_one_still_learns_from_that_one(tmp_path):
    plan = tiny(
        **{"data.partition": "user_code:first_is_empty", "data.clients": 2, "clients_per_round": 2}
    )
    run(plan, out=tmp_path / "run", workers=1)
    losses = [row["train_loss"] for row in rows(tmp_path / "run")]
    assert losses[-1] < losses[0]
