"""FedWon's scaled weight standardization, in the place of norms.

A layer computes with gain * gamma * (w - mean) / sqrt(max(fan_in * var, 1e-4)), per output channel:
as long as the data, whatever the fan-in. The gain is learned. From Zhuang and Lyu (2024,
arXiv:2306.05879), after Brock et al. (2021, arXiv:2101.08692), whose gamma lets a ReLU network keep
its variance from layer to layer.

That gamma assumes a ReLU after each convolution; one without multiplies the variance by
gamma^2 = 2.9. So it is for networks like the resnets and VGG: logits of the models here start with
a standard deviation of 0.2 to 8, except those of resnet34 (some 100) and of shufflenet (thousands),
whose depthwise convolutions have no ReLU after them.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from fedwsq.core.errors import ConfigError
from fedwsq.core.types import Params
from fedwsq.models.standardize import (
    WSConv1d,
    WSConv2d,
    WSConv3d,
    WSLayer,
    change_classes,
    convolutions,
    init_standardized,
)

M = TypeVar("M", bound=nn.Module)
Variance = Literal["unbiased", "biased"]

# The variance of relu(x) is (1 - 1 / pi) / 2 for x ~ N(0, 1); a filter of zero mean does not see
# relu's own mean.
GAMMA_RELU = math.sqrt(2 / (1 - 1 / math.pi))
# _NormBase is that of every BatchNorm and InstanceNorm.
NORMS = (nn.GroupNorm, _NormBase)


def scaled_standardized(
    weight: Tensor,
    gain: Tensor | None = None,
    gamma: float = GAMMA_RELU,
    variance: Variance = "unbiased",
) -> Tensor:
    """`weight` standardized per output channel (dim 0).

    Each is as long as gain * gamma says, up to the bias of the variance.
    """
    dims = tuple(range(1, weight.ndim))
    v = weight - weight.mean(dims, keepdim=True)
    # fan_in * var, biased; `torch.var` is twice as slow on a CPU.
    total = v.square().sum(dims, keepdim=True)
    if variance == "unbiased":
        count = math.prod(weight.shape[1:])
        total = total * (count / (count - 1))
    # The floor keeps a constant filter at zero, with a finite gradient: sqrt is never taken near 0.
    factor = gamma * total.clamp(min=1e-4).rsqrt()
    if gain is not None:
        factor = factor * gain.view_as(factor)
    return v * factor


class ScaledWSLayer(WSLayer):
    """A layer that computes with its scaled standardized weight.

    Its parameters are the raw weight, the gain and the bias, if it has one.
    """

    settings = ("gamma", "variance")
    gain: Tensor  # [out]
    gamma: float = GAMMA_RELU
    variance: Variance = "unbiased"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.init_gain()

    def init_gain(self) -> None:
        """A gain of 1 for each output channel."""
        self.gain = nn.Parameter(self.weight.detach().new_ones(len(self.weight)))

    def standardized_weight(self) -> Tensor:
        return scaled_standardized(self.weight, self.gain, self.gamma, self.variance)

    def scaled_bias(self) -> Tensor | None:
        """The bias as it is: outputs are as large as inputs here, there is no rho to follow."""
        return self.bias

    def unit_weight(self, weight: Tensor) -> Tensor:
        """What the layer makes of `weight` before the gain and gamma."""
        return scaled_standardized(weight, gamma=1.0, variance=self.variance)

    def become_plain(self) -> None:
        """Turn into the plain layer that holds the standardized weight, the gain included."""
        super().become_plain()
        del self.gain


class ScaledWSConv1d(ScaledWSLayer, WSConv1d):
    """`nn.Conv1d` with scaled weight standardization."""


class ScaledWSConv2d(ScaledWSLayer, WSConv2d):
    """`nn.Conv2d` with scaled weight standardization."""


class ScaledWSConv3d(ScaledWSLayer, WSConv3d):
    """`nn.Conv3d` with scaled weight standardization."""


# Exact types only, as for weight standardization.
_SCALED: dict[type[nn.Module], type[ScaledWSLayer]] = {
    layer.plain: layer for layer in (ScaledWSConv1d, ScaledWSConv2d, ScaledWSConv3d)
}


def standardize_scaled(model: M, gamma: float = GAMMA_RELU, variance: Variance = "unbiased") -> M:
    """Turn convolutions with a fan-in of 3 or more into scaled WS layers, in place."""
    if any(isinstance(layer, WSLayer) for layer in model.modules()):
        raise ConfigError(
            "the model has standardized layers already; "
            "scaled standardization replaces the other kind"
        )
    changed = change_classes(model, _SCALED, convolutions)
    for layer in changed:
        layer.gamma = gamma
        layer.variance = variance
        layer.init_gain()
    if not changed:
        raise ConfigError(
            "the model has no layer to standardize: scaled weight standardization takes Conv1d, "
            "Conv2d and Conv3d with a fan-in of 3 or more; for a run say model.standardize=none"
        )
    return model


def drop_norms(model: M) -> M:
    """Remove every BatchNorm, InstanceNorm and GroupNorm, in place; every convolution has a bias.

    A convolution before a norm has none since the norm has its own; without the norm nothing could
    shift, so it is given one at zero. LayerNorm and RMSNorm stay: they belong to attention, of
    which standardized convolutions take no care.
    """
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if isinstance(child, NORMS):
                setattr(parent, name, nn.Identity())
    for layer in model.modules():
        if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) and layer.bias is None:
            layer.bias = nn.Parameter(layer.weight.detach().new_zeros(layer.out_channels))
    return model


def exchange_standardized(model: nn.Module, params: Params) -> Params:
    """`params` with the weight of each standardized layer as it sees it, before gain and constants.

    The model computes the same with them: to standardize twice is to standardize once.
    """
    exchanged = dict(params)
    for name, layer in model.named_modules():
        key = f"{name}.weight" if name else "weight"
        if isinstance(layer, WSLayer) and key in params:  # a tied weight has one name only
            with torch.no_grad():
                exchanged[key] = layer.unit_weight(params[key])
    return exchanged


@dataclass(frozen=True)
class ScaledStandardization:
    """Every convolution standardized to unit gain and given a bias; no norms between (FedWon)."""

    gamma: float = GAMMA_RELU
    variance: Variance = "unbiased"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.gamma) and self.gamma > 0):
            raise ConfigError(
                f"scaled weight standardization needs a finite gamma above 0, got {self.gamma}"
            )
        if self.variance not in ("unbiased", "biased"):
            raise ConfigError(
                f'variance = "{self.variance}" is unknown; it is "unbiased" or "biased"'
            )

    def apply(self, model: nn.Module) -> nn.Module:
        scaled = standardize_scaled(model, self.gamma, self.variance)
        return init_standardized(drop_norms(scaled))
