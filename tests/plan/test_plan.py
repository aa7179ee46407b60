import hashlib
import sys
import tomllib
from dataclasses import dataclass, replace

import pytest
import tomli_w

from fedwsq.algorithms import FedAvg
from fedwsq.codecs import CODECS, Danuq, Fixed, Float32
from fedwsq.codecs.bits import PerClient
from fedwsq.core.errors import ConfigError, nearest
from fedwsq.models import NoStandardization, WeightStandardization
from fedwsq.plan import (
    METHODS,
    Plan,
    dump_plan,
    load_plan,
    locate,
    make_plan,
    parse_override,
    plan_digest,
    plan_settings,
    shipped_configs,
)


@pytest.mark.parametrize("name", shipped_configs())
def test_every_shipped_config_is_valid_and_survives_its_dump(name):
    plan = load_plan(name)
    again = make_plan(tomllib.loads(dump_plan(plan)))
    assert again == plan
    assert dump_plan(again) == dump_plan(plan)


def test_a_dump_spells_out_every_default():
    settings = tomllib.loads(dump_plan(Plan()))
    assert settings["data"] == {
        "name": "digits",
        "clients": 10,
        "validation": 0.0,
        "client_test": 0.0,
        "augment": True,
        "partition": {"name": "dirichlet", "alpha": 0.3},
    }
    assert settings["uplink"]["codec"] == {"name": "float32"}
    assert settings["model"]["standardize"] == {"name": "none"}
    assert settings["training"]["lr_decay"] == 0.995


def test_the_quick_start_is_fedwsq_at_four_bits():
    plan = load_plan()
    assert plan.uplink.codec == Danuq()
    assert plan.uplink.bits == Fixed(4)
    assert plan.model.standardize == WeightStandardization(rho=1e-3)
    assert plan.data.load.name == "digits"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rounds=20", ("rounds", 20)),
        ("training.lr=1e-2", ("training.lr", 0.01)),
        ("uplink.codec=danuq", ("uplink.codec", "danuq")),
        ("data.root=/some/where", ("data.root", "/some/where")),
        ("model.standardize=true", ("model.standardize", True)),
        ("data.partition={ name = 'iid' }", ("data.partition", {"name": "iid"})),
        ("x=a=b", ("x", "a=b")),
    ],
)
def test_overrides_are_toml_or_plain_words(text, expected):
    assert parse_override(text) == expected


def test_a_bare_name_or_number_stands_for_a_table():
    plan = make_plan(
        {}, ["uplink.codec=danuq", "uplink.bits=1", "model.standardize=true", "data.partition=iid"]
    )
    assert (plan.uplink.codec, plan.uplink.bits) == (Danuq(), Fixed(1))
    assert plan.model.standardize == WeightStandardization()
    assert plan.data.partition.name == "iid"
    assert make_plan({}, ["model.standardize=none"]).model.standardize == NoStandardization()


def test_a_field_of_a_named_table_can_be_set():
    plan = load_plan(
        "quickstart", ["uplink.codec.levels=optimal", "uplink.bits=3", "data.partition.alpha=0.1"]
    )
    assert plan.uplink.codec == Danuq(levels="optimal")
    assert plan.data.partition.options == {"alpha": 0.1}
    settings = {"uplink": {"codec": "danuq", "bits": 2}}
    plan = make_plan(settings, ["uplink.codec.momentum=0.5"])
    assert plan.uplink.codec.momentum == 0.5


def test_naming_the_entry_it_has_keeps_its_fields_and_another_replaces_them():
    settings = {"uplink": {"codec": {"name": "danuq", "momentum": 0.5}, "bits": 4}}
    assert make_plan(settings, ["uplink.codec=danuq"]).uplink.codec == Danuq(momentum=0.5)
    assert make_plan(settings, ["uplink.codec=float32"]).uplink.codec == Float32()


def test_overrides_may_be_a_mapping():
    assert load_plan("quickstart", {"uplink.bits": 1, "rounds": 3}).rounds == 3


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("methd=fedavg", "unknown key methd.*did you mean method"),
        ("rouns=3", "unknown key rouns.*did you mean rounds"),
        ("training.learning_rate=3", "unknown key training.learning_rate"),
        ("alpha=0.1", r"did you mean data\.partition\.alpha"),
        ("rho=0.1", r"did you mean model\.standardize\.rho"),
        (
            "uplink.codec=danq",
            "uplink.codec is 'danq'; it can be danuq, danuq4, danuq8, .*did you mean danuq",
        ),
        ("uplink.bits=3", "danuq has no 3-bit rate; it offers 1, 2, 4"),
        ("uplink.bits=true", "uplink.bits"),
        ("uplink.select=some", "uplink.select is 'some'; it can be published, weights, all"),
        ("uplink.codec.levels=best", "levels"),
        ("uplink.codec.colour=red", "unknown key uplink.codec.colour; danuq has levels, momentum"),
        ("rounds=0", "rounds is 0, must be at least 1"),
        ("rounds=many", "rounds is 'many', must be a whole number"),
        ("rounds=1.5", "rounds is 1.5, must be a whole number"),
        ("rounds=true", "rounds is True, must be a whole number"),
        ("training.lr=nan", "training.lr is nan"),
        ("training.lr=inf", "training.lr is inf"),
        ("method=[1]", "method is"),
        ("training.lr=-1", "training: lr is -1.0, must be above 0"),
        ("training=3", "training is 3, must be a table"),
        ("model=resnet8", "model is 'resnet8', but is a table; say model.name=resnet8"),
        ("seed=-1", "seed is -1"),
        ("clients_per_round=11", "clients_per_round is 11 but data.clients is 10"),
        ("data.clients=0", "clients is 0"),
        ("data.validation=1", "validation is 1.0"),
        ("data.name=mnist", "data is 'mnist'; it can be digits, cifar10"),
        ("data.depth=3", "unknown key data.depth; digits has no settings"),
        ("model.classes=3", "unknown key model.classes"),
        ("model.standardize=3.5", "model.standardize"),
        ("downlink={codec='danuq', bits=3}", "downlink: danuq has no 3-bit rate"),
        ("algorithm=missing_module:Thing", "cannot be imported"),
        ("algorithm.name=3", "algorithm.name is 3"),
        ("model.name=:build", "cannot be imported"),
        ("model.name=builtins:dict", "of Python's own library"),
        ("stop_at_accuracy=90", "stop_at_accuracy is 90.0, must be between 0 and 1"),
        ("uplink.bits.bits=2", "give uplink.bits a table"),
        ("nonsense", "is not an override; write key=value"),
        ("aggregation=sum", "aggregation is 'sum'; it can be examples, uniform, error$"),
    ],
)
def test_a_mistake_is_named_with_the_way_out(override, says):
    with pytest.raises(ConfigError, match=says):
        load_plan("quickstart", [override])


def test_an_unknown_config_suggests_the_nearest():
    with pytest.raises(ConfigError, match="did you mean quickstart"):
        load_plan("quikstart")


def test_broken_toml_names_the_file(tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text("rounds = = 3")
    with pytest.raises(ConfigError, match=r"broken\.toml is not valid TOML"):
        load_plan(path)


def test_code_outside_the_package_joins_by_module_and_name(tmp_path, monkeypatch):
    (tmp_path / "my_lab.py").write_text(
        "from dataclasses import dataclass\n"
        "from fedwsq import FedAvg\n"
        "@dataclass(frozen=True)\n"
        "class FedX(FedAvg):\n"
        "    mu: float = 0.5\n"
        "def split(labels, clients, seed, skew: float = 1.0, path: str | None = None):\n"
        "    return None\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    plan = make_plan(
        {}, ["algorithm=my_lab:FedX", "algorithm.mu=0.25", "data.partition=my_lab:split"]
    )
    assert plan.algorithm.mu == 0.25
    settings = tomllib.loads(dump_plan(plan))
    assert settings["algorithm"] == {
        "name": "my_lab:FedX",
        "mu": 0.25,
        "server": {"name": "plain", "lr": 1.0},
    }
    assert settings["data"]["partition"] == {"name": "my_lab:split", "skew": 1.0}
    assert make_plan(settings) == plan


OUR_SPLIT = """
from pathlib import Path
from typing import Literal

def split(labels, clients, seed, path: str = "", sizes: tuple[int, ...] = (1, 2),
          kind: Literal[1, 2] = 1, rows: list[int] = [3], folder: Path = Path()):
    return None
"""


def test_a_function_from_outside_may_have_settings_of_any_type(tmp_path, monkeypatch):
    (tmp_path / "our_lab.py").write_text(OUR_SPLIT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    ours = {"data": {"partition": {"name": "our_lab:split", "path": "here", "rows": [4]}}}
    plan = make_plan(ours)
    assert plan.data.partition.options["rows"] == [4]
    found = locate(plan).data.partition.options
    assert found == {**plan.data.partition.options, "path": str(tmp_path / "here")}
    for wrong, says in (
        ("folder=x", "folder is 'x', must be <class 'pathlib.Path'>"),
        ("rows=x", "rows is 'x', must be list"),
        ("kind=3", "kind is 3; it can be 1, 2"),
    ):
        with pytest.raises(ConfigError, match=says):
            make_plan(ours, [f"data.partition.{wrong}"])


def test_overrides_belong_to_whoever_gave_them():
    data = {"name": "synthetic", "clients": 20}
    assert make_plan({}, {"data": data, "data.clients": 30}).data.clients == 30
    assert data == {"name": "synthetic", "clients": 20}


def test_the_digest_tells_plans_apart_but_not_their_length():
    base = plan_digest(load_plan())
    assert plan_digest(load_plan("quickstart", ["rounds=99"])) == base
    assert plan_digest(load_plan("quickstart", ["bounds.norm=2.5", "combine=mean"])) == base
    assert plan_digest(load_plan("quickstart", ["bounds.norm=3"])) != base
    assert plan_digest(load_plan("cifar10", ["combine=median"])) != plan_digest(
        load_plan("cifar10")
    )
    assert plan_digest(load_plan("quickstart", ["seed=1"])) != base
    assert plan_digest(load_plan("quickstart", ["uplink.bits=1"])) != base


def test_a_run_from_before_there_were_bounds_is_one_with_what_they_first_were():
    plan = load_plan("quickstart", ["bounds.norm=4"])
    settings = plan_settings(plan)
    for name in ("rounds", "patience", "record", "bounds", "combine"):
        del settings[name]
    before = hashlib.blake2b(tomli_w.dumps(settings).encode(), digest_size=8).hexdigest()
    assert plan_digest(plan) == before


@pytest.mark.parametrize(
    ("settings", "overrides"),
    [
        ({}, ["method=fedprox", "uplink.bits=1"]),
        ({"uplink": {"codec": "danuq", "bits": 4}}, {"uplink": {"bits": 1}}),
        ({"method": "fedavg", "uplink": {"bits": 1}}, []),
        ({}, ["uplink.bits={name='fixed', bits=2}"]),
    ],
)
def test_bits_that_the_codec_does_not_have_are_refused_where_they_were_asked_for(
    settings, overrides
):
    says = r"uplink\.bits is [12], but uplink\.codec is float32, .* has 32 bits and no"
    with pytest.raises(ConfigError, match=says):
        make_plan(settings, overrides)


def test_bits_that_came_with_another_codec_are_left_behind():
    assert load_plan("quickstart", ["uplink.codec=float32"]).uplink.bits == Fixed(32)
    settings = {"method": "fedavg", "uplink": {"bits": 1}}
    assert make_plan(settings, ["uplink.codec=danuq"]).uplink.bits == Fixed(1)
    with pytest.raises(ConfigError, match=r"downlink\.bits is 8, but downlink\.codec is float32"):
        load_plan("quickstart", ["downlink.bits=8"])


@pytest.mark.parametrize("name", CODECS)
def test_a_codec_named_without_bits_takes_its_only_rate_or_four(name):
    rates = CODECS[name]().rates
    expected = Fixed(4 if rates.only is None else rates.only)
    for direction in ("uplink", "downlink"):
        plan = make_plan({"method": "fedws"}, [f"{direction}.codec={name}"])
        assert getattr(plan, direction).bits == expected
        assert make_plan({direction: {"codec": {"name": name}}}) == make_plan(
            {}, [f"{direction}.codec={name}", f"{direction}.bits={expected.bits}"]
        )
        spelled_out = tomllib.loads(dump_plan(plan))[direction]["bits"]
        assert spelled_out == {"name": "fixed", "bits": expected.bits}


def test_bits_that_are_given_win_over_the_usual_ones():
    assert make_plan({}, ["uplink.codec=danuq", "uplink.bits=1"]).uplink.bits == Fixed(1)
    assert make_plan({"uplink": {"codec": "topk", "bits": 32}}).uplink.bits == Fixed(32)
    assert (
        make_plan({}, ["uplink.codec=danuq", "uplink.bits=per_client"]).uplink.bits == PerClient()
    )
    assert load_plan("quickstart", ["uplink.codec=eden", "uplink.bits=7"]).uplink.bits == Fixed(7)


def test_a_codec_from_outside_without_four_bits_takes_what_is_nearest(tmp_path, monkeypatch):
    (tmp_path / "coarse_lab.py").write_text(COARSE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert make_plan({}, ["uplink.codec=coarse_lab:Coarse"]).uplink.bits == Fixed(2)


COARSE = """
from dataclasses import dataclass
from fedwsq.codecs import Danuq, Rates

@dataclass(frozen=True)
class Coarse(Danuq):
    rates = Rates.of(1, 2)
"""


def test_a_key_is_given_once_on_a_command_line_and_over_a_file():
    says = "seed is given twice, seed=1 and  seed = 1; keep one of them"
    with pytest.raises(ConfigError, match=says):
        load_plan("quickstart", ["seed=1", "rounds=2", " seed = 1"])
    assert load_plan("quickstart", ["seed=1", "rounds=2"]).rounds == 2


@pytest.mark.parametrize(
    ("word", "found"),
    [("fedwqs", "fedwsq"), ("FEDWSQ", "fedwsq"), ("fedw", "fedws"), ("scafold", "scaffold")],
)
def test_the_nearest_word(word, found):
    assert nearest(word, METHODS) == found
    assert nearest("nothing like it", METHODS) == ""


def test_a_setting_of_what_is_there_by_default_needs_no_name():
    plan = make_plan(
        {"data": {"partition": {"alpha": 0.1}}},
        ["training.optimizer.momentum=0.9", "algorithm.server.lr=0.5"],
    )
    assert plan.data.partition.options["alpha"] == 0.1
    assert (plan.training.optimizer.momentum, plan.algorithm.server.lr) == (0.9, 0.5)


def test_no_hint_to_what_was_written(tmp_path):
    with pytest.raises(ConfigError, match=r"unknown key data\.root") as error:
        make_plan({}, ["data.root=x"])
    assert "did you mean data.root" not in str(error.value)


def test_what_is_in_a_script_or_is_no_function_is_refused(tmp_path, monkeypatch):
    (tmp_path / "odd_lab.py").write_text("number = 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, why in (
        ("odd_lab:number", "which is int, not a function or a class"),
        ("./odd_lab:number", "cannot be imported"),
        ("__main__:Mine", "put it into a file that can be imported"),
    ):
        with pytest.raises(ConfigError, match=why):
            make_plan({}, [f"model.name={name}"])
    mine = dataclass(frozen=True)(type("Mine", (FedAvg,), {"__module__": "__main__"}))
    with pytest.raises(ConfigError, match="Mine is defined in the script that runs"):
        dump_plan(replace(Plan(), algorithm=mine()))


def test_a_config_is_read_as_utf8_with_or_without_a_mark(tmp_path):
    (tmp_path / "c.toml").write_bytes("\ufeff# für alle\nrounds = 7\n".encode())
    assert load_plan(tmp_path / "c.toml").rounds == 7
