"""Weight standardization: worked numbers, the closed form against autograd, and the module swap."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedwsq.core.errors import ConfigError
from fedwsq.models import (
    MODELS,
    STANDARDIZATIONS,
    NoStandardization,
    ScaledStandardization,
    WeightStandardization,
    WSConv1d,
    WSConv2d,
    WSConv3d,
    WSLinear,
    bake,
    closed_form,
    convolutions,
    init_standardized,
    replace_batchnorm,
    standardize,
    standardized,
)

W = torch.tensor([[0.3, -0.1, 0.5, 0.1]], dtype=torch.float64)
G_A = torch.tensor([[1.0, 0.0, -1.0, 2.0]], dtype=torch.float64)
G_B = torch.tensor([[0.0, 1.0, 0.5, -0.5]], dtype=torch.float64)


def exactly(actual: Tensor, expected: list[float]) -> None:
    torch.testing.assert_close(
        actual.detach().flatten(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12
    )


def plain(weight: Tensor, rho: float = 1e-3, eps: float = 1e-5) -> Tensor:
    """The formula as one would first write it, for autograd to differentiate."""
    rows = weight.flatten(1)
    rows = rho * (rows - rows.mean(1, keepdim=True)) / (rows.std(1, keepdim=True) + eps)
    return rows.view(weight.shape)


def gradient(weight: Tensor, upstream: Tensor, **settings: float) -> Tensor:
    weight = weight.detach().requires_grad_()
    standardized(weight, **settings).backward(upstream)
    assert weight.grad is not None
    return weight.grad


# Worked numbers


def test_forward_is_the_worked_example():
    tilde = [0.38728333520166675, -1.161850005605, 1.1618500056050003, -0.38728333520166663]
    exactly(standardized(W, rho=1.0), tilde)
    exactly(standardized(W), [1e-3 * value for value in tilde])


def test_gradient_is_the_worked_example():
    dw = gradient(W, G_A, rho=1.0)
    exactly(dw, [2.710953348735322, -4.260026694189298, -3.485640009844036, 5.034713355298012])
    assert abs(dw.sum().item()) < 1e-12
    # A fraction eps / (std + eps) of the part along v leaks through; without eps nothing does.
    leak = (dw * standardized(W, rho=1.0)).sum().item()
    assert leak == pytest.approx(-0.00023235200286564873, abs=1e-12)
    dw = gradient(W, G_A, rho=1.0, eps=0.0)
    exactly(dw, [2.711088342345192, -4.260281680828158, -3.4856850115866758, 5.034878350069643])
    assert abs((dw * standardized(W, rho=1.0, eps=0.0)).sum().item()) < 1e-12


def test_one_fedws_round_is_the_worked_example():
    local_a, local_b = (W - 0.1 * gradient(W, g, rho=1.0) for g in (G_A, G_B))
    exactly(
        local_a,
        [0.028904665126467777, 0.32600266941892986, 0.8485640009844035, -0.4034713355298013],
    )
    exactly(
        local_b, [0.377457416982242, -0.33237225094672596, 0.3450889157450592, 0.4098259182194247]
    )
    server = (local_a + local_b) / 2
    exactly(
        server,
        [0.2031810410543549, -0.003184790763898049, 0.5968264583647314, 0.0031772913448117057],
    )
    tilde = [0.01130520543380221, -0.7221050471716755, 1.4102944780419444, -0.6994946363040713]
    exactly(standardized(server, rho=1.0), tilde)


# The closed form

SHAPES = [(3, 5), (2, 3, 4), (4, 3, 3, 3), (3, 2, 2, 3, 2)]
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def weights(shape: tuple[int, ...], last: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(shape, dtype=torch.float64, generator=generator) + 0.3
    if last:
        return weight.to(memory_format=LAST[len(shape)])
    return weight


CASES = [(shape, False) for shape in SHAPES]
CASES += [(shape, True) for shape in SHAPES if len(shape) in LAST]


@pytest.mark.parametrize(("shape", "last"), CASES)
def test_first_and_second_derivatives_match_finite_differences(shape, last):
    weight = weights(shape, last).requires_grad_()
    function = lambda w: standardized(w, rho=0.7, eps=0.05)
    assert torch.autograd.gradcheck(function, weight)
    assert torch.autograd.gradgradcheck(function, weight)


# The last one spans several blocks.
@pytest.mark.parametrize(("shape", "last"), [*CASES, ((300, 1100), False)])
def test_closed_form_is_autograd_through_the_formula(shape, last):
    weight = weights(shape, last)
    upstream = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(standardized(weight), plain(weight), rtol=1e-12, atol=1e-15)
    leaf = weight.clone().requires_grad_()
    (expected,) = torch.autograd.grad(plain(leaf), leaf, upstream)
    dw = gradient(weight, upstream)
    torch.testing.assert_close(dw, expected, rtol=1e-10, atol=1e-14)
    assert dw.flatten(1).sum(1).abs().max() < 1e-12
    # With and without create_graph it is the same gradient.
    (again,) = torch.autograd.grad(standardized(leaf), leaf, upstream, create_graph=True)
    torch.testing.assert_close(again.detach(), dw, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("last", [False, True])
def test_result_and_gradient_keep_the_memory_format(last):
    weight = weights((4, 3, 3, 3), last).float()
    assert standardized(weight).stride() == weight.stride()
    assert gradient(weight, torch.ones_like(weight)).stride() == weight.stride()


@pytest.mark.parametrize("value", [0.0, 0.1, -3.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_constant_filter_gives_zero_and_a_bounded_gradient(value, dtype):
    weight = torch.full((2, 27), value, dtype=dtype)
    upstream = torch.randn(2, 27, dtype=dtype, generator=torch.Generator().manual_seed(0))
    # The mean of equal numbers may be one rounding off; divided by eps = 1e-5 and times rho that is
    # still nothing.
    assert standardized(weight).abs().max() <= 1e-3 * abs(value) * 1e-6 / 1e-5
    expected = 1e-3 / 1e-5 * (upstream - upstream.mean(1, keepdim=True))
    torch.testing.assert_close(gradient(weight, upstream), expected, rtol=0.05, atol=1e-3)
    leaf = weight.requires_grad_()
    (dw,) = torch.autograd.grad(standardized(leaf), leaf, upstream, create_graph=True)
    (second,) = torch.autograd.grad(dw.square().sum(), leaf)
    assert second.isfinite().all()


def test_exactly_constant_filter():
    weight = torch.full((1, 4), 0.5)
    upstream = G_A.float()
    assert torch.equal(standardized(weight), torch.zeros(1, 4))
    torch.testing.assert_close(gradient(weight, upstream), 100 * (upstream - 0.5))


def test_only_the_weight_and_two_numbers_a_channel_are_kept():
    weight = torch.randn(8, 4, 3, 3, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        standardized(weight)
    assert sorted(x.numel() for x in kept) == [8, 8, weight.numel()]
    assert max(kept, key=Tensor.numel).data_ptr() == weight.data_ptr()


def test_autocast_gives_its_dtype_and_float32_gradients():
    weight = torch.randn(8, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    leaf = weight.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = standardized(leaf)
        assert standardized(weight.double()).dtype == torch.float64
    assert low.dtype == torch.bfloat16
    # Statistics in float32, one rounding at the end.
    assert torch.equal(low, standardized(weight).bfloat16())
    upstream = torch.randn(8, 4, 3, 3, generator=torch.Generator().manual_seed(1)).bfloat16()
    low.backward(upstream)
    assert torch.equal(leaf.grad, gradient(weight, upstream.float()))


def test_half_precision_weights_have_float32_statistics():
    weight = (torch.randn(8, 36, generator=torch.Generator().manual_seed(0)) + 2).bfloat16()
    assert standardized(weight).dtype == torch.bfloat16
    assert torch.equal(standardized(weight), standardized(weight.float()).bfloat16())
    wide = weight.float()
    assert torch.equal(gradient(weight, weight), gradient(wide, wide).bfloat16())


# The module swap


@settings(max_examples=12, deadline=None)
@given(
    name=st.sampled_from(sorted(set(MODELS) - {"resnet18"})),
    rho=st.floats(1e-4, 1.0),
    seed=st.integers(0, 2**31),
)
def test_standardize_keeps_names_values_and_parameter_objects(name, rho, seed):
    check_swap(name, rho, seed)


@pytest.mark.parametrize("name", MODELS)
def test_standardize_keeps_names_values_and_parameter_objects_of_every_model(name):
    check_swap(name, rho=1e-3, seed=0)


def check_swap(name: str, rho: float, seed: int) -> None:
    torch.manual_seed(seed)
    model = MODELS[name]()
    state = copy.deepcopy(model.state_dict())
    before = dict(model.named_parameters())
    assert standardize(model, rho=rho) is model
    assert list(model.state_dict()) == list(state)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert all(p is before[key] for key, p in model.named_parameters())
    convs = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert all(type(m) is WSConv2d and m.rho == rho for m in convs)
    assert not any(isinstance(m, WSLinear) for m in model.modules())


@pytest.mark.parametrize(
    ("layer", "becomes", "x"),
    [
        (nn.Conv1d(3, 4, 3, padding=1, padding_mode="circular"), WSConv1d, torch.randn(2, 3, 7)),
        (nn.Conv2d(4, 6, 3, stride=2, groups=2), WSConv2d, torch.randn(2, 4, 7, 7)),
        (nn.Conv3d(3, 4, 2, dilation=2), WSConv3d, torch.randn(2, 3, 5, 5, 5)),
        (nn.Linear(5, 4), WSLinear, torch.randn(2, 5)),
    ],
)
def test_every_kind_of_layer_computes_with_the_standardized_weight(layer, becomes, x):
    reference = copy.deepcopy(layer)
    reference.weight.data = standardized(layer.weight.detach(), rho=0.5)
    reference.bias.data *= 0.5
    layer = standardize(layer, rho=0.5, select=lambda name, module: True)
    assert type(layer) is becomes
    assert "rho=0.5" in repr(layer)
    assert torch.equal(layer(x), reference(x))


def test_layers_made_directly_have_the_published_settings():
    assert (WSConv2d(3, 4, 3).rho, WSConv2d(3, 4, 3).eps) == (1e-3, 1e-5)


def test_select_sees_names_and_modules():
    def small() -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(16, 2))

    types = lambda model: [type(m) for m in model]
    assert types(standardize(small())) == [WSConv2d, WSConv2d, nn.Flatten, nn.Linear]
    second = standardize(small(), select=lambda name, module: name == "1")
    assert types(second)[:2] == [nn.Conv2d, WSConv2d]
    assert types(standardize(small(), select=lambda name, module: True))[3] is WSLinear
    linear = lambda name, module: isinstance(module, nn.Linear)
    both = standardize(standardize(small()), rho=0.1, select=linear)
    assert (both[0].rho, both[3].rho) == (1e-3, 0.1)


class Mine(nn.Conv2d):
    pass


def test_only_plain_layers_with_a_fan_in_of_three_qualify():
    model = nn.Sequential(
        nn.Conv2d(2, 4, 1),
        nn.Conv2d(4, 4, 1, groups=4),
        Mine(4, 4, 3),
        nn.ConvTranspose2d(4, 4, 3),
        nn.Linear(2, 3),
        nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3)),
    )
    types = [type(m) for m in model]
    with pytest.raises(ConfigError, match=r"no layer to standardize.*fan-in of 3 or more"):
        standardize(model, select=lambda name, module: True)
    assert [type(m) for m in model] == types
    assert type(standardize(nn.Conv2d(3, 4, 1))) is WSConv2d


def test_standardizing_twice_says_so():
    with pytest.raises(ConfigError, match="not standardized yet"):
        standardize(standardize(nn.Conv2d(3, 4, 3)))


@pytest.mark.parametrize("function", [standardize, bake, replace_batchnorm])
def test_what_is_no_model_is_refused(function):
    name = function.__name__
    with pytest.raises(ConfigError, match=f"{name} takes a model, .* this is of type NoneType"):
        function(None)
    with pytest.raises(ConfigError, match="the class Conv2d; give a model that was made of it"):
        function(nn.Conv2d)


def test_a_choice_is_a_function_and_settings_are_numbers():
    with pytest.raises(ConfigError, match="select is 'x', must be a function of a layer's name"):
        standardize(nn.Conv2d(3, 4, 3), select="x")
    with pytest.raises(ConfigError, match="finite rho above 0, got 'x'"):
        standardize(nn.Conv2d(3, 4, 3), rho="x")
    with pytest.raises(ConfigError, match="groups is 'x', must be a whole number"):
        replace_batchnorm(nn.BatchNorm2d(4), "x")


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_rho_and_eps_out_of_range(value):
    with pytest.raises(ConfigError, match=f"finite rho above 0, got {value}"):
        standardize(nn.Conv2d(3, 4, 3), rho=value)
    with pytest.raises(ConfigError, match="rho"):
        WeightStandardization(rho=value)
    with pytest.raises(ConfigError, match="eps"):
        WeightStandardization(eps=value)


def test_tied_module_is_swapped_at_every_place():
    conv = nn.Conv2d(3, 3, 3, padding=1)
    for chosen in ("0", "2"):
        model = nn.Sequential(copy.deepcopy(conv), nn.ReLU())
        model.append(model[0])
        standardize(model, select=lambda name, module, chosen=chosen: name == chosen)
        assert model[0] is model[2]
        assert type(model[2]) is WSConv2d


def test_hooks_survive():
    conv = nn.Conv2d(3, 4, 3)
    calls = []
    conv.register_forward_hook(lambda *_: calls.append(1))
    standardize(conv)(torch.randn(1, 3, 5, 5))
    assert calls == [1]


def test_a_standardized_model_can_be_copied_and_ignores_the_scale_and_mean_of_its_weights():
    torch.manual_seed(0)
    model = standardize(MODELS["cnn"](), eps=1e-12)
    moved = copy.deepcopy(model)
    x = torch.randn(4, 1, 8, 8)
    for module in moved.modules():
        if isinstance(module, nn.Conv2d):
            module.weight.data.mul_(3).add_(0.25)
    torch.testing.assert_close(moved(x), model(x), rtol=1e-3, atol=1e-4)


def test_init_is_kaiming_uniform_on_standardized_layers_only():
    torch.manual_seed(0)
    model = MODELS["resnet8"]()
    head = model.head.weight.clone()
    init_standardized(standardize(model))
    assert torch.equal(model.head.weight, head)
    for module in model.modules():
        if isinstance(module, WSConv2d):
            bound = math.sqrt(6 / module.weight[0].numel())
            assert 0.9 * bound < module.weight.abs().max() <= bound


@pytest.mark.parametrize("name", MODELS)
def test_bake_gives_the_same_outputs_in_the_plain_architecture(name):
    torch.manual_seed(0)
    model = STANDARDIZATIONS["ws"]().apply(MODELS[name](channels=1)).eval()
    x = torch.randn(2, 1, 8, 8)
    with torch.no_grad():
        expected = model(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):  # must not leak into the weights
            baked = bake(model)
        assert baked is model
        loaded = MODELS[name](channels=1).eval()
        loaded.load_state_dict(baked.state_dict())
        assert torch.equal(baked(x), expected)
        assert torch.equal(loaded(x), expected)
    assert [type(m) for m in baked.modules()] == [type(m) for m in loaded.modules()]
    assert repr(baked) == repr(loaded)
    assert standardize(baked) is baked


def test_bake_handles_tied_modules_and_tied_weights_once():
    torch.manual_seed(0)
    first = nn.Conv2d(3, 3, 3, padding=1)
    second = nn.Conv2d(3, 3, 3, padding=1)
    second.weight = first.weight
    model = standardize(nn.Sequential(first, second, first), rho=0.5)
    x = torch.randn(1, 3, 5, 5)
    expected = model(x)
    assert torch.equal(bake(model)(x), expected)


def test_the_table_of_standardizations():
    model = nn.Conv2d(3, 4, 3)
    weight = model.weight.clone()
    assert STANDARDIZATIONS["none"]() == NoStandardization()
    assert STANDARDIZATIONS["none"]().apply(model) is model
    assert type(model) is nn.Conv2d
    assert torch.equal(model.weight, weight)
    applied = STANDARDIZATIONS["ws"](rho=0.1).apply(model)
    assert (type(applied), applied.rho) == (WSConv2d, 0.1)
    assert not torch.equal(applied.weight, weight)
    assert convolutions("", applied)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("kind", [WeightStandardization(), ScaledStandardization()])
def test_training_lowers_the_loss(kind, autocast):
    torch.manual_seed(0)
    model = kind.apply(MODELS["cnn"](classes=2))
    model = model.to(memory_format=torch.channels_last)
    x = torch.randn(32, 1, 8, 8)
    y = (x.mean(dim=(1, 2, 3)) > 0).long()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(7, 5, 3, 3), (6, 11)])
def test_working_block_by_block_changes_no_bit(monkeypatch, dtype, shape):
    """In one piece, in blocks of a few rows, and through the graph that can be derived again."""
    generator = torch.Generator().manual_seed(0)
    raw = torch.randn(shape, generator=generator)
    g = torch.randn(shape, generator=generator).to(dtype)
    raw[2] = 0.25  # a constant row

    def both(block, create_graph=False):
        monkeypatch.setattr(closed_form, "BLOCK", block)
        weight = raw.clone().requires_grad_()
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            out = standardized(weight)
        (grad,) = torch.autograd.grad(out, weight, g, create_graph=create_graph)
        return out.detach(), grad.detach()

    whole = both(10**6)
    assert whole[0].dtype == dtype
    for other in (both(1), both(2 * math.prod(shape[1:])), both(10**6, create_graph=True)):
        assert torch.equal(whole[0], other[0])
        assert torch.equal(whole[1], other[1])
