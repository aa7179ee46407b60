"""Which parameters a model may have, and which of them are trained."""

import pytest
import torch
from torch import nn

from fedwsq.core.errors import ConfigError
from fedwsq.models import check_model, cnn, frozen, train_only, trainable
from own_models import Tied, all_frozen, half


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (half(2, 1), r"parameter '1.weight' is torch.float16; .*call model.float\(\)"),
        (nn.Linear(2, 2, dtype=torch.bfloat16), r"torch.bfloat16; .*call model.float\(\)"),
        (
            nn.Sequential(nn.LazyLinear(3)),
            r"parameter '0.weight' has no shape before the first batch; .*input size",
        ),
    ],
)
def test_parameters_that_cannot_be_federated(model, message):
    with pytest.raises(ConfigError, match=message):
        check_model(model)


def test_tied_parameters_are_fine():
    check_model(Tied(3))


def test_only_what_the_pattern_finds_is_trained():
    model = train_only(cnn(), r"^head\.|norm")
    assert {name.split(".")[0] for name in trainable(model)} == {"stem", "stages", "head"}
    assert all(("norm" in name) or name.startswith("head") for name in trainable(model))
    assert all(name.endswith("conv.weight") for name in frozen(model))
    assert len(frozen(model)) + len(trainable(model)) == len(list(model.parameters()))
    assert not frozen(train_only(cnn(), ""))


def test_a_tied_parameter_goes_by_any_of_its_names():
    assert list(trainable(train_only(Tied(3), "^output"))) == ["words.weight"]
    assert "words.weight" in frozen(train_only(Tied(3), "^memory"))


def test_what_the_code_froze_stays_frozen():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    assert list(trainable(train_only(model, "weight"))) == ["1.weight"]


def test_there_must_be_something_to_train():
    with pytest.raises(
        ConfigError, match=r"'fc' finds none of .*; their names are stem.conv.weight, .*, \.\.\.$"
    ):
        train_only(cnn(), "fc")
    with pytest.raises(
        ConfigError, match=r"the model's own code froze every parameter that model.train leaves"
    ):
        train_only(all_frozen(2, 1), "")
    with pytest.raises(ConfigError, match="the model has no parameters"):
        train_only(nn.ReLU(), "")
