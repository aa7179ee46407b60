"""Test examples of each client's own: kept back from training, scored client by client."""

from dataclasses import replace

import pytest
import torch

from fedwsq.core.errors import ConfigError
from fedwsq.core.threads import one_thread
from fedwsq.data import Dataset
from fedwsq.data.batches import normalize
from fedwsq.data.digits import digits
from fedwsq.federation import workload as workload_module
from fedwsq.federation.server import Federation
from fedwsq.federation.site import Site
from fedwsq.federation.workload import build_workload
from fedwsq.plan.settings import LoadData
from fedwsq.runs.run import run
from fedwsq.training.local import load
from fedwsq.transports.pool import Serial
from harness import rows, timeless, tiny

OWN = {"data.client_test": 0.2, "eval_clients": True}


def test_each_client_keeps_its_share_back():
    whole, parted = build_workload(tiny()), build_workload(tiny(**OWN))
    assert whole.client_tests is None
    for client in range(10):
        mine, train, test = (
            split[client].tolist() for split in (whole.split, parted.split, parted.client_tests)
        )
        assert len(test) == round(0.2 * len(mine))
        assert sorted(train + test) == sorted(mine)
        assert len(parted.shard(client).y) == len(train)
    assert torch.equal(
        build_workload(tiny(**OWN)).client_tests.indices, parted.client_tests.indices
    )
    assert not torch.equal(
        build_workload(tiny(seed=1, **OWN)).client_tests.indices, parted.client_tests.indices
    )


def test_batches_never_cross_clients_and_cover_everyone(monkeypatch):
    monkeypatch.setattr(workload_module, "EVAL_BATCH", 7)
    plan = tiny(
        **{
            "data.partition": "dirichlet_label",
            "data.partition.alpha": 0.5,
            "data.validation": 0.1,
        },
        **OWN,
    )
    workload = build_workload(plan)
    starts, owners = workload.client_batches
    assert not set(starts) & set(workload.eval_batches())
    seen = {client: [] for client in range(10)}
    for start, owner in zip(starts, owners.tolist(), strict=True):
        x, y = workload.eval_batch(start)
        assert 1 <= len(y) <= 7
        seen[owner].append((x, y))
    for client, batches in seen.items():
        stored, labels = workload.dataset.train.take(workload.kept[workload.client_tests[client]])
        assert torch.equal(torch.cat([y for _, y in batches]), labels)
        x = normalize(stored, workload.dataset.mean, workload.dataset.std)
        assert torch.equal(torch.cat([x for x, _ in batches]), x)
    # The shared evaluation is what it is without client tests.
    plain = build_workload(tiny(**{"data.validation": 0.1}))
    assert plain.eval_batches() == workload.eval_batches()
    for start in plain.eval_batches():
        assert torch.equal(plain.eval_batch(start)[1], workload.eval_batch(start)[1])


def test_client_accuracy_is_measured_on_each_clients_own_examples():
    workload = build_workload(tiny(rounds=2, **{"training.epochs": 5, "data.clients": 20}, **OWN))
    federation = Federation(workload, Serial(Site(workload, torch.device("cpu"))))
    for _ in range(2):
        record = federation.step()
        load(workload.model, federation.params)
        workload.model.eval()
        each = []
        with torch.inference_mode(), one_thread():
            for client in range(20):
                x, y = workload.dataset.train.take(workload.kept[workload.client_tests[client]])
                outputs = workload.model(normalize(x, workload.dataset.mean, workload.dataset.std))
                each.append(float((outputs.argmax(dim=1) == y).double().mean()))
        assert record.client_accuracy == pytest.approx(sum(each) / 20)
        assert record.client_accuracy_worst_decile == pytest.approx(sum(sorted(each)[:2]) / 2)
        assert len(set(each)) > 3


def test_a_pool_scores_as_one_process_does_and_runs_are_the_same_without_eval_clients(tmp_path):
    plan = tiny(rounds=2, **OWN)
    run(plan, out=tmp_path / "one", workers=1)
    run(plan, out=tmp_path / "two", workers=2)
    assert [timeless(row) for row in rows(tmp_path / "one")] == [
        timeless(row) for row in rows(tmp_path / "two")
    ]
    run(tiny(rounds=2, **{"data.client_test": 0.2}), out=tmp_path / "unasked", workers=1)
    for row, other in zip(rows(tmp_path / "one"), rows(tmp_path / "unasked"), strict=True):
        assert other["client_accuracy"] is None
        assert (row["test_accuracy"], row["test_loss"]) == (
            other["test_accuracy"],
            other["test_loss"],
        )


def test_clients_without_a_test_example_are_left_out():
    plan = tiny(
        **{"data.partition": "user_code:first_is_empty", "data.clients": 4, "clients_per_round": 4},
        **OWN,
    )
    workload = build_workload(plan)
    starts, owners = workload.client_batches
    assert workload.client_tests.sizes.tolist()[0] == 0
    assert owners.unique().tolist() == [1, 2, 3]
    assert len(starts) == len(owners)


def test_a_split_that_leaves_nothing_to_keep_back_is_refused():
    count = len(build_workload(tiny()).dataset.train)
    with pytest.raises(ConfigError, match="clients with at least 2 examples"):
        build_workload(tiny(**{"data.clients": count, "data.partition": "iid"}, **OWN))
    for share in (1.0, -0.1):
        with pytest.raises(ConfigError, match=f"client_test is {share}"):
            tiny(**{"data.client_test": share})


def grouped() -> Dataset:
    """Handwritten digits by three writers, whose numbers are 0, 5 and 7."""
    data = digits()
    return replace(data, groups=torch.tensor([5, 0, 7, 7])[torch.arange(len(data.train)) % 4])


def test_groups_reach_the_split_less_what_validation_holds_out():
    plan = tiny(
        **{
            "data.partition": "group",
            "data.clients": 3,
            "clients_per_round": 3,
            "data.validation": 0.1,
        }
    )
    with pytest.raises(ConfigError, match="no groups"):
        build_workload(plan)
    workload = build_workload(
        replace(plan, data=replace(plan.data, load=LoadData("grouped", grouped)))
    )
    for client, places in enumerate([{1}, {0}, {2, 3}]):
        mine = workload.kept[workload.split[client]]
        assert set((mine % 4).tolist()) == places
    assert len(workload.split.indices) == len(workload.kept) < len(workload.dataset.train)
