"""What `docs/wire-format.md` says of the agreement, written out by hand, against the code."""

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import test_golden_messages as messages

from fedwsq.codecs import Danuq, Fixed
from fedwsq.core.errors import MessageError
from fedwsq.federation.charter import Charter, difference
from fedwsq.federation.owners import ModelSpec
from fedwsq.federation.simulation import simulate
from fedwsq.plan import PLACES, SplitData, plan_settings
from fedwsq.wire import Uplink
from harness import tiny

DOCUMENT = (Path(__file__).parents[2] / "docs" / "wire-format.md").read_text()
PLAIN = simulate(tiny()).charter


# The description


def written(value):
    """A setting in JSON."""
    if isinstance(value, dict):
        pairs = (f"{written(name)}: {written(value[name])}" for name in sorted(value))
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    if isinstance(value, str):
        assert re.fullmatch(r"[ !#-\[\]-~]*", value), "nothing to escape in these plans"
        return f'"{value}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if value == int(value):
        return str(int(value))
    return repr(value)


def digest(settings):
    return hashlib.blake2b(written(settings).encode(), digest_size=16).digest()


def flat(table, settings):
    """`training`, {"lr": 0.1} -> {"training.lr": 0.1}."""
    if not isinstance(settings, dict):
        return {table: settings}
    found = {}
    for name, value in settings.items():
        found |= flat(f"{table}.{name}", value)
    return found


def described(charter):
    """The settings that the document lists."""
    plan = plan_settings(charter.plan)
    found = {"wire": 2, "seed": plan["seed"]}
    for table in ("algorithm", "training", "model", "uplink", "downlink", "data", "metric"):
        found |= flat(table, plan[table])
    if plan["training"]["schedule"] == "published":
        found["rounds"] = plan["rounds"]
    left_out = ("data.root", "data.path", "data.partition.path", "model.init")
    for name in ("training.precision", *left_out):
        found.pop(name, None)
    form = charter.model.format
    found["data.classes"] = form.classes
    found["data.shape"] = list(form.shape)
    found["data.mean"] = list(form.mean)
    found["data.std"] = list(form.std)
    found["data.augment"] = form.augment
    found["model.tensors"] = charter.schema.digest.hex()
    if plan["downlink"]["mode"] == "start":
        found["model.start"] = start_digest(charter.model.initial_params())
    return found


def start_digest(params):
    """Names with their shapes and little-endian values, in the order of the schema."""
    text = b""
    for name, x in params.items():
        text += f"{name}{tuple(x.shape)}".encode() + x.contiguous().numpy().astype("<f4").tobytes()
    return hashlib.blake2b(text, digest_size=16).hexdigest()


# The description against the code


PLANS = {
    "plain": {},
    "published schedule": {"training.schedule": "published"},
    "chain": {"downlink": {"codec": "danuq", "bits": 4, "mode": "chain"}},
    "from the start": {"downlink": {"codec": "danuq", "bits": 1, "mode": "start"}},
    "entropy coded": {"uplink": {"codec": "ecq", "bits": 0.5, "select": "all"}},
    "bits by client": {"uplink.bits": {"name": "per_client", "choices": [1, 2, 4]}},
    "another method": {"algorithm": {"name": "fedprox", "mu": 0.00001}},
}


@pytest.mark.parametrize("overrides", PLANS.values(), ids=PLANS)
def test_the_digest_is_that_of_the_settings_as_described(overrides):
    charter = simulate(tiny(**overrides)).charter
    assert digest(charter.settings) == charter.digest
    assert digest(described(charter)) == charter.digest


def test_the_worked_digest_of_the_document():
    text = re.sub(r"\n +", " ", DOCUMENT)
    assert written(messages.SETTINGS) in text
    assert f"have the digest `{messages.AGREEMENT.hex()}`" in text
    assert digest(messages.SETTINGS) == messages.AGREEMENT


@pytest.mark.parametrize("name", ["training.precision", *PLACES])
def test_what_may_differ_is_not_in_it(name):
    assert name not in PLAIN.settings


@pytest.mark.parametrize(
    "overrides",
    [
        {"rounds": 7},
        {"clients_per_round": 2},
        {"aggregation": "uniform"},
        {"eval_every": 2},
        {"checkpoint_every": 5},
        {"training.precision": "bfloat16"},
        {"channels": "lognormal"},
    ],
    ids=lambda overrides: next(iter(overrides)),
)
def test_what_is_the_business_of_one_end_changes_nothing(overrides):
    assert simulate(tiny(**overrides)).charter.digest == PLAIN.digest


@pytest.mark.parametrize(
    "overrides",
    [
        {"seed": 1},
        {"training.lr": 0.2},
        {"algorithm": "fedprox"},
        {"model.name": "resnet8"},
        {"model.train": "head"},
        {"uplink.bits": 2},
        {"uplink.codec.momentum": 0.2},
        {"uplink.error_feedback": True},
        {"downlink": {"codec": "float16"}},
        {"data.clients": 11},
        {"data.partition.alpha": 0.4},
        {"metric": "minus_squared_error"},
    ],
    ids=lambda overrides: next(iter(overrides)),
)
def test_what_both_must_share_changes_it(overrides):
    other = simulate(tiny(**overrides)).charter
    assert other.digest != PLAIN.digest
    assert difference(PLAIN.settings, other.settings) is not None

    message = messages.order()
    PLAIN.require(replace(message, agreement=PLAIN.digest))
    with pytest.raises(MessageError, match=f"{other.digest.hex()}, .* {PLAIN.digest.hex()};"):
        PLAIN.require(replace(message, agreement=other.digest))


def test_the_number_of_rounds_counts_where_learning_rates_depend_on_it():
    published = {"training.schedule": "published"}
    two = simulate(tiny(rounds=2, **published)).charter
    three = simulate(tiny(rounds=3, **published)).charter
    assert difference(two.settings, three.settings) == (
        "rounds is 3 at the other end and 2 at this one"
    )


def test_whole_numbers_are_the_same_with_and_without_a_point():
    """A plan that was written and read again may have 4.0 where somebody's code said 4."""
    plan = tiny()
    charters = []
    for bits in (4, 4.0):
        changed = replace(plan, uplink=Uplink(Danuq(), Fixed(bits)))
        charters.append(Charter(changed, PLAIN.model))
    assert charters[0].settings == charters[1].settings
    assert charters[0].digest == charters[1].digest
    assert type(charters[1].settings["uplink.bits.bits"]) is int


def test_a_data_set_may_have_numpy_s_numbers():
    form = PLAIN.model.format
    theirs = form._replace(mean=(np.float32(0.5),), std=(np.float32(2),), classes=np.int64(10))
    ours = form._replace(mean=(0.5,), std=(2.0,))
    digests = [Charter(PLAIN.plan, ModelSpec(PLAIN.plan, each)).digest for each in (theirs, ours)]
    assert digests[0] == digests[1]


def test_clients_with_examples_of_their_own_need_not_say_where_these_come_from():
    data = replace(PLAIN.plan.data, partition=SplitData("own", lambda: None), validation=0.5)
    charter = Charter(replace(PLAIN.plan, data=data), PLAIN.model)
    found = {name for name in charter.settings if name.startswith("data.")}
    of_the_plan = {"data.clients", "data.partition.name"}
    of_an_example = {f"data.{name}" for name in charter.model.format._fields}
    assert found == of_the_plan | of_an_example


def test_settings_are_such_that_json_gives_them_back():
    assert json.loads(json.dumps(PLAIN.settings)) == PLAIN.settings
