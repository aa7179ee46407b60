"""FedWon's scaled weight standardization: worked numbers, the layers, and models without norms."""

import copy
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedwsq.core.errors import ConfigError
from fedwsq.models import (
    MODELS,
    STANDARDIZATIONS,
    ScaledStandardization,
    ScaledWSConv1d,
    ScaledWSConv2d,
    ScaledWSConv3d,
    ScaledWSLayer,
    bake,
    check_model,
    cnn,
    drop_norms,
    exchange_standardized,
    resnet8,
    scaled_standardized,
    standardize,
    standardize_scaled,
)
from fedwsq.models.scaled import GAMMA_RELU
from fedwsq.training.local import snapshot

W = torch.tensor([[0.3, -0.1, 0.5, 0.1]], dtype=torch.float64)
# what the two clients' raw weights are after one step
LOCAL = torch.tensor(
    [
        [0.028904665126467777, 0.32600266941892986, 0.8485640009844035, -0.4034713355298013],
        [0.377457416982242, -0.33237225094672596, 0.3450889157450592, 0.4098259182194247],
    ],
    dtype=torch.float64,
)


def exactly(actual: Tensor, expected: list[float]) -> None:
    torch.testing.assert_close(
        actual.detach().flatten(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12
    )


def unit(weight: Tensor) -> Tensor:
    return scaled_standardized(weight, gamma=1.0)


def scaled(name: str, **settings: int) -> nn.Module:
    torch.manual_seed(0)
    return ScaledStandardization().apply(MODELS[name](**settings))


def batch(name: str, count: int = 4) -> Tensor:
    shape = (1, 8, 8) if name == "cnn" else (3, 16, 16)
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(1))


# Worked numbers


def test_forward_is_the_worked_example():
    exactly(
        unit(W),
        [0.19364916731037088, -0.5809475019311126, 0.5809475019311127, -0.19364916731037082],
    )
    biased = scaled_standardized(W, gamma=1.0, variance="biased")
    exactly(
        biased, [0.223606797749979, -0.6708203932499369, 0.670820393249937, -0.22360679774997894]
    )


def test_psp_and_wsp_are_the_worked_example():
    psp = unit(LOCAL.mean(0, keepdim=True))
    exactly(
        psp, [0.0056528036137302815, -0.3610653556051371, 0.7051723003690834, -0.3497597483776766]
    )
    wsp = unit(LOCAL).mean(0)
    exactly(
        wsp, [0.04333261906895418, -0.31407506872919105, 0.4101825173220689, -0.139440067661832]
    )


def test_gamma_gives_relu_back_its_variance():
    assert pytest.approx(1.7128585504496627, abs=1e-15) == GAMMA_RELU
    x = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0))
    assert (GAMMA_RELU * x.relu()).var().item() == pytest.approx(1, rel=0.01)


def test_gain_and_gamma_are_factors():
    weight = torch.randn(3, 2, 3, 3, dtype=torch.float64)
    gain = torch.tensor([1.0, -0.5, 3.0], dtype=torch.float64)
    expected = unit(weight) * 1.5 * gain.view(3, 1, 1, 1)
    torch.testing.assert_close(scaled_standardized(weight, gain, 1.5), expected)


def test_rows_have_zero_mean_and_unit_length():
    weight = torch.randn(5, 4, 3, 3) + 0.7
    rows = scaled_standardized(weight, gamma=1.0, variance="biased").flatten(1)
    torch.testing.assert_close(rows.sum(1), torch.zeros(5), rtol=0, atol=1e-5)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(5))


@pytest.mark.parametrize("variance", ["unbiased", "biased"])
def test_it_is_the_formula_and_its_derivatives_match_finite_differences(variance):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(3, 2, 2, 2, dtype=torch.float64, generator=generator).requires_grad_()
    gain = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    rows = weight.flatten(1)
    var = rows.var(1, keepdim=True, correction=1 if variance == "unbiased" else 0)
    unit_rows = (rows - rows.mean(1, keepdim=True)) / (var * 8).clamp(min=1e-4).sqrt()
    plain = gain[:, None] * GAMMA_RELU * unit_rows
    function = lambda w, g: scaled_standardized(w, g, variance=variance)
    torch.testing.assert_close(function(weight, gain).flatten(1), plain)
    assert torch.autograd.gradcheck(function, (weight, gain))
    assert torch.autograd.gradgradcheck(function, (weight, gain))


@pytest.mark.parametrize("value", [0.0, 0.1, -3.0])
def test_a_constant_filter_gives_zero_and_a_finite_gradient(value):
    weight = torch.full((2, 3, 3, 3), value, requires_grad=True)
    gain = torch.ones(2, requires_grad=True)
    result = scaled_standardized(weight, gain)
    # The mean of equal numbers may be one rounding off, and the floor multiplies by 100.
    assert result.abs().max() <= abs(value) * 1e-4
    upstream = torch.randn(2, 3, 3, 3, generator=torch.Generator().manual_seed(0))
    dw, dg = torch.autograd.grad(result, (weight, gain), upstream, create_graph=True)
    expected = GAMMA_RELU * 100 * (upstream - upstream.mean((1, 2, 3), keepdim=True))
    torch.testing.assert_close(dw, expected, rtol=1e-3, atol=1e-3)
    assert dg.isfinite().all()
    (second,) = torch.autograd.grad(dw.square().sum() + dg.square().sum(), weight)
    assert second.isfinite().all()


# The layers


@pytest.mark.parametrize(
    ("layer", "becomes", "x"),
    [
        (
            nn.Conv1d(3, 4, 3, padding=1, padding_mode="circular"),
            ScaledWSConv1d,
            torch.randn(2, 3, 7),
        ),
        (nn.Conv2d(6, 6, 3, stride=2, groups=2), ScaledWSConv2d, torch.randn(2, 6, 7, 7)),
        (nn.Conv3d(3, 4, 2, dilation=2, bias=False), ScaledWSConv3d, torch.randn(2, 3, 5, 5, 5)),
    ],
)
def test_every_kind_of_layer_computes_with_the_standardized_weight(layer, becomes, x):
    reference = copy.deepcopy(layer)
    gain = torch.linspace(0.5, 2, layer.out_channels)
    reference.weight.data = scaled_standardized(layer.weight.detach(), gain, 1.5, "biased")
    names = list(layer.state_dict())
    before = layer.weight
    assert standardize_scaled(layer, 1.5, "biased") is layer
    assert type(layer) is becomes
    assert layer.weight is before
    assert list(layer.state_dict()) == [*names, "gain"]
    assert torch.equal(layer.gain, torch.ones(layer.out_channels))
    assert "gamma=1.5, variance=biased" in repr(layer)
    assert "rho" not in repr(layer)
    layer.gain.data = gain
    assert torch.equal(layer(x), reference(x))
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x), reference(x))


def test_layers_made_directly_are_ready():
    layer = ScaledWSConv2d(3, 4, 3)
    assert (layer.gamma, layer.variance) == (GAMMA_RELU, "unbiased")
    assert torch.equal(layer.gain, torch.ones(4))
    assert layer(torch.randn(1, 3, 5, 5)).shape == (1, 4, 3, 3)


def test_channels_last_stays():
    layer = standardize_scaled(nn.Conv2d(8, 4, 3)).to(memory_format=torch.channels_last)
    assert layer.standardized_weight().stride() == layer.weight.stride()


class Mine(nn.Conv2d):
    pass


def test_only_plain_convolutions_with_a_fan_in_of_three_qualify():
    model = nn.Sequential(
        nn.Conv2d(2, 4, 1), nn.Conv2d(4, 4, 1, groups=4), Mine(4, 4, 3), nn.Linear(5, 3)
    )
    types = [type(m) for m in model]
    with pytest.raises(ConfigError, match=r"no layer to standardize.*fan-in of 3 or more"):
        ScaledStandardization().apply(nn.Sequential(*model, nn.GroupNorm(1, 3)))
    assert [type(m) for m in model] == types
    assert type(standardize_scaled(nn.Conv2d(3, 4, 1))) is ScaledWSConv2d


def test_it_does_not_go_with_the_other_kind():
    with pytest.raises(ConfigError, match="standardized layers already"):
        ScaledStandardization().apply(standardize(cnn()))
    with pytest.raises(ConfigError, match="standardized layers already"):
        ScaledStandardization().apply(ScaledStandardization().apply(cnn()))


@pytest.mark.parametrize("gamma", [0.0, -1.0, math.nan, math.inf])
def test_settings_no_run_can_have(gamma):
    with pytest.raises(ConfigError, match=f"finite gamma above 0, got {gamma}"):
        ScaledStandardization(gamma=gamma)
    with pytest.raises(
        ConfigError, match='variance = "none" is unknown; it is "unbiased" or "biased"'
    ):
        ScaledStandardization(variance="none")


# Models without norms


def test_the_parameters_of_the_cnn():
    assert STANDARDIZATIONS["scaled"] is ScaledStandardization
    convs = ["stem.conv", "stages.0.1.conv", "stages.1.1.conv"]
    expected = [f"{conv}.{kind}" for conv in convs for kind in ("weight", "bias", "gain")]
    expected += ["head.weight", "head.bias"]
    assert [name for name, _ in scaled("cnn").named_parameters()] == expected


def test_the_parameters_of_resnet8():
    convs = ["stem", "stages.0.0.first", "stages.0.0.second"]
    convs += [
        f"stages.{stage}.0.{part}" for stage in (1, 2) for part in ("first", "second", "shortcut")
    ]
    expected = [f"{conv}.conv.{kind}" for conv in convs for kind in ("weight", "bias", "gain")]
    model = scaled("resnet8")
    assert [name for name, _ in model.named_parameters()] == [*expected, "head.weight", "head.bias"]
    # A bias and a gain for each norm's two vectors: as many as before.
    assert sum(p.numel() for p in model.parameters()) == sum(
        p.numel() for p in resnet8().parameters()
    )


@pytest.mark.parametrize("name", MODELS)
def test_no_norm_is_left_and_a_step_is_finite(name):
    model = scaled(name)
    x = batch(name)
    check_model(model)
    assert not any(isinstance(m, nn.GroupNorm) for m in model.modules())
    convs = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert all(type(m) is ScaledWSConv2d and m.bias is not None for m in convs)
    had = [m.bias is not None for m in MODELS[name]().modules() if isinstance(m, nn.Conv2d)]
    assert not any(m.bias.any() for m, kept in zip(convs, had, strict=True) if not kept)
    assert type(model.head) is nn.Linear
    loss = F.cross_entropy(model(x), torch.arange(4))
    loss.backward()
    assert loss.isfinite()
    for key, p in model.named_parameters():
        assert p.grad is not None, key
        assert p.grad.isfinite().all(), key
        assert p.grad.any(), key


def test_norms_of_convolutions_go_wherever_they_are_and_those_of_attention_stay():
    norms = [
        nn.BatchNorm2d(4),
        nn.InstanceNorm2d(4),
        nn.GroupNorm(2, 4),
        nn.LayerNorm(4),
        nn.RMSNorm(4),
    ]
    shared = nn.GroupNorm(1, 4)
    model = nn.ModuleDict(
        {"inner": nn.Sequential(*norms), "a": shared, "b": shared, "conv": nn.Conv2d(1, 4, 3)}
    )
    bias = model["conv"].bias
    assert drop_norms(model) is model
    assert [type(m) for m in model["inner"]] == [nn.Identity] * 3 + [nn.LayerNorm, nn.RMSNorm]
    assert type(model["a"]) is type(model["b"]) is nn.Identity
    assert model["conv"].bias is bias


def test_every_convolution_gets_a_bias_even_where_it_is_not_standardized():
    model = ScaledStandardization().apply(
        nn.Sequential(nn.Conv2d(1, 4, 1, bias=False), nn.Conv2d(4, 4, 3, bias=False))
    )
    assert [type(m) for m in model] == [nn.Conv2d, ScaledWSConv2d]
    assert all(torch.equal(m.bias, torch.zeros(4)) for m in model)


def test_weights_are_drawn_as_for_weight_standardization():
    model = scaled("resnet8")
    for module in model.modules():
        if isinstance(module, ScaledWSLayer):
            bound = math.sqrt(6 / module.weight[0].numel())
            assert 0.9 * bound < module.weight.abs().max() <= bound


def test_activations_do_not_explode_with_depth():
    # A filter keeps the variance, a shortcut convolution doubles it and a plain shortcut adds a
    # third: sqrt(8 * 1.34^5) = 5.9 over the eight blocks, and gamma before the first ReLU.
    model = scaled("resnet18", classes=100)
    x = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        stds = [feature.std().item() for feature in model.features(x)]
        logits = model(x)
    assert stds[0] == pytest.approx(GAMMA_RELU, rel=0.1)
    assert 4 < stds[-1] / stds[0] < 14
    assert logits.isfinite().all()
    assert 0.5 < logits.std().item() < 20
    # Without residual sums the variance stays where it was.
    with torch.no_grad():
        flat = [feature.std().item() for feature in scaled("cnn").features(batch("cnn", 64))]
    assert flat[-1] == pytest.approx(flat[0], rel=0.2)


@pytest.mark.parametrize("name", MODELS)
def test_bake_gives_the_same_outputs_without_gains(name):
    model = scaled(name, channels=1).eval()
    x = torch.randn(2, 1, 8, 8)
    for module in model.modules():
        if isinstance(module, ScaledWSLayer):
            nn.init.uniform_(module.gain, 0.5, 2)
            nn.init.normal_(module.bias)
    with torch.no_grad():
        expected = model(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):  # must not leak into the weights
            baked = bake(model)
        assert baked is model
        loaded = drop_norms(MODELS[name](channels=1)).eval()
        loaded.load_state_dict(baked.state_dict())
        assert torch.equal(baked(x), expected)
        assert torch.equal(loaded(x), expected)
    assert repr(baked) == repr(loaded)
    assert not any(key.endswith("gain") for key in baked.state_dict())
    assert not any(hasattr(m, "gamma") or hasattr(m, "variance") for m in baked.modules())


def test_exchanged_weights_are_standardized_and_compute_the_same():
    model = scaled("resnet8").eval()
    x = batch("resnet8")
    for module in model.modules():
        if isinstance(module, ScaledWSLayer):
            nn.init.uniform_(module.gain, 0.5, 2)
    params = snapshot(dict(model.named_parameters()))
    before = {name: p.clone() for name, p in params.items()}
    exchanged = exchange_standardized(model, params)
    assert list(exchanged) == list(params)
    assert all(torch.equal(p, before[name]) for name, p in params.items())
    for name, p in exchanged.items():
        if name.endswith("conv.weight"):
            torch.testing.assert_close(p, unit(params[name]))
        else:
            assert p is params[name]
    expected = model(x)
    model.load_state_dict(exchanged)
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)


def test_exchange_of_a_single_layer_and_of_plain_weight_standardization():
    layer = standardize_scaled(nn.Conv2d(4, 1, 1, bias=False))
    exchanged = exchange_standardized(
        layer, {"weight": W.view(1, 4, 1, 1), "gain": torch.full((1,), 7.0)}
    )
    exactly(
        exchanged["weight"],
        [0.19364916731037088, -0.5809475019311126, 0.5809475019311127, -0.19364916731037082],
    )
    assert exchanged["gain"].item() == 7.0
    ws = standardize(nn.Conv2d(4, 1, 1, bias=False), rho=0.01)
    tilde = [0.38728333520166675, -1.161850005605, 1.1618500056050003, -0.38728333520166663]
    exactly(exchange_standardized(ws, {"weight": W.view(1, 4, 1, 1)})["weight"], tilde)
