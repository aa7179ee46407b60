"""Weight standardization (Qiao et al., 2019, arXiv:1903.10520) for any model, as FedWSQ uses it.

A layer computes with rho * (w - mean) / (std + eps), per output channel, and keeps the raw `w` as
its parameter: names, values and everything that is exchanged stay those of the plain model. A bias
is not standardized, only scaled.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fedwsq.core.errors import ConfigError
from fedwsq.models.check import require_module
from fedwsq.models.closed_form import standardized

M = TypeVar("M", bound=nn.Module)
L = TypeVar("L", bound="WSLayer")


class WSLayer(nn.Module):
    """A layer that computes with its standardized weight; its parameter stays the raw one."""

    plain: ClassVar[type[nn.Module]]
    settings: ClassVar[tuple[str, ...]] = ("rho", "eps")
    weight: Tensor  # the raw parameter
    bias: Tensor | None  # raw as well
    rho: float = 1e-3
    eps: float = 1e-5

    def standardized_weight(self) -> Tensor:
        """The weight this layer computes with."""
        return standardized(self.weight, self.rho, self.eps)

    def scaled_bias(self) -> Tensor | None:
        """The bias this layer computes with: rho times its own, so that rho scales all the output.

        Left as it is, in the norm that follows a bias would drown an output that rho makes a
        thousandth of it.
        """
        if self.bias is None:
            return None
        return self.rho * self.bias

    def unit_weight(self, weight: Tensor) -> Tensor:
        """What the layer makes of `weight` before rho."""
        return standardized(weight, 1.0, self.eps)

    def become_plain(self) -> None:
        """Turn into the plain layer that holds the standardized weight."""
        with torch.no_grad(), torch.autocast(self.weight.device.type, enabled=False):
            weight = self.standardized_weight()
            bias = self.scaled_bias()
        self.weight = nn.Parameter(weight, requires_grad=self.weight.requires_grad)
        if self.bias is not None and bias is not None:
            self.bias = nn.Parameter(bias, requires_grad=self.bias.requires_grad)
        # Those of the class go with the class.
        for name in self.settings:
            vars(self).pop(name, None)
        self.__class__ = self.plain  # type: ignore[assignment]

    def extra_repr(self) -> str:
        settings = [f"{name}={getattr(self, name)}" for name in self.settings]
        return ", ".join([super().extra_repr(), *settings])


class WSConv(WSLayer, _ConvNd):
    """A convolution with the standardized weight, of any number of dimensions."""

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, self.standardized_weight(), self.scaled_bias())


class WSConv1d(WSConv, nn.Conv1d):
    """`nn.Conv1d` with weight standardization."""

    plain = nn.Conv1d


class WSConv2d(WSConv, nn.Conv2d):
    """`nn.Conv2d` with weight standardization."""

    plain = nn.Conv2d


class WSConv3d(WSConv, nn.Conv3d):
    """`nn.Conv3d` with weight standardization."""

    plain = nn.Conv3d


# torch says that a linear layer's bias is a Tensor, where it means a Tensor or None.
class WSLinear(WSLayer, nn.Linear):  # type: ignore[misc]
    """`nn.Linear` with weight standardization."""

    plain = nn.Linear

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.standardized_weight(), self.scaled_bias())


# Exact types only: what a user's subclass (or a transposed convolution) does with its weight is not
# ours to guess.
_STANDARDIZED: dict[type[nn.Module], type[WSLayer]] = {
    layer.plain: layer for layer in (WSConv1d, WSConv2d, WSConv3d, WSLinear)
}


def convolutions(name: str, module: nn.Module) -> bool:
    """The published choice: every convolution, no linear layer."""
    return isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)


def standardize(
    model: M,
    rho: float = 1e-3,
    eps: float = 1e-5,
    select: Callable[[str, nn.Module], bool] = convolutions,
) -> M:
    """Turn the layers that `select(name, module)` chooses into WS layers, in place.

    Candidates are Conv1d, Conv2d, Conv3d and Linear with a fan-in of 3 or more. Parameters keep
    their names, values and identity; hooks, devices and optimizers are not disturbed. Subclasses of
    these classes and layers with parametrizations are left as they are. The transforms of
    `torch.func` (grad, vmap) and `torch.jit.script` do not go through WS layers; `bake` makes plain
    ones of them. What is returned is the model itself.

    The fan-in d of a grouped convolution is that of one group: 9 for a depthwise 3x3. Outputs have
    variance rho^2 d V, with V the mean square of the inputs around the mean of their patch, so the
    eps = 1e-5 of a norm that follows is felt: it multiplies by
    sqrt(rho^2 d V / (rho^2 d V + 1e-5)). For rho = 1e-3 and V = 1 that is 0.69 for a depthwise 3x3,
    0.85 at d = 27 and 0.99 at 576; for rho = 1e-2 it is 0.99 or more everywhere.

    A layer's bias is scaled by rho as well: left as it is, it would outweigh the output in the norm
    that follows, and at rho = 1e-3 networks whose convolutions have biases learned nothing.
    """
    require_module(model, "standardize")
    if not callable(select):
        raise ConfigError(
            f"select is {select!r}, must be a function of a layer's name and the layer that says "
            "whether to standardize it"
        )
    _check(rho, eps)
    changed = change_classes(model, _STANDARDIZED, select)
    for layer in changed:
        layer.rho = rho
        layer.eps = eps
    if not changed:
        raise ConfigError(
            "the model has no layer to standardize: weight standardization takes Conv1d, Conv2d, "
            "Conv3d (and Linear when `select` chooses it) with a fan-in of 3 or more that is not "
            "standardized yet; for a run say model.standardize=none"
        )
    return model


def init_standardized(model: M) -> M:
    """Draw the weight of every WS layer as published: Kaiming-uniform, bound sqrt(6 / fan_in)."""
    for layer in model.modules():
        if isinstance(layer, WSLayer):
            nn.init.kaiming_uniform_(layer.weight, a=0)
    return model


def bake(model: M) -> M:
    """Turn WS layers into plain ones that hold the standardized weights, in place.

    For export: the outputs are the same, whoever uses the model need not install anything, and the
    raw weights are gone. The result's `state_dict()` loads into the unstandardized architecture; of
    a model with scaled standardization, into `drop_norms` of that.
    """
    require_module(model, "bake")
    for layer in list(model.modules()):
        if isinstance(layer, WSLayer):
            layer.become_plain()
    return model


def change_classes(
    model: nn.Module,
    becomes: Mapping[type[nn.Module], type[L]],
    select: Callable[[str, nn.Module], bool],
) -> list[L]:
    """Give the layers that `select` chooses another class, in place, and return them.

    They stay the same objects, as with torch's own parametrizations: nothing to copy or to forget.
    """
    changed = []
    # A tied layer is offered under each of its names.
    for name, layer in model.named_modules(remove_duplicate=False):
        kind = becomes.get(type(layer))
        # One weight has no standard deviation; two become +-1/sqrt(2) whatever they are, so that
        # their gradient is zero.
        if kind is None or _fan_in(layer) < 3 or not select(name, layer):
            continue
        layer.__class__ = kind
        assert isinstance(layer, kind)
        changed.append(layer)
    return changed


def _fan_in(layer: nn.Module) -> int:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return math.prod(weight.shape[1:])


def _check(rho: float, eps: float) -> None:
    for name, value in (("rho", rho), ("eps", eps)):
        try:
            known = math.isfinite(value) and value > 0
        except TypeError:  # no number at all
            known = False
        if not known:
            raise ConfigError(
                f"weight standardization needs a finite {name} above 0, got {value!r}"
            )


class Standardization(Protocol):
    """The WS axis of a plan: a frozen dataclass whose fields are its settings."""

    def apply(self, model: nn.Module) -> nn.Module:
        """The model to train, its initial weights drawn as the method wants them."""
        ...


@dataclass(frozen=True)
class NoStandardization:
    """The model as it is."""

    def apply(self, model: nn.Module) -> nn.Module:
        return model


@dataclass(frozen=True)
class WeightStandardization:
    """Every convolution standardized and initialised as published."""

    rho: float = 1e-3
    eps: float = 1e-5

    def __post_init__(self) -> None:
        _check(self.rho, self.eps)

    def apply(self, model: nn.Module) -> nn.Module:
        return init_standardized(standardize(model, self.rho, self.eps))
