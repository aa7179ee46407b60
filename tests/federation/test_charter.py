"""What both ends must share: the digest that every message carries, and who is refused by it."""

from dataclasses import replace

import pytest
import torch

from fedwsq.core.errors import MessageError
from fedwsq.federation.charter import difference
from fedwsq.federation.simulation import simulate
from fedwsq.plan import SplitData, make_plan, plan_settings
from fedwsq.wire import Kind, Message
from harness import tiny

CPU = torch.device("cpu")


def charter(**settings):
    return simulate(tiny(**settings)).charter


def of_plan(plan):
    return simulate(plan).charter


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"seed": 1}, "seed"),
        ({"training.lr": 0.2}, "training.lr"),
        ({"training.epochs": 2}, "training.epochs"),
        ({"algorithm": "fedprox"}, "algorithm.name"),
        ({"model.name": "resnet8"}, "model.name"),
        ({"model.standardize": "none"}, "model.standardize.name"),
        ({"model.standardize.rho": 0.01}, "model.standardize.rho"),
        ({"uplink.bits": 2}, "uplink.bits.bits"),
        ({"uplink.codec": "nf"}, "uplink.codec.name"),
        ({"uplink.error_feedback": True}, "uplink.error_feedback"),
        ({"downlink.codec": "danuq", "downlink.bits": 4}, "downlink.codec.name"),
        ({"data.clients": 11}, "data.clients"),
        ({"data.partition.alpha": 0.5}, "data.partition.alpha"),
        ({"data.client_test": 0.2}, "data.client_test"),
    ],
    ids=str,
)
def test_settings_that_change_what_bytes_mean_count(settings, named):
    ours = charter()
    theirs = charter(**settings)
    assert ours.digest != theirs.digest
    assert named in all_differences(ours, theirs)


def all_differences(ours, theirs):
    names = {*ours.settings, *theirs.settings}
    return {name for name in names if ours.settings.get(name) != theirs.settings.get(name)}


@pytest.mark.parametrize(
    "settings",
    [
        {"rounds": 9},
        {"clients_per_round": 3},
        {"eval_every": 2},
        {"checkpoint_every": 5},
        {"aggregation": "uniform"},
        {"stop_at_accuracy": 0.9},
        {"channels": "lognormal"},
        {"training.precision": "bfloat16"},
    ],
    ids=str,
)
def test_what_is_one_ends_own_business_does_not_count(settings):
    assert charter(**settings).digest == charter().digest


def test_rounds_count_where_the_schedule_depends_on_them():
    published = {"training.schedule": "published"}
    assert charter(rounds=3, **published).digest != charter(rounds=4, **published).digest


def test_where_files_lie_does_not_count(finished, tmp_path):
    """The weights of the start come with the first broadcast; whoever has none needs no file."""
    start = {"model.init": str(finished.folder / "model.safetensors")}
    assert charter(**start).digest == charter().digest


def test_a_whole_number_is_the_same_as_a_float():
    assert charter(**{"training.lr": 1}).digest == charter(**{"training.lr": 1.0}).digest


def test_frozen_weights_count():
    head = {"model.train": "^head", "uplink.select": "weights"}
    ours = charter(**head)
    theirs = charter(seed=1, **head)
    assert "model.tensors" in all_differences(ours, theirs)


def test_clients_that_bring_their_own_data_need_not_say_where_it_comes_from():
    """Only what an example looks like is shared, and how many clients there are."""

    def own(plan):
        partition = replace(plan.data.partition, name="own")
        assert isinstance(partition, SplitData)
        return replace(plan, data=replace(plan.data, partition=partition))

    ours = of_plan(own(tiny()))
    shared = {name for name in ours.settings if name.startswith("data.")}
    looks = {"data.classes", "data.shape", "data.mean", "data.std", "data.augment"}
    assert shared == looks | {"data.clients", "data.partition.name"}
    assert of_plan(own(tiny(**{"data.validation": 0.2}))).digest == ours.digest
    assert of_plan(own(tiny(**{"data.clients": 9}))).digest != ours.digest


def test_a_charter_built_from_the_dumped_plan_is_the_same():
    ours = charter()
    assert of_plan(make_plan(plan_settings(tiny()))).digest == ours.digest


def test_the_first_difference_is_named_with_both_values():
    mine = {"a": 1, "b": [1, 2], "c": "x"}
    assert difference(mine, {"a": 1, "b": [1, 2], "c": "x"}) is None
    assert difference(mine, {"a": 1, "b": [1, 3], "c": "y"}) == (
        "b is [1, 3] at the other end and [1, 2] at this one"
    )
    assert difference(mine, {"a": 1, "b": [1, 2]}) == (
        'c is not there at the other end and "x" at this one'
    )
    assert difference(mine, {**mine, "d": None}) == (
        "d is null at the other end and not there at this one"
    )


def test_a_message_by_other_settings_is_refused():
    ours = charter()
    ours.require(Message(Kind.ORDER, (0, 1, 0), bytes(16), agreement=ours.digest))
    with pytest.raises(MessageError, match=f"digest is {'00' * 16}, this end's is"):
        ours.require(Message(Kind.ORDER, (0, 1, 0), bytes(16)))


@pytest.mark.parametrize(
    "settings", [{"training.lr": 0.2}, {"seed": 1}, {"uplink.bits": 2}, {"algorithm": "fedprox"}]
)
def test_a_site_that_works_by_other_settings_takes_no_part(settings):
    """The tensors are the same, so nothing else would tell."""
    ours = simulate(tiny(eval_every=9))
    theirs = simulate(tiny(eval_every=9, **settings))
    assert ours.charter.schema == theirs.charter.schema
    record = ours.server(theirs.serial(CPU)).step()
    assert (record.replied, record.failed) == (0, 5)
    for why in record.failures.values():
        assert why.startswith("MessageError: the other end works by other settings")
