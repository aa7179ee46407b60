"""BatchNorm to GroupNorm, and what the model check says about norms that remember."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedwsq
from fedwsq.core.errors import ConfigError
from fedwsq.models import check_model, replace_batchnorm, standardize

INPUTS = {
    nn.BatchNorm1d: torch.randn(3, 6, 5),
    nn.BatchNorm2d: torch.randn(3, 6, 4, 5),
    nn.BatchNorm3d: torch.randn(3, 6, 2, 4, 3),
    nn.SyncBatchNorm: torch.randn(3, 6, 4, 5),
}


def trained(kind: type[nn.Module], **settings: object) -> nn.Module:
    """A norm whose weights and statistics are not the initial ones."""
    norm = kind(6, **settings)
    if norm.affine:
        nn.init.normal_(norm.weight, 1.0, 0.5)
        nn.init.normal_(norm.bias)
    return norm


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_the_layer_that_results_normalizes_groups_and_keeps_the_affine_part(kind, groups):
    torch.manual_seed(0)
    norm = trained(kind)
    x = INPUTS[kind]
    model = nn.Sequential(nn.Identity(), norm)
    assert replace_batchnorm(model, groups) is model
    grouped = x.reshape(3, groups, -1)
    centred = grouped - grouped.mean(2, keepdim=True)
    flat = centred / (grouped.var(2, correction=0, keepdim=True) + 1e-5).sqrt()
    shape = (6, *[1] * (x.dim() - 2))
    expected = flat.view_as(x) * norm.weight.view(shape) + norm.bias.view(shape)
    torch.testing.assert_close(model(x), expected)
    assert type(model[1]) is nn.GroupNorm
    assert repr(model[1]) == repr(nn.GroupNorm(groups, 6))
    # The same parameters: an optimizer that holds them is not disturbed.
    assert model[1].weight is norm.weight
    assert model[1].bias is norm.bias
    assert list(model.state_dict()) == ["1.weight", "1.bias"]
    check_model(model)


def test_batchnorm1d_over_vectors_too():
    model = replace_batchnorm(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    x = torch.randn(5, 3)
    assert torch.equal(model(x), F.group_norm(model[0](x), 2, model[1].weight, model[1].bias))


def test_settings_that_carry_over_and_the_one_that_does_not():
    plain = replace_batchnorm(nn.Sequential(nn.BatchNorm2d(4, affine=False, eps=1e-3)))[0]
    assert (plain.affine, plain.weight, plain.bias, plain.eps) == (False, None, None, 1e-5)
    assert torch.isfinite(plain(torch.randn(2, 4, 3, 3))).all()
    frozen = nn.Sequential(nn.BatchNorm2d(4)).double().eval().requires_grad_(False)
    norm = replace_batchnorm(frozen)[0]
    assert not norm.training
    assert not norm.weight.requires_grad
    assert norm.weight.dtype == torch.float64


class User(nn.Module):
    """A model as users write them: norms as attributes, nested, and one used at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.body = nn.ModuleDict(
            {"a": nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)), "b": nn.ReLU()}
        )
        self.body["shared"] = self.bn
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        x = F.relu(self.bn(self.conv(x)))
        x = self.body["shared"](self.body["b"](self.body["a"](x)))
        return self.head(x.mean(dim=(2, 3)))


def test_a_whole_model_becomes_one_that_can_be_federated_and_learns():
    torch.manual_seed(0)
    model = User()
    x = torch.randn(8, 3, 6, 6)
    with pytest.raises(
        ConfigError,
        match=r"layer 'bn' is BatchNorm2d.*GroupNorm\(2, 8\).*replace_batchnorm\(model\)",
    ):
        check_model(model)
    before = dict(model.named_parameters())
    fedwsq.replace_batchnorm(model)
    check_model(model)
    assert model.bn is model.body["shared"]
    assert all(p is before[name] for name, p in model.named_parameters())
    assert model.state_dict().keys() == before.keys() | {"body.shared.weight", "body.shared.bias"}
    # No example sees the others any more.
    torch.testing.assert_close(model(x)[:2], model(x[:2]))
    standardize(model)
    F.cross_entropy(model(x), torch.arange(8) % 2).backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())
    again = copy.deepcopy(model)
    assert replace_batchnorm(again) is again
    assert repr(again) == repr(model)


def test_a_model_that_is_a_norm():
    norm = nn.BatchNorm2d(4)
    replaced = replace_batchnorm(norm)
    assert type(replaced) is nn.GroupNorm
    assert replaced.weight is norm.weight


class Activated(nn.BatchNorm2d):
    def forward(self, x):
        return F.relu(super().forward(x))


@pytest.mark.parametrize(
    ("norm", "groups", "message"),
    [
        (
            nn.BatchNorm2d(9),
            2,
            r"layer 'last.0' is BatchNorm2d over 9 channels, which 2 groups .* one of 1, 3, 9, or",
        ),
        (Activated(4), 2, r"layer 'last.0' is Activated, .* replace it by hand"),
        (
            nn.LazyBatchNorm2d(),
            2,
            r"layer 'last.0' is LazyBatchNorm2d, .* run a batch .* if it is lazy",
        ),
        (nn.BatchNorm2d(4), 0, "groups is 0, must be a whole number, at least 1"),
    ],
)
def test_a_refusal_says_what_to_do_and_changes_nothing(norm, groups, message):
    model = nn.Sequential()
    model.add_module("first", nn.BatchNorm2d(4))
    model.add_module("last", nn.Sequential(norm))
    with pytest.raises(ConfigError, match=message):
        replace_batchnorm(model, groups)
    assert type(model.first) is nn.BatchNorm2d
    assert model.last[0] is norm


def test_instance_norm_is_left_alone_and_refused_only_if_it_remembers():
    check_model(replace_batchnorm(nn.Sequential(nn.InstanceNorm2d(4, affine=True))))
    remembering = replace_batchnorm(nn.Sequential(nn.InstanceNorm2d(4, track_running_stats=True)))
    with pytest.raises(
        ConfigError, match=r"layer '0' is InstanceNorm2d: running stat.*track_running_stats=False"
    ):
        check_model(remembering)
