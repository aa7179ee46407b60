import tomllib
from pathlib import Path

import pytest

from fedwsq.algorithms import FedAvg
from fedwsq.algorithms.fedacg import FedACG
from fedwsq.algorithms.server_opt import Adam, Momentum
from fedwsq.codecs import Danuq, Danuq4, Ecq, Fixed, Float32
from fedwsq.codecs.uq import Uq
from fedwsq.core.errors import ConfigError
from fedwsq.federation.server import first_snapshot
from fedwsq.federation.simulation import simulate
from fedwsq.models import NoStandardization, WeightStandardization
from fedwsq.plan import METHODS, dump_plan, load_plan, make_plan, methods_document

ROOT = Path(__file__).parents[2]


def test_the_document_is_up_to_date():
    assert (ROOT / "docs" / "methods.md").read_text() == methods_document()


def test_named_methods_are_compositions():
    plans = {name: make_plan({}, {"method": name}) for name in METHODS}
    plain = plans["fedavg"]
    assert plain.algorithm == FedAvg()
    assert (plain.uplink.codec, plain.model.standardize) == (Float32(), NoStandardization())
    assert plans["fedavgm"].algorithm == FedAvg(server=Momentum(beta=0.4))
    assert plans["fedadam"].algorithm == FedAvg(
        server=Adam(lr=0.01, beta1=0.9, beta2=0.99, tau=0.001)
    )
    assert plans["fedws"].model.standardize == WeightStandardization(rho=1e-3)
    assert plans["fedwsq"].model.standardize == WeightStandardization(rho=1e-3)
    assert (plans["fedwsq"].uplink.codec, plans["fedwsq"].uplink.bits) == (Danuq(), Fixed(4))
    assert (plans["fedpaq"].uplink.codec, plans["fedpaq"].uplink.bits) == (Uq(), Fixed(4))
    assert plans["fedhq+"].uplink == plans["fedpaq"].uplink
    assert plans["fedhq+"].aggregation == "error"
    for name in (
        "feddyn",
        "fedsmoo",
        "scaffold",
    ):  # what they add up is a plain mean over the cohort
        assert plans[name].aggregation == "uniform"
        assert load_plan("cifar10", {"method": name}).aggregation == "uniform"
    for name in ("fedws", "fedwsq", "fedpaq", "fedhq+"):
        assert plans[name].algorithm == FedAvg()


def test_the_lean_method_codes_what_was_learned_both_ways_at_widths_that_grow():
    plan = load_plan("quickstart", ["method=fedwsq-lean"])
    assert plan.algorithm == FedACG()
    assert plan.model.standardize == WeightStandardization()
    assert plan.training.decay_on == "server"
    assert plan.downlink.mode == "start"
    for link in (plan.uplink, plan.downlink):
        assert (link.codec, link.select) == (Ecq(), "published")
        assert (link.rest, link.spread) == (Danuq4(), "tensors")
    widths = [(plan.uplink.bits.of_round(n), plan.downlink.rate(n)) for n in (1, 24, 37, 200)]
    assert widths == [(0.25, (0.25,)), (0.25, (0.5,)), (0.5, (1.5,)), (0.5, (2.0,))]


def test_no_method_leaves_decay_to_the_server_of_another():
    lean = {"method": "fedwsq-lean"}
    assert make_plan(lean, {"method": "fedws"}).training.decay_on == "clients"
    assert load_plan("cifar10", lean).training.decay_on == "server"


def test_a_method_of_an_override_leaves_no_downlink_of_the_files_method_behind():
    plan = make_plan({"method": "fedwsq-lean"}, {"method": "fedavg"})
    assert plan == make_plan({"method": "fedavg"})
    kept = make_plan({"downlink": {"codec": "ecq", "bits": 3}}, {"method": "fedavg"})
    assert kept.downlink.bits == Fixed(3)  # what a file itself says stays


def test_the_resolved_config_spells_a_method_out():
    plan = load_plan(
        "quickstart",
        ["method=fedacg", "uplink.codec=danuq", "uplink.bits=1", "model.standardize=true"],
    )
    assert plan.algorithm == FedACG()
    assert (plan.uplink.codec, plan.uplink.bits) == (Danuq(), Fixed(1))
    assert plan.model.standardize == WeightStandardization()
    settings = tomllib.loads(dump_plan(plan))
    assert "method" not in settings
    assert settings["algorithm"] == {"name": "fedacg", "lam": 0.85, "beta": 0.001, "prox": "code"}


def test_a_method_leaves_nothing_of_another_behind():
    # The quick start is FedWSQ; as FedAvg it has neither its codec nor its standardization.
    plan = load_plan("quickstart", ["method=fedavg"])
    assert (plan.uplink.codec, plan.model.standardize) == (Float32(), NoStandardization())
    assert plan.rounds == load_plan("quickstart").rounds


def test_a_file_may_name_a_method_and_refine_it():
    plan = make_plan(
        {"method": "fedwsq", "uplink": {"bits": 1}, "algorithm": {"name": "fedprox", "mu": 0.01}}
    )
    assert (plan.uplink.codec, plan.uplink.bits) == (Danuq(), Fixed(1))
    assert plan.algorithm.mu == 0.01


def test_an_unknown_method_suggests_the_nearest():
    with pytest.raises(ConfigError, match="did you mean fedprox"):
        make_plan({}, {"method": "fedprx"})


def test_fedwon_with_another_standardization_is_refused():
    simulation = simulate(load_plan("quickstart", ["method=fedwon", "model.standardize=ws"]))
    with pytest.raises(ConfigError, match="fedwon needs"):
        first_snapshot(simulation.charter)
