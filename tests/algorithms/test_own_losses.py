"""What holds for every method that brings its own loss."""

import re

import pytest
from rounds import cnn_delta, learns_unlike_fedavg, squared_error
from torch import nn

from fedwsq.algorithms import ALGORITHMS
from fedwsq.core.errors import ConfigError
from fedwsq.training import Training

OWN_LOSSES = ("feddecorr", "fedlc", "fedmlb", "fedntd", "fedrcl")
INF = float("inf")
NAN = float("nan")


@pytest.mark.parametrize("name", OWN_LOSSES)
def test_it_learns_unlike_fedavg(name):
    assert learns_unlike_fedavg(ALGORITHMS[name]())


@pytest.mark.parametrize(("name", "form"), [("fedlc", "paper"), ("fedntd", "official")])
def test_its_other_form_learns_unlike_fedavg(name, form):
    assert learns_unlike_fedavg(ALGORITHMS[name](form=form))


@pytest.mark.parametrize("name", OWN_LOSSES)
def test_it_refuses_another_criterion(name):
    message = f"criterion is squared_error, but {name} brings its own loss"
    with pytest.raises(ConfigError, match=message):
        cnn_delta(ALGORITHMS[name](), criterion=squared_error())


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("feddecorr", "(pooled, head)"),
        ("fedmlb", "(features, resume)"),
        ("fedrcl", "(features, resume)"),
    ],
)
def test_it_needs_stages_if_it_looks_inside(name, needed):
    message = (
        rf"{name} needs a model with stages {re.escape(needed)}: .*resnet8.* are; Linear is not"
    )
    with pytest.raises(ConfigError, match=message):
        ALGORITHMS[name]().check(nn.Linear(2, 2), Training())


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("feddecorr", "beta", -0.1),
        ("fedlc", "tau", 0.0),
        ("fedlc", "tau", INF),
        ("fedlc", "tau", NAN),
        ("fedlc", "form", "official"),
        ("fedmlb", "tau", 0.0),
        ("fedmlb", "lambda1", -1.0),
        ("fedmlb", "lambda2", INF),
        ("fedntd", "tau", 0.0),
        ("fedntd", "beta", -0.1),
        ("fedntd", "beta", 1.5),
        ("fedntd", "form", "paper"),
        ("fedrcl", "tau", 0.0),
        ("fedrcl", "beta", -1.0),
        ("fedrcl", "threshold", 1.5),
    ],
)
def test_settings_out_of_range_are_refused(name, setting, value):
    with pytest.raises(ConfigError, match=f"{setting} is {value!r}, must be"):
        ALGORITHMS[name](**{setting: value})
