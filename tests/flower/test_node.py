"""A node without Flower around it: who lives there, what it has, what it says."""

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedwsq[flower]'")

import numpy as np
import torch
from flwr.app import ConfigRecord, RecordDict
from PIL import Image

from fedwsq.core.errors import ConfigError
from fedwsq.core.types import Key
from fedwsq.data.digits import digits
from fedwsq.federation.charter import Charter
from fedwsq.federation.hello import encode_hello, read_introduction
from fedwsq.federation.owners import ExampleFormat, ModelSpec
from fedwsq.flower.envelope import read_request, read_response, write_request, write_response
from fedwsq.flower.node import serve
from fedwsq.flower.plain import Malformed, Request, Response
from fedwsq.flower.settings import (
    format_of_config,
    plan_of,
    read_format,
    read_names,
    write_format,
)
from fedwsq.plan import dump_plan
from fedwsq.transports import Reply
from fedwsq.wire.message import EVERYONE
from harness import tiny, tiny_words

DIGITS = ExampleFormat(10, (1, 8, 8))
WORDS = " ".join(tiny_words())
RUN = {"config": "quickstart", "overrides": WORDS}
OWN = {"config": "quickstart", "overrides": f"{WORDS} data.partition=own"}


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    """The first examples of the digits, as somebody's own file."""
    path = tmp_path_factory.mktemp("shard") / "mine.npz"
    x, y = digits().train.take(torch.arange(30))
    np.savez(path, x=x.numpy(), y=y.numpy())
    return path


def hello(plan, form=DIGITS, names=()):
    charter = Charter(plan, ModelSpec(plan, form))
    head = encode_hello(charter, EVERYONE, bytes(16))
    return Request([b""], [head], [0], write_format(form, names))


def test_a_node_of_a_simulation_has_its_share_of_the_clients():
    found = serve(RUN, {"partition-id": 1, "num-partitions": 3}, hello(tiny()))
    assert list(found.clients) == [1, 4, 7]
    assert list(found.reasons) == [""] * 3
    assert all(found.payloads)


def test_a_node_has_its_own_examples_and_no_others(shard):
    """A file without examples of every class: the federation says how many there are."""
    plan = tiny(**{"data.partition": "own"})
    found = serve(OWN, {"client": 7, "data": str(shard)}, hello(plan))
    assert (list(found.clients), list(found.reasons)) == ([7], [""])
    assert b'"examples": 24' in found.payloads[0]  # a fifth is its own test set


def photos(folder, **classes):
    """A folder of images, so many of each class."""
    for name, count in classes.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / name / f"{number}.png")
    return str(folder)


def test_classes_of_a_folder_have_the_numbers_that_they_have_elsewhere(tmp_path):
    """Where a client has no images of a class, the names say which classes it has."""
    plan = tiny(**{"data.partition": "own"})
    form = ExampleFormat(3, (3, 8, 8))
    names = ("cats", "dogs", "foxes")
    place = photos(tmp_path / "photos", cats=5, foxes=10)
    found = serve(OWN, {"client": 0, "data": place}, hello(plan, form, names))
    assert list(found.reasons) == [""]
    reply = Reply(Key(plan.seed, 0, 0), found.payloads[0])
    charter = Charter(plan, ModelSpec(plan, form))
    cats, dogs, foxes = read_introduction(charter, reply, bytes(16)).labels
    assert (cats + foxes, dogs) == (12, 0)  # a fifth is its own test set
    assert foxes > cats

    (reason,) = serve(OWN, {"client": 0, "data": place}, hello(plan, form)).reasons
    assert "folders for 2 of 3 classes (cats, foxes)" in reason
    assert "class-names='cats, dogs' in the run config" in reason
    strange = ("cats", "dogs", "wolves")
    (reason,) = serve(OWN, {"client": 0, "data": place}, hello(plan, form, strange)).reasons
    assert "class foxes is not one of the federation's: cats, dogs, wolves" in reason


def test_a_node_may_have_a_function_that_loads_its_examples():
    plan = tiny(**{"data.partition": "own"})
    found = serve(OWN, {"client": 1, "data": "fedwsq.data.digits:digits"}, hello(plan))
    assert (list(found.clients), list(found.reasons)) == ([1], [""])
    (reason,) = serve(OWN, {"client": 1, "data": "nobody:knows"}, hello(plan)).reasons
    assert "nobody" in reason


@pytest.mark.parametrize(
    ("run", "node", "why"),
    [
        (OWN, {"client": 0}, "where this node's examples are"),
        (OWN, {"client": 10, "data": "x.npz"}, "client is 10 in the node config"),
        (OWN, {"data": "x.npz"}, "client is None in the node config"),
        (OWN, {"client": 0, "data": "nothing.npz"}, "nothing.npz is not a file"),
        (OWN, {"client": 0, "data": "nothing"}, "must be a folder, an .npz file or module"),
        (RUN, {"client": 0, "data": "x.npz", "partition-id": 0, "num-partitions": 1}, "own"),
        (RUN, {}, "partition-id=0 num-partitions=3"),
        (RUN, {"partition-id": "one", "num-partitions": 3}, "partition-id is 'one'"),
        (RUN, {"partition_id": 1}, "unknown key partition_id"),
        (RUN | {"overrides": "rounds=x"}, {"partition-id": 0, "num-partitions": 1}, "rounds"),
    ],
    ids=range(10),
)
def test_a_node_that_cannot_take_part_says_why(run, node, why):
    found = serve(run, node, hello(tiny()))
    assert not any(found.payloads)
    assert all(why in reason for reason in found.reasons), found.reasons


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"training.lr": 0.05}, "training.lr is 0.1 at the other end and 0.05 at this one"),
        ({"uplink.bits": 1}, "uplink.bits.bits is 4 at the other end and 1 at this one"),
    ],
)
def test_a_node_that_has_agreed_to_another_plan_names_the_field(changes, why, tmp_path):
    agreed = tmp_path / "agreed.toml"
    agreed.write_text(dump_plan(tiny(**changes)))
    node = {"partition-id": 0, "num-partitions": 10, "plan": str(agreed)}
    (reason,) = serve(RUN, node, hello(tiny())).reasons
    assert why in reason


def test_a_node_with_other_examples_names_what_differs(shard):
    plan = tiny(**{"data.partition": "own"})
    node = {"client": 0, "data": str(shard)}
    (reason,) = serve(OWN, node, hello(plan, ExampleFormat(10, (1, 9, 9)))).reasons
    assert "data.shape is [1, 9, 9] at the other end and [1, 8, 8] at this one" in reason
    (reason,) = serve(OWN, node, hello(plan, ExampleFormat(5, (1, 8, 8)))).reasons
    assert "classes" in reason


def test_a_run_config_is_a_plan():
    plan = plan_of({"method": "fedwsq", "bits": 1, "rounds": 7, "overrides": "seed=3"})
    assert (plan.rounds, plan.seed, plan.uplink.bits.bits) == (7, 3, 1)
    # Nothing given: the config's own.
    empty = {"config": "quickstart", "method": "", "bits": 0, "rounds": 0, "overrides": ""}
    assert plan_of(empty) == plan_of({})
    with pytest.raises(ConfigError, match=r"uplink\.bits is given twice, by bits and in overrides"):
        plan_of({"bits": 1, "overrides": "uplink.bits=2"})
    with pytest.raises(ConfigError, match=r"overrides is 'method=\"fedavg', .*; close every quote"):
        plan_of({"overrides": 'method="fedavg'})


def test_a_server_without_data_is_told_the_form_of_an_example():
    assert format_of_config({"classes": 10, "shape": "1x8x8"}) == DIGITS
    for wrong in ({}, {"classes": 10}, {"shape": "1x8x8"}, {"classes": 10, "shape": "a lot"}):
        with pytest.raises(ConfigError, match="what an example looks like"):
            format_of_config(wrong)
    named = {"class-names": "cats, dogs", "shape": "1x8x8"}
    assert format_of_config(named) == ExampleFormat(2, (1, 8, 8))
    with pytest.raises(ConfigError, match="classes is 3, but class-names has 2 names"):
        format_of_config(named | {"classes": 3})
    with pytest.raises(ConfigError, match="names a class twice"):
        format_of_config(named | {"class-names": "cats, cats"})


def test_formats_are_read_as_written():
    full = ExampleFormat(3, (3, 4, 4), (0.5, 0.25, 0.125), (1.0, 2.0, 4.0), True)
    assert read_format(write_format(full)) == full
    assert read_names(write_format(full)) == ()
    assert read_names(write_format(full, ["a", "b", "c"])) == ("a", "b", "c")
    for wrong in ("", "[]", "{}", "null", '{"classes": "x"}'):
        with pytest.raises(ConfigError, match="no format of examples"):
            read_format(wrong)


def test_messages_come_out_as_they_went_in():
    request = Request([b"", b"body" * 100], [b"head", b"other"], [1, 0], "format")
    assert read_request(write_request(request)) == request
    response = Response([b"payload", b""], ["", "battery"], [3, 4], 1.5, 2.5)
    assert read_response(write_response(response)) == response


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"reasons": ["", "", ""]}, "2 payloads and 3 reasons"),
        ({"reasons": [1, 2]}, "reasons is"),
        ({"clients": ["a"]}, "clients is"),
        ({"clients": 5}, "clients is 5"),
        ({"times": ["long", "ago"]}, "times is"),
        ({"times": [1.0]}, "times"),
        ({"times": [2.0, 1.0]}, "times"),
        ({"times": [0.0, float("nan")]}, "times"),
        ({"times": [0.0, float("inf")]}, "times"),
    ],
)
def test_a_response_that_makes_no_sense_is_refused(changes, why):
    content = write_response(Response([b"a", b"b"], ["", ""]))
    for key, value in changes.items():
        content["fedwsq.work"][key] = value
    with pytest.raises(Malformed, match=why):
        read_response(content)


def test_a_message_of_another_app_is_refused():
    for content in (RecordDict(), RecordDict({"config": ConfigRecord({"lr": 0.1})})):
        with pytest.raises(Malformed, match="a message with"):
            read_response(content)
        with pytest.raises(Malformed, match="a message with"):
            read_request(content)
    stray = write_request(Request([b""], [b"head"], [0], ""))
    stray["fedwsq.work"]["on"] = [1]
    with pytest.raises(Malformed, match="on top of"):
        read_request(stray)


def test_a_node_with_keys_sends_nothing_in_a_run_that_is_not_secure(tmp_path):
    """The run's plan is the server's word: it could ask the same federation for plain updates."""
    node = {"partition-id": 0, "num-partitions": 5, "keys": str(tmp_path)}
    found = serve(RUN, node, hello(tiny()))
    assert not any(found.payloads)
    assert all("keys for secure sums" in reason for reason in found.reasons), found.reasons
