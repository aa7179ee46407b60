"""GroupNorm in the place of BatchNorm, which a model must not have to be federated."""

from typing import TypeVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedwsq.core.errors import ConfigError
from fedwsq.models.check import require_module

M = TypeVar("M", bound=nn.Module)

# Exact types only: a subclass may do more than normalize (activate, say), and that would be lost.
_REPLACED = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def replace_batchnorm(model: M, groups: int = 2) -> M | nn.GroupNorm:
    """Put a GroupNorm in the place of every BatchNorm1d, 2d, 3d and SyncBatchNorm, in place.

    Weights and biases stay the same parameters under the same names; running statistics are
    dropped, so a trained model computes something else until it is trained further. eps is 1e-5
    whatever it was: rho of weight standardization is published for that. The model itself is
    returned; if it is a BatchNorm, it is not changed and its replacement is returned.
    """
    require_module(model, "replace_batchnorm")
    if not isinstance(groups, int) or groups < 1:
        raise ConfigError(f"groups is {groups!r}, must be a whole number, at least 1")
    # All of them are made before any is put in, so that a refusal leaves the model as it was.
    norms: dict[nn.Module | None, nn.GroupNorm] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, _BatchNorm):
            norms[layer] = _replacement(name, layer, groups)

    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child in norms:
                parent._modules[name] = norms[child]
    return norms.get(model, model)


def _replacement(name: str, norm: _BatchNorm, groups: int) -> nn.GroupNorm:
    kind = type(norm).__name__
    channels = norm.num_features
    if type(norm) not in _REPLACED:
        raise ConfigError(
            f"layer '{name}' is {kind}, which may do more than the BatchNorm it derives from; "
            "replace it by hand, or run a batch through the model first if it is lazy"
        )
    if channels % groups:
        divisors = [n for n in range(1, channels + 1) if channels % n == 0]
        fitting = ", ".join(map(str, divisors))
        raise ConfigError(
            f"layer '{name}' is {kind} over {channels} channels, which {groups} groups do not "
            f"divide; groups can be one of {fitting}, or replace this layer by hand first"
        )

    # The very parameters, so that an optimizer that holds them is not disturbed.
    group_norm = nn.GroupNorm(groups, channels, affine=False)
    group_norm.affine = norm.affine
    group_norm.weight = norm.weight
    group_norm.bias = norm.bias
    return group_norm.train(norm.training)
