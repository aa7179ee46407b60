"""The backbones: exact sizes, and the laws of the stage interface over the whole table."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedwsq.core.errors import ConfigError
from fedwsq.models import MODELS, Staged, check_model, cnn, resnet8, resnet18, resnet18_quarter


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def build(name: str) -> tuple[Staged, Tensor]:
    """The model with norms away from their initial 1 and 0, and a batch for it."""
    torch.manual_seed(0)
    channels, size = (1, 8) if name == "cnn" else (3, 16)
    model = MODELS[name](classes=7, channels=channels)
    assert isinstance(model, Staged)
    for module in model.modules():
        if isinstance(module, nn.GroupNorm):
            nn.init.normal_(module.weight, 1.0, 0.2)
            nn.init.normal_(module.bias, 0.0, 0.2)
    return model.eval(), torch.randn(3, channels, size, size)


@pytest.mark.parametrize(
    ("classes", "count"), [(10, 11_173_962), (100, 11_220_132), (200, 11_271_432)]
)
def test_resnet18_has_the_published_number_of_parameters(classes, count):
    assert parameters(resnet18(classes)) == count


def test_resnet8_parameters_by_hand():
    stem = 9 * 3 * 16 + 2 * 16
    first = 2 * (9 * 16 * 16 + 2 * 16)
    second = (9 * 16 * 32 + 2 * 32) + (9 * 32 * 32 + 2 * 32) + (16 * 32 + 2 * 32)
    third = (9 * 32 * 64 + 2 * 64) + (9 * 64 * 64 + 2 * 64) + (32 * 64 + 2 * 64)
    assert parameters(resnet8()) == stem + first + second + third + (64 * 10 + 10) == 78_042


def test_the_quarter_resnet18_parameters_by_hand():
    widths = (16, 32, 64, 128)
    total = 9 * 3 * 16 + 2 * 16  # the stem
    inputs = 16
    for width in widths:
        total += (9 * inputs * width + 2 * width) + 3 * (9 * width * width + 2 * width)
        if inputs != width:
            total += inputs * width + 2 * width  # the shortcut
        inputs = width
    assert parameters(resnet18_quarter()) == total + (128 * 10 + 10) == 701_466


def test_cnn_parameters_by_hand():
    convs = 9 * 1 * 16 + 9 * 16 * 32 + 9 * 32 * 64
    norms = 2 * (16 + 32 + 64)
    assert parameters(cnn()) == convs + norms + (64 * 10 + 10) == 24_058


@pytest.mark.parametrize(
    ("name", "count"),
    [("cnn", 3), ("resnet8", 9), ("resnet18_quarter", 20), ("resnet18", 20)],
)
def test_four_dimensional_parameters_are_the_convolutions(name, count):
    model, _ = build(name)
    four = {key for key, p in model.named_parameters() if p.ndim == 4}
    convs = {
        f"{key}.weight" for key, module in model.named_modules() if isinstance(module, nn.Conv2d)
    }
    assert four == convs
    assert len(convs) == count
    assert {key for key in four if key.startswith("stem.")} == {"stem.conv.weight"}
    assert all(module.bias is None for module in model.modules() if isinstance(module, nn.Conv2d))


@pytest.mark.parametrize("size", [32, 64])
def test_resnet18_stages_halve_the_image_three_times(size):
    model = resnet18(200)
    x = torch.randn(1, 3, size, size)
    with torch.no_grad():
        shapes = [tuple(f.shape[1:]) for f in model.features(x)]
        assert shapes == [
            (w, size // s, size // s) for w, s in ((64, 1), (64, 1), (128, 2), (256, 4), (512, 8))
        ]
        assert model(x).shape == (1, 200)


def test_cnn_and_resnet8_shapes():
    with torch.no_grad():
        shapes = [tuple(f.shape[1:]) for f in cnn().features(torch.randn(1, 1, 8, 8))]
        assert shapes == [(16, 8, 8), (32, 8, 8), (64, 4, 4)]
        shapes = [tuple(f.shape[1:]) for f in resnet8().features(torch.randn(1, 3, 32, 32))]
        assert shapes == [(16, 32, 32), (16, 32, 32), (32, 16, 16), (64, 8, 8)]


@pytest.mark.parametrize("name", MODELS)
def test_resuming_at_any_level_is_the_forward_pass(name):
    model, x = build(name)
    logits = model(x)
    features = model.features(x)
    assert len(features) == len(model.stages) + 1
    for level, feature in enumerate(features):
        before = feature.clone()
        assert torch.equal(model.resume(level, feature), logits)
        assert torch.equal(feature, before)


@pytest.mark.parametrize("name", MODELS)
def test_features_are_pre_activation_and_the_head_sees_the_pooled_one(name):
    model, x = build(name)
    features = model.features(x)
    assert all((f < 0).any() for f in features)
    pooled = model.pooled(x)
    last = F.silu(features[-1]) if name.startswith("mobilevit") else F.relu(features[-1])
    assert torch.equal(pooled, last.mean(dim=(2, 3)) if last.dim() == 4 else last)
    torch.testing.assert_close(pooled @ model.head.weight.T + model.head.bias, model(x))


@pytest.mark.parametrize("name", MODELS)
def test_every_model_passes_its_own_check_and_is_built_from_the_seed(name):
    model, _ = build(name)
    check_model(model)
    again, _ = build(name)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True)
    )
    assert all(
        m.num_groups == 2 and m.eps == 1e-5 for m in model.modules() if isinstance(m, nn.GroupNorm)
    )


def test_block_is_the_textbook_one_up_to_where_the_relu_stands():
    torch.manual_seed(0)
    block = resnet8().stages[1][0]
    x = torch.randn(2, 16, 8, 8)
    entered = x.relu()
    inner = block.first.norm(block.first.conv(entered)).relu()
    expected = block.second.norm(block.second.conv(inner)) + block.shortcut.norm(
        block.shortcut.conv(entered)
    )
    assert torch.equal(block(x), expected)
    assert block.shortcut.conv.kernel_size == (1, 1)
    assert isinstance(resnet8().stages[0][0].shortcut, nn.Identity)


class Moving(nn.Module):
    def __init__(self, persistent: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("center", torch.zeros(3), persistent=persistent)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))


def test_check_refuses_what_is_not_federated():
    with pytest.raises(ConfigError, match=r"layer '1' is BatchNorm2d.*GroupNorm\(2, 8\)"):
        check_model(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    with pytest.raises(ConfigError, match=r"buffer 'center'.*persistent=False"):
        check_model(Moving(persistent=True))
    with pytest.raises(ConfigError, match=r"parameter 'weight' is torch.float64.*model.float\(\)"):
        check_model(nn.Linear(3, 2).double())
    check_model(Moving(persistent=False))
