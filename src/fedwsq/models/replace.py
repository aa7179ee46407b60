"""GroupNorm in the place of BatchNorm: what a model from elsewhere needs before it can be federated."""

from typing import TypeVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedwsq.core.errors import ConfigError

M = TypeVar("M", bound=nn.Module)

# Exact types only: a subclass may do more than normalize (activate, say), and that would be lost.
_REPLACED = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def replace_batchnorm(model: M, groups: int = 2) -> M | nn.GroupNorm:
    """Put a GroupNorm in the place of every BatchNorm1d, 2d, 3d and SyncBatchNorm, in place, and return the model.

    Weights and biases stay the same parameters under the same names; running statistics are dropped, so a trained model
    computes something else until it is trained further. eps is 1e-5 whatever it was: rho of weight standardization is
    published for that. A model that is a BatchNorm itself is not changed; its replacement is returned.
    """
    if groups < 1:
        raise ConfigError(f"groups is {groups}, must be at least 1")
    norms = {
        m: _replacement(name, m, groups)
        for name, m in model.named_modules()
        if isinstance(m, _BatchNorm)
    }
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if isinstance(child, _BatchNorm):
                parent._modules[name] = norms[child]
    return norms[model] if isinstance(model, _BatchNorm) else model


def _replacement(name: str, norm: _BatchNorm, groups: int) -> nn.GroupNorm:
    kind, channels = type(norm).__name__, norm.num_features
    if type(norm) not in _REPLACED:
        raise ConfigError(
            f"layer '{name}' is {kind}, which may do more than the BatchNorm it derives from; replace it by hand, "
            "or run a batch through the model first if it is lazy"
        )
    if channels % groups:
        fitting = ", ".join(str(n) for n in range(1, channels + 1) if channels % n == 0)
        raise ConfigError(
            f"layer '{name}' is {kind} over {channels} channels, which {groups} groups do not divide; "
            f"groups can be one of {fitting}, or replace this layer by hand first"
        )
    group_norm = nn.GroupNorm(groups, channels, affine=False).train(norm.training)
    group_norm.affine, group_norm.weight, group_norm.bias = norm.affine, norm.weight, norm.bias
    return group_norm
