"""Weight standardization (Qiao et al., 2019, arXiv:1903.10520) for any model, as FedWSQ uses it.

A layer computes with rho * (w - mean) / (std + eps), per output channel, and keeps the raw `w` as its parameter:
names, values and everything that is exchanged stay those of the plain model. A bias is not standardized, only scaled.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedwsq.core.errors import ConfigError

M = TypeVar("M", bound=nn.Module)

BLOCK = 2**18  # floats in the temporaries of `Standardize` on a CPU


def standardized(weight: Tensor, rho: float = 1e-3, eps: float = 1e-5) -> Tensor:
    """`weight` standardized per output channel (dim 0); under autocast the result has the autocast dtype."""
    device, dtype = weight.device.type, weight.dtype
    if dtype != torch.float64 and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    result: Tensor = Standardize.apply(weight, rho, eps, dtype)  # type: ignore[no-untyped-call]
    return result


class Standardize(torch.autograd.Function):
    """The formula and its closed-form gradient; keeps the weight, which is alive anyway, and two numbers a channel.

    With v = w - mean, d the fan-in and gc = g - mean(g):
    dw = rho / (std + eps) * (gc - v * (v . gc) / ((d - 1) * std * (std + eps))),
    where v . gc is v . g, as v sums to zero.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, rho: float, eps: float, dtype: torch.dtype) -> Tensor:
        """rho * v / (std + eps) in `dtype`, in the memory format of `weight`."""
        ctx.rho, ctx.eps, ctx.channels_last = rho, eps, _channels_last(weight)
        w = _rows(weight, ctx.channels_last)
        mean, out = _mean(w), torch.empty_like(w, dtype=dtype)
        std = torch.empty_like(mean)
        for (w_, mean_, std_, out_), (v,) in _blocks(1, w, mean, std, out):
            v = torch.sub(w_, mean_, out=out_ if dtype == mean.dtype else v)
            _std(v, out=std_)
            out_.copy_(v.mul_(rho / (std_ + eps)))  # nothing to do when v is out_
        ctx.save_for_backward(weight, mean, std)
        return _unrows(out, weight, ctx.channels_last)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        """The gradient to the raw weight; differentiable again when asked to be (create_graph)."""
        weight, mean, std = ctx.saved_tensors
        w, g = _rows(weight, ctx.channels_last), _rows(gradients[0], ctx.channels_last)
        if torch.is_grad_enabled():
            # The saved statistics are constants to autograd: take them from the weight once more.
            v, g = _wide(w) - _mean(w), _wide(g)
            std = _std(v)
            pull = (v * g).sum(1, keepdim=True) / _spread(std) / (std + ctx.eps) / (1 - v.shape[1])
            dw = (v * pull + g - _mean(g)) * (ctx.rho / (std + ctx.eps))
        else:
            # The same, operation for operation, without a temporary that leaves the cache.
            dw, below = torch.empty_like(w, dtype=mean.dtype), std + ctx.eps
            spread, gain = _spread(std), ctx.rho / below
            for rows, (wide, vg) in _blocks(2, w, mean, g, spread, below, gain, dw):
                w_, mean_, g_, spread_, below_, gain_, v = rows
                wide.copy_(g_)
                torch.sub(w_, mean_, out=v)
                dot = torch.mul(v, wide, out=vg).sum(1, keepdim=True)
                pull = dot.div_(spread_).div_(below_).div_(1 - v.shape[1])
                v.mul_(pull).add_(wide).sub_(_mean(wide)).mul_(gain_)
        return _unrows(dw.to(weight.dtype), weight, ctx.channels_last), None, None, None


def _mean(x: Tensor) -> Tensor:
    return x.mean(1, keepdim=True, dtype=torch.promote_types(x.dtype, torch.float32))


def _std(v: Tensor, out: Tensor | None = None) -> Tensor:
    # Unbiased here and eps outside the root above: the published code, not the WS paper.
    # From the norm of the deviations, as `torch.std` is several times slower on a CPU.
    norm: Tensor = torch.linalg.vector_norm(v, dim=1, keepdim=True)
    return torch.div(norm, math.sqrt(v.shape[1] - 1), out=out)


def _spread(std: Tensor) -> Tensor:
    """`std` to divide by: a constant row's v . g is 0, and so shall the quotient be."""
    return std.masked_fill(std == 0, 1.0)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _blocks(
    temporaries: int, w: Tensor, mean: Tensor, *others: Tensor
) -> Iterator[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]:
    """The same rows of every tensor, and memory for temporaries of that shape.

    On a CPU a megabyte at a time and always the same memory, so that temporaries stay in the cache.
    """
    rows, fan_in = w.shape
    if w.device.type == "cpu":
        rows = min(rows, max(1, BLOCK // fan_in))
    spare = [
        torch.empty(rows, fan_in, dtype=mean.dtype, device=w.device) for _ in range(temporaries)
    ]
    for start in range(0, len(w), rows or 1):
        block = tuple(x[start : start + rows] for x in (w, mean, *others))
        yield block, tuple(x[: len(block[0])] for x in spare)


def _channels_last(weight: Tensor) -> bool:
    return weight.ndim > 3 and not weight.is_contiguous() and weight.movedim(1, -1).is_contiguous()


def _rows(x: Tensor, channels_last: bool) -> Tensor:  # [out, ...] -> [out, fan_in]
    # The order within a row does not matter, so follow the memory: a view, not a layout copy.
    return (x.movedim(1, -1) if channels_last else x).flatten(1)


def _unrows(rows: Tensor, like: Tensor, channels_last: bool) -> Tensor:
    return (
        rows.view(like.movedim(1, -1).shape).movedim(-1, 1)
        if channels_last
        else rows.view(like.shape)
    )


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
        """The bias this layer computes with: rho times its own, so that rho scales the output as a whole.

        Left as it is, a bias would drown an output that rho makes a thousandth of it, in the norm that follows.
        """
        return None if self.bias is None else self.rho * self.bias

    def unit_weight(self, weight: Tensor) -> Tensor:
        """What the layer makes of `weight` before rho."""
        return standardized(weight, 1.0, self.eps)

    def become_plain(self) -> None:
        """Turn into the plain layer that holds the standardized weight."""
        with torch.no_grad(), torch.autocast(self.weight.device.type, enabled=False):
            weight, bias = self.standardized_weight(), self.scaled_bias()
        self.weight = nn.Parameter(weight, requires_grad=self.weight.requires_grad)
        if self.bias is not None and bias is not None:
            self.bias = nn.Parameter(bias, requires_grad=self.bias.requires_grad)
        for name in self.settings:
            vars(self).pop(name, None)
        self.__class__ = self.plain  # type: ignore[assignment]

    def extra_repr(self) -> str:
        """The plain layer's, and the settings."""
        return ", ".join(
            [super().extra_repr(), *(f"{name}={getattr(self, name)}" for name in self.settings)]
        )


class WSConv1d(WSLayer, nn.Conv1d):
    """`nn.Conv1d` with weight standardization."""

    plain = nn.Conv1d

    def forward(self, input: Tensor) -> Tensor:
        """Convolve with the standardized weight."""
        out: Tensor = self._conv_forward(input, self.standardized_weight(), self.scaled_bias())
        return out


class WSConv2d(WSLayer, nn.Conv2d):
    """`nn.Conv2d` with weight standardization."""

    plain = nn.Conv2d

    def forward(self, input: Tensor) -> Tensor:
        """Convolve with the standardized weight."""
        out: Tensor = self._conv_forward(input, self.standardized_weight(), self.scaled_bias())
        return out


class WSConv3d(WSLayer, nn.Conv3d):
    """`nn.Conv3d` with weight standardization."""

    plain = nn.Conv3d

    def forward(self, input: Tensor) -> Tensor:
        """Convolve with the standardized weight."""
        out: Tensor = self._conv_forward(input, self.standardized_weight(), self.scaled_bias())
        return out


class WSLinear(WSLayer, nn.Linear):  # type: ignore[misc]  # torch says Tensor where it means Tensor or None
    """`nn.Linear` with weight standardization."""

    plain = nn.Linear

    def forward(self, input: Tensor) -> Tensor:
        """Apply the standardized weight."""
        return F.linear(input, self.standardized_weight(), self.scaled_bias())


# Exact types only: what a user's subclass (or a transposed convolution) does with its weight is not ours to guess.
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
    """Turn the layers that `select(name, module)` chooses into WS layers, in place, and return the model.

    Candidates are Conv1d, Conv2d, Conv3d and Linear with a fan-in of 3 or more. Parameters keep their names, values
    and identity; hooks, devices and optimizers are not disturbed. Subclasses of these classes and layers with
    parametrizations are left as they are. The transforms of `torch.func` (grad, vmap) and `torch.jit.script` do not go
    through WS layers; `bake` makes plain ones of them.

    The fan-in d of a grouped convolution is that of one group: 9 for a depthwise 3x3. Outputs have variance rho^2 d V,
    with V the mean square of the inputs around the mean of their patch, so the eps = 1e-5 of a norm that follows is
    felt: it multiplies by sqrt(rho^2 d V / (rho^2 d V + 1e-5)). For rho = 1e-3 and V = 1 that is 0.69 for a depthwise
    3x3, 0.85 at d = 27 and 0.99 at 576; for rho = 1e-2 it is 0.99 or more everywhere.

    A layer's bias is scaled by rho as well: left as it is, it would outweigh the output in the norm that follows, and
    at rho = 1e-3 networks whose convolutions have biases learned nothing.
    """
    _check(rho, eps)
    changed = 0
    for name, layer in model.named_modules(
        remove_duplicate=False
    ):  # under each of its names, if it is tied
        becomes = _STANDARDIZED.get(type(layer))
        # One value has no standard deviation, and two standardize to +-1/sqrt(2) whatever they are: zero gradient.
        if becomes is None or _fan_in(layer) < 3 or not select(name, layer):
            continue
        # The same object with another class, as torch's own parametrizations do it: nothing to copy or to forget.
        layer.__class__ = becomes
        layer.rho, layer.eps = rho, eps
        changed += 1
    if changed == 0:
        raise ConfigError(
            "the model has no layer to standardize: weight standardization takes Conv1d, Conv2d, Conv3d (and Linear "
            "when `select` chooses it) with a fan-in of 3 or more that is not standardized yet"
        )
    return model


def init_standardized(model: M) -> M:
    """Draw the weight of every WS layer as published, Kaiming-uniform with a = 0: bound sqrt(6 / fan_in)."""
    for layer in model.modules():
        if isinstance(layer, WSLayer):
            nn.init.kaiming_uniform_(layer.weight, a=0)
    return model


def bake(model: M) -> M:
    """Turn WS layers into plain ones that hold the standardized weights, in place: same outputs, nothing to install.

    The result's `state_dict()` loads into the unstandardized architecture; of a model with scaled standardization, into
    `drop_norms` of that. For export: the raw weights are gone.
    """
    for layer in list(model.modules()):
        if isinstance(layer, WSLayer):
            layer.become_plain()
    return model


def _fan_in(layer: nn.Module) -> int:
    weight: Tensor = layer.weight  # type: ignore[assignment]
    return math.prod(weight.shape[1:])


def _check(rho: float, eps: float) -> None:
    for name, value in (("rho", rho), ("eps", eps)):
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(f"weight standardization needs a finite {name} above 0, got {value}")


class Standardization(Protocol):
    """The WS axis of a plan: a frozen dataclass whose fields are its settings."""

    def apply(self, model: nn.Module) -> nn.Module:
        """The model to train, its initial weights drawn as the method wants them."""
        ...


@dataclass(frozen=True)
class NoStandardization:
    """The model as it is."""

    def apply(self, model: nn.Module) -> nn.Module:
        """`model` itself."""
        return model


@dataclass(frozen=True)
class WeightStandardization:
    """Every convolution standardized and initialised as published."""

    rho: float = 1e-3
    eps: float = 1e-5

    def __post_init__(self) -> None:
        _check(self.rho, self.eps)

    def apply(self, model: nn.Module) -> nn.Module:
        """`model` with WS convolutions and fresh weights in them."""
        return init_standardized(standardize(model, self.rho, self.eps))
