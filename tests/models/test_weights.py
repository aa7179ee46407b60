"""Weights from a file: what is taken as it is, what is scaled, and what is refused."""

import json
import pickle

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedwsq.core.errors import ConfigError
from fedwsq.models import (
    MODELS,
    ScaledStandardization,
    WeightStandardization,
    bake,
    cnn,
    load_weights,
    standardized,
    weights_digest,
)
from fedwsq.models.standardize import WSLayer
from fedwsq.models.weights import baked_metadata


def seeded(seed, standardization=None, classes=10):
    torch.manual_seed(seed)
    model = cnn(classes=classes, channels=1)
    return standardization.apply(model) if standardization else model


def saved(path, model, metadata=None, **changes):
    tensors = {name: x.detach().clone() for name, x in model.state_dict().items()} | changes
    save_file({name: x for name, x in tensors.items() if x is not None}, path, metadata)
    return str(path)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "weights.safetensors"


@pytest.mark.parametrize(
    "standardization", [None, WeightStandardization(), ScaledStandardization()]
)
def test_raw_weights_are_taken_as_they_are(file, standardization):
    source = seeded(1, standardization)
    model = seeded(2, standardization)
    load_weights(model, saved(file, source))
    assert all(
        torch.equal(a, b) for a, b in zip(source.parameters(), model.parameters(), strict=True)
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_becomes_float32(file, dtype):
    model = nn.Linear(3, 2)
    source = nn.Linear(3, 2).to(dtype)
    load_weights(model, saved(file, source))
    assert torch.equal(model.weight, source.weight.float())
    assert model.weight.dtype == torch.float32


def test_a_baked_file_computes_the_same_at_the_spread_of_fresh_weights(file):
    source = seeded(1, WeightStandardization())
    x = torch.randn(4, 1, 8, 8)
    expected = source(x)
    plain = bake(source)
    model = seeded(2, WeightStandardization())
    fresh = seeded(2, WeightStandardization())
    load_weights(model, saved(file, plain, {"baked": "true"}))
    torch.testing.assert_close(model(x), expected, rtol=2e-3, atol=2e-3)
    for name, layer in model.named_modules():
        if isinstance(layer, WSLayer):
            assert layer.weight.std().item() == pytest.approx(
                fresh.get_submodule(name).weight.std().item(), rel=1e-5
            )
            torch.testing.assert_close(
                standardized(layer.weight), plain.get_submodule(name).weight, rtol=2e-3, atol=1e-9
            )
    unstandardized = seeded(3)  # where baked weights are at home they stay as they are
    load_weights(unstandardized, str(file))
    assert torch.equal(unstandardized(x), plain(x))


def with_biases(name, seed, rho=1e-3):
    torch.manual_seed(seed)
    model = WeightStandardization(rho=rho).apply(MODELS[name](classes=10, channels=3)).eval()
    for layer in model.modules():
        if getattr(layer, "bias", None) is not None:
            nn.init.normal_(layer.bias)
    return model


@pytest.mark.parametrize("name", ["vgg9", "squeezenet"])
@torch.no_grad()
def test_biases_of_a_baked_file_count_once(file, name):
    source = with_biases(name, 1)
    model = with_biases(name, 2)
    x = torch.randn(4, 3, 32, 32)
    biases = {key: p.clone() for key, p in source.named_parameters() if key.endswith("bias")}
    expected = source(x)
    metadata = baked_metadata(source)
    plain = bake(source)
    load_weights(model, saved(file, plain, metadata))
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)
    load_weights(model, saved(file, plain, {"baked": "true"}))  # does not say: the layers' own rho
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)
    # Whatever rho is here, the raw biases are those of the run that was baked.
    other = with_biases(name, 3, rho=1e-2)
    load_weights(other, saved(file, plain, metadata))
    for key, bias in biases.items():
        torch.testing.assert_close(other.get_parameter(key), bias, rtol=1e-6, atol=0)


def test_what_a_file_says_of_biases(file):
    assert baked_metadata(seeded(1)) == {}
    ones = json.loads(baked_metadata(seeded(1, ScaledStandardization()))["rho"])
    assert ones
    assert set(ones.values()) == {1.0}
    assert json.loads(baked_metadata(with_biases("vgg9", 1, rho=0.5))["rho"]).popitem()[1] == 0.5
    model = seeded(1, WeightStandardization())
    for text in (
        "",
        "[1]",
        "3",
        '{"stem.conv": 0}',
        '{"stem.conv": NaN}',
        '{"stem.conv": null}',
        "[" * 100_000,
    ):
        with pytest.raises(
            ConfigError, match="is damaged: its entry rho must give each layer a number above 0"
        ):
            load_weights(model, saved(file, model, {"baked": "true", "rho": text}))


def test_a_checkpoint_of_a_part_points_to_the_whole(file):
    model = seeded(1)
    save_file(
        {
            f"server/params/{name}": x.clone()
            for name, x in model.head.state_dict(prefix="head.").items()
        },
        file,
    )
    with pytest.raises(
        ConfigError,
        match=r"it lacks .*this checkpoint holds only what was trained; use .*model\.safe",
    ):
        load_weights(model, str(file))


class TiedPair(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("places", torch.arange(3))


def test_a_tied_tensor_is_found_under_any_of_its_names(file):
    ones = torch.ones(3, 3)
    for names in (["first.weight"], ["second.weight"], ["first.weight", "second.weight"]):
        model = TiedPair()
        save_file({name: ones.clone() for name in names}, file)
        load_weights(model, str(file))
        assert torch.equal(model.second.weight, ones)
    load_weights(model, saved(file, model))  # its own state_dict, with both names and the buffer
    save_file({"first.weight": ones, "second.weight": 2 * ones}, file)
    with pytest.raises(
        ConfigError, match=r"first.weight and second.weight differ, but are one tensor"
    ):
        load_weights(model, str(file))


NANS = torch.full((10,), torch.nan)
REFUSED = {
    "missing": ({"head.bias": None}, r"it lacks head.bias; set model.name"),
    "extra": ({"fc.bias": torch.ones(2)}, r"it has fc.bias, which the model has not; set"),
    "shape": (
        {"stem.norm.bias": torch.ones(7)},
        r"stem.norm.bias is \[7\] there and \[\d+\] in the model",
    ),
    # Not mistaken for a classifier of other classes, which it has no number of.
    "scalar": ({"head.bias": torch.tensor(1.0)}, r"head.bias is \[\] there and \[10\] in the"),
    "not finite": ({"head.bias": NANS}, r"head.bias holds values that are not finite"),
    "integers": ({"head.bias": torch.ones(10, dtype=torch.int64)}, r"head.bias is torch.int64"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_named(file, case):
    changes, message = REFUSED[case]
    model = seeded(1)
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(ConfigError, match=message):
        load_weights(model, saved(file, model, **changes), 10)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_other_names_throughout_are_not_listed_one_by_one(file):
    model = seeded(1)
    save_file({f"module.{name}": x for name, x in model.state_dict().items()}, file)
    with pytest.raises(
        ConfigError,
        match=r"it lacks stem.conv.weight, .* and \d+ more; it has module\..* more, which",
    ):
        load_weights(model, str(file))


def test_a_classifier_of_another_size_is_called_that(file):
    saved(file, seeded(1, classes=10))
    with pytest.raises(
        ConfigError,
        match=r"a classifier of 10 classes \(head.weight, head.bias\), the data has 4; to",
    ):
        load_weights(seeded(1, classes=4), str(file), 4)


def test_folded_gains_are_not_guessed(file):
    saved(file, bake(seeded(1, ScaledStandardization())), {"baked": "true"})
    with pytest.raises(ConfigError, match=r"it lacks .*\.gain.*checkpoints/last.safetensors"):
        load_weights(seeded(1, ScaledStandardization()), str(file))


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was run",))


def test_a_pickle_is_not_read_and_damage_is_said(file, tmp_path):
    file.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ConfigError, match=r"is not a safetensors file, or damaged .*save_file"):
        load_weights(seeded(1), str(file))
    whole = (saved(file, seeded(1)), file.read_bytes())[1]
    file.write_bytes(whole[:-10])
    with pytest.raises(ConfigError, match="or damaged"):
        load_weights(seeded(1), str(file))
    for nothing in (tmp_path / "none.safetensors", tmp_path):
        with pytest.raises(ConfigError, match="there is no such file"):
            load_weights(seeded(1), str(nothing))
        with pytest.raises(ConfigError, match="there is no such file"):
            weights_digest(str(nothing))
