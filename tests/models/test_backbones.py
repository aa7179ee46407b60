"""The paper's other backbones: exact sizes, blocks against plain references, and WS on them."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedwsq.models import (
    MODELS,
    WeightStandardization,
    WSConv2d,
    check_model,
    mobilevit_xxs,
    resnet34,
    shufflenet,
    squeezenet,
    standardize,
    vgg9,
)
from fedwsq.models.mobilevit import Encoder, InvertedResidual, MobileViTBlock, fold, unfold
from fedwsq.models.shufflenet import ShuffleUnit
from fedwsq.models.squeezenet import Bypass, Fire

BACKBONES = [
    "resnet34",
    "vgg9",
    "squeezenet",
    "shufflenet",
    "mobilevit_xxs",
    "mobilevit_xs",
    "mobilevit_s",
]
PARAMETERS = {
    "vgg9": (3_493_258, 3_539_428, 3_590_728),
    "squeezenet": (734_986, 781_156, 832_456),
    "shufflenet": (925_618, 1_012_108, 1_108_208),
    "mobilevit_xxs": (954_234, 983_124, 1_015_224),
    "mobilevit_xs": (1_936_698, 1_971_348, 2_009_848),
    "mobilevit_s": (4_944_042, 5_001_732, 5_065_832),
}
# The features' shapes for a 32x32 image; those of a 64x64 one are twice as high and wide.
SHAPES = {
    "resnet34": [(64, 32), (64, 32), (128, 16), (256, 8), (512, 4)],
    "vgg9": [(32, 32), (64, 32), (128, 16), (256, 8), (512,), (512,)],
    "squeezenet": [(96, 32), (128, 16), (256, 16), (384, 8), (512, 8), (512, 4)],
    "shufflenet": [(24, 32), (240, 16), (480, 8), (960, 4)],
    "mobilevit_xxs": [(16, 32), (16, 32), (24, 32), (48, 16), (64, 8), (80, 4), (320, 4)],
    "mobilevit_xs": [(16, 32), (32, 32), (48, 32), (64, 16), (80, 8), (96, 4), (384, 4)],
    "mobilevit_s": [(16, 32), (32, 32), (64, 32), (96, 16), (128, 8), (160, 4), (640, 4)],
}


@pytest.fixture(autouse=True)
def one_thread():
    """Two threads that share a busy core wait for each other longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def random_norms(model: nn.Module) -> nn.Module:
    """Norms away from their initial 1 and 0, so that a missing one shows."""
    for module in model.modules():
        if isinstance(module, nn.GroupNorm | nn.LayerNorm):
            nn.init.normal_(module.weight, 1.0, 0.2)
            nn.init.normal_(module.bias, 0.0, 0.2)
    return model


# Sizes


@pytest.mark.parametrize("name", PARAMETERS)
def test_number_of_parameters(name):
    counts = [parameters(MODELS[name](classes)) for classes in (10, 100, 200)]
    assert counts == list(PARAMETERS[name])


def test_resnet34_parameters_by_hand():
    def stage(inputs: int, width: int, blocks: int) -> int:
        same = 9 * width * width + 2 * width
        first = 9 * inputs * width + 2 * width
        shortcut = inputs * width + 2 * width if inputs != width else 0
        return first + shortcut + (2 * blocks - 1) * same

    stem = 9 * 3 * 64 + 2 * 64
    body = stage(64, 64, 3) + stage(64, 128, 4) + stage(128, 256, 6) + stage(256, 512, 3)
    counts = [stem + body + 513 * classes for classes in (10, 100, 200)]
    assert counts == [21_282_122, 21_328_292, 21_379_592]
    assert [parameters(resnet34(classes)) for classes in (10, 100, 200)] == counts


def test_the_mobilevits_have_the_published_sizes_at_1000_classes():
    counts = [parameters(MODELS[f"mobilevit_{size}"](1000)) for size in ("xxs", "xs", "s")]
    assert counts == [1_272_024, 2_317_848, 5_578_632]


# Shapes and stages


@pytest.mark.parametrize("name", BACKBONES)
@pytest.mark.parametrize("size", [32, 64])
def test_shapes_and_resuming_at_every_level(name, size):
    torch.manual_seed(0)
    model = random_norms(MODELS[name](classes=10)).eval()
    x = torch.randn(1, 3, size, size)
    with torch.no_grad():
        logits = model(x)
        features = model.features(x)
        assert logits.shape == (1, 10)
        expected = [(c, *[s * size // 32 for s in side * 2]) for c, *side in SHAPES[name]]
        assert [tuple(f.shape[1:]) for f in features] == expected
        for level, feature in enumerate(features):
            assert torch.equal(model.resume(level, feature), logits)
        assert model.pooled(x).shape == (1, model.head.in_features)
        assert torch.equal(model.head(model.pooled(x)), logits)


@pytest.mark.parametrize("name", BACKBONES)
# 28 is 14, 7 and 4 at the transformers.
@pytest.mark.parametrize(("channels", "size"), [(1, 28), (2, 32)])
def test_other_channels_and_sizes_that_do_not_halve_evenly(name, channels, size):
    with torch.no_grad():
        logits = MODELS[name](classes=5, channels=channels)(torch.randn(2, channels, size, size))
    assert logits.shape == (2, 5)
    assert logits.isfinite().all()


# Blocks against references written another way


def test_vgg9_is_the_textbook_chain():
    torch.manual_seed(0)
    model = random_norms(vgg9())
    x = torch.randn(2, 3, 32, 32)
    convs = (m for m in model.modules() if isinstance(m, nn.Conv2d))
    norms = (m for m in model.modules() if isinstance(m, nn.GroupNorm))
    linears = [m for m in model.modules() if isinstance(m, nn.Linear)]
    widths = []
    out = x
    for step in (32, 64, "M", 128, 128, "M", 256, 256, "M"):
        if step == "M":
            out = F.max_pool2d(out, 2)
            continue
        conv = next(convs)
        widths.append(conv.out_channels)
        out = F.relu(next(norms)(conv(out)))
        # N(0, 2 / (9 out)), five standard errors wide.
        expected = math.sqrt(2 / (9 * conv.out_channels))
        wide = 5 / math.sqrt(2 * conv.weight.numel())
        assert conv.weight.std().item() == pytest.approx(expected, rel=wide)
        assert not conv.bias.any()
    assert widths == [32, 64, 128, 128, 256, 256]
    assert out.shape[1:] == (256, 4, 4)  # so that averaging to 4x4 changes nothing
    out = F.relu(linears[1](F.relu(linears[0](out.flatten(1)))))
    torch.testing.assert_close(model.pooled(x), out)
    torch.testing.assert_close(model(x), linears[2](out))


def test_squeezenet_is_the_published_chain():
    torch.manual_seed(0)
    model = random_norms(squeezenet(classes=7))
    x = torch.randn(2, 3, 32, 32)
    fires = [m for m in model.modules() if isinstance(m, Fire)]
    assert [(f.small.conv.out_channels * 2, f.squeeze.conv.out_channels) for f in fires] == [
        (128, 16), (128, 16), (256, 32), (256, 32), (384, 48), (384, 48), (512, 64), (512, 64)
    ]  # fmt: skip
    assert all(m.bias is not None for m in model.modules() if isinstance(m, nn.Conv2d))

    def fire(index: int, x: Tensor) -> Tensor:
        f = fires[index]
        squeezed = F.relu(f.squeeze(x))
        return torch.cat([F.relu(f.small(squeezed)), F.relu(f.large(squeezed))], dim=1)

    f1 = fire(0, F.max_pool2d(F.relu(model.stem(x)), 2))
    f2 = fire(1, f1) + f1
    f3 = F.max_pool2d(fire(2, f2), 2)
    f4 = fire(3, f3) + f3
    f5 = fire(4, f4)
    f6 = fire(5, f5) + f5
    f7 = F.max_pool2d(fire(6, f6), 2)
    f8 = fire(7, f7)
    # The published classifier: a 1x1 convolution, then the average.
    logits = F.conv2d(f8, model.head.weight[:, :, None, None], model.head.bias).mean(dim=(2, 3))
    torch.testing.assert_close(model(x), logits)
    assert [type(m) for m in model.stages[1]] == [nn.ReLU, Bypass, Fire]


@pytest.mark.parametrize(("inputs", "stride"), [(240, 1), (24, 2)])
def test_shuffle_unit_is_the_published_one(inputs, stride):
    torch.manual_seed(0)
    unit = random_norms(ShuffleUnit(inputs, 240, stride))
    x = torch.randn(2, inputs, 8, 8).relu()
    reduced = F.relu(unit.reduce(x))
    shuffled = torch.empty_like(reduced)
    for channel in range(60):  # the j-th channel of group i goes to place 3 j + i
        i, j = divmod(channel, 20)
        shuffled[:, 3 * j + i] = reduced[:, channel]
    out = unit.expand(unit.depthwise(shuffled))
    expected = x + out if stride == 1 else torch.cat([F.avg_pool2d(x, 3, 2, 1), out], dim=1)
    torch.testing.assert_close(unit(x), expected)
    assert unit.reduce.conv.groups == unit.expand.conv.groups == 3
    assert unit.depthwise.conv.groups == 60
    assert expected.shape[1] == 240


def test_shufflenet_has_4_8_and_4_units_and_biases():
    model = shufflenet()
    assert [len(stage) for stage in model.stages] == [4, 8, 4]
    for stage in model.stages:
        assert [unit.stride for unit in stage] == [2] + [1] * (len(stage) - 1)
    assert all(m.bias is not None for m in model.modules() if isinstance(m, nn.Conv2d))


def test_unfolding_groups_the_pixels_at_the_same_place_of_their_patches():
    x = torch.arange(2 * 3 * 4 * 6.0).view(2, 3, 4, 6)
    sequences = unfold(x)
    assert sequences.shape == (8, 6, 3)
    for batch, row, column in ((0, 0, 0), (1, 2, 3), (0, 3, 4)):
        place = 2 * (row % 2) + column % 2
        patch = 3 * (row // 2) + column // 2
        assert torch.equal(sequences[4 * batch + place, patch], x[batch, :, row, column])
    assert torch.equal(fold(sequences, (4, 6)), x)
    last = x.contiguous(memory_format=torch.channels_last)
    assert torch.equal(unfold(last), sequences)
    assert fold(sequences, (4, 6)).is_contiguous(memory_format=torch.channels_last)


def test_encoder_is_torchs_own_transformer_layer():
    torch.manual_seed(0)
    encoder = random_norms(Encoder(8))
    x = torch.randn(3, 5, 8)
    reference = nn.TransformerEncoderLayer(
        8, 4, 16, 0.0, activation=F.silu, batch_first=True, norm_first=True
    )
    theirs = {
        "self_attn.in_proj": encoder.qkv,
        "self_attn.out_proj.": encoder.merge,
        "linear1.": encoder.widen,
        "linear2.": encoder.narrow,
        "norm1.": encoder.attention_norm,
        "norm2.": encoder.feed_norm,
    }
    state = {}
    for prefix, layer in theirs.items():
        separator = "" if prefix.endswith(".") else "_"
        state |= {f"{prefix}{separator}{kind}": getattr(layer, kind) for kind in ("weight", "bias")}
    reference.load_state_dict(state)
    torch.testing.assert_close(encoder(x), reference(x))


def test_mobilevit_block_with_its_embedding_as_the_original_1x1_convolution():
    torch.manual_seed(0)
    block = random_norms(MobileViTBlock(6, 8, 2))
    x = torch.randn(2, 6, 4, 8)
    local = F.conv2d(F.silu(block.local(x)), block.embed.weight[:, :, None, None])
    seen = block.project(fold(block.encoders(unfold(local)), (4, 8)))
    torch.testing.assert_close(block(x), block.merge(torch.cat([x, F.silu(seen)], dim=1)))
    assert [type(layer) for layer in block.encoders] == [Encoder, Encoder, nn.LayerNorm]


def test_mobilevit_layout():
    model = mobilevit_xxs()
    blocks = [m for m in model.modules() if isinstance(m, MobileViTBlock)]
    assert [len(b.encoders) - 1 for b in blocks] == [2, 4, 3]
    residuals = [m for m in model.modules() if isinstance(m, InvertedResidual)]
    assert [m.depthwise.conv.stride[0] for m in residuals] == [1, 1, 1, 1, 2, 2, 2]
    assert [m.residual for m in residuals] == [True, False, True, True, False, False, False]
    # An activation on entry where the feature has not had one.
    activated = [type(stage[0]) is nn.SiLU for stage in model.stages]
    assert activated == [True, False, False, True, True, True]
    x = torch.randn(1, 16, 8, 8)
    inner = residuals[0].depthwise(F.silu(residuals[0].expand(x)))
    torch.testing.assert_close(residuals[0](x), x + residuals[0].project(F.silu(inner)))


# Training and weight standardization


@pytest.mark.parametrize("name", BACKBONES)
def test_a_step_with_weight_standardization_reaches_every_parameter(name):
    torch.manual_seed(0)
    model = WeightStandardization().apply(MODELS[name](classes=4))
    model = model.to(memory_format=torch.channels_last)
    check_model(model)
    convs = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert all(type(m) is WSConv2d for m in convs)
    x = torch.randn(2, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(model(x).float(), torch.arange(2))
    loss.backward()
    assert loss.isfinite()
    for key, p in model.named_parameters():
        assert p.grad is not None, key
        assert p.grad.isfinite().all(), key
        assert p.grad.any(), key


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet", "vgg9", "mobilevit_xxs"])
def test_second_derivatives_exist(name):
    torch.manual_seed(0)
    model = WeightStandardization().apply(MODELS[name](classes=4))
    params = list(model.parameters())
    loss = F.cross_entropy(model(torch.randn(2, 3, 16, 16)), torch.arange(2))
    gradient = torch.autograd.grad(loss, params, create_graph=True)
    product = torch.autograd.grad(sum(g.square().sum() for g in gradient), params)
    assert all(p.isfinite().all() for p in product)


@pytest.mark.parametrize(("groups", "outputs"), [(1, 8), (2, 8), (3, 12), (12, 12), (12, 24)])
@pytest.mark.parametrize("last", [False, True])
def test_grouped_and_depthwise_convolutions_against_one_channel_at_a_time(groups, outputs, last):
    torch.manual_seed(0)
    layer = nn.Conv2d(12, outputs, 3, padding=1, groups=groups).double()
    layer = standardize(layer, rho=0.5)
    x = torch.randn(2, 12, 5, 5, dtype=torch.float64)
    if last:
        layer = layer.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    width = 12 // groups
    for channel in range(outputs):
        group = channel // (outputs // groups)
        w = layer.weight[channel].flatten()
        assert len(w) == 9 * width
        mean = sum(w) / len(w)
        std = (sum((w - mean) ** 2) / (len(w) - 1)) ** 0.5
        kernel = (0.5 * (w - mean) / (std + 1e-5)).view(1, width, 3, 3)
        seen = x[:, group * width : (group + 1) * width]
        bias = 0.5 * layer.bias[channel : channel + 1]
        expected = F.conv2d(seen, kernel, bias, padding=1)
        torch.testing.assert_close(layer(x)[:, channel : channel + 1], expected)


def damping(fan_in: int, rho: float) -> float:
    """What GroupNorm's eps leaves of an output of variance rho^2 d."""
    variance = rho**2 * fan_in
    return math.sqrt(variance / (variance + 1e-5))


@pytest.mark.parametrize(("rho", "expected"), [(1e-3, 0.688), (1e-2, 0.994)])
def test_groupnorm_damps_a_depthwise_convolution(rho, expected):
    # White pixels of variance 9 / 8: around the mean of their patch of 9 they have variance 1.
    torch.manual_seed(0)
    layers = WeightStandardization(rho).apply(
        nn.Sequential(nn.Conv2d(32, 32, 3, groups=32), nn.GroupNorm(2, 32))
    )
    nn.init.zeros_(layers[0].bias)
    with torch.no_grad():
        out = layers(math.sqrt(9 / 8) * torch.randn(8, 32, 34, 34))
    assert damping(9, rho) == pytest.approx(expected, abs=1e-3)
    assert out.std().item() == pytest.approx(damping(9, rho), rel=0.005)


@pytest.mark.parametrize(
    ("name", "smallest"),
    [("shufflenet", 8), ("mobilevit_xxs", 9), ("squeezenet", 16), ("vgg9", 27), ("resnet34", 27)],
)
def test_no_convolution_is_too_small_to_standardize(name, smallest):
    fan_ins = [m.weight[0].numel() for m in MODELS[name]().modules() if isinstance(m, nn.Conv2d)]
    assert min(fan_ins) == smallest
