"""What a model must be so that its parameters are all there is to federate."""

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from fedwsq.core.errors import ConfigError


def require_module(model: object, what: str) -> None:
    """Refuse what is no model; `what` is the function that was called with it."""
    if isinstance(model, nn.Module):
        return
    found = f"of type {type(model).__name__}"
    if isinstance(model, type):
        found = f"the class {model.__name__}; give a model that was made of it"
    raise ConfigError(f"{what} takes a model, an nn.Module, and this is {found}")


def check_model(model: nn.Module) -> None:
    """Raise `ConfigError` unless the model's float32 parameters are its whole state."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            raise ConfigError(
                f"layer '{name}' is {type(module).__name__}: running statistics are not federated; "
                f"use GroupNorm, for example nn.GroupNorm(2, {module.num_features}), "
                "or model = fedwsq.replace_batchnorm(model)"
            )
        if isinstance(module, _InstanceNorm) and module.track_running_stats:
            raise ConfigError(
                f"layer '{name}' is {type(module).__name__}: running statistics are not federated; "
                "make it with track_running_stats=False"
            )

    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, parameter in parameters.items():
        if isinstance(parameter, nn.UninitializedParameter):
            raise ConfigError(
                f"parameter '{name}' has no shape before the first batch; "
                "give the lazy layer its input size"
            )
        if parameter.dtype != torch.float32:
            raise ConfigError(
                f"parameter '{name}' is {parameter.dtype}; "
                "parameters must be float32, call model.float()"
            )

    # Integer buffers are indices and the like; what a layer learns beside its parameters is floats.
    for name, value in model.state_dict().items():
        if name not in parameters and isinstance(value, torch.Tensor) and value.is_floating_point():
            raise ConfigError(
                f"buffer '{name}' holds floating-point state, which is not federated; "
                "make it a parameter, or register it with persistent=False if it is a constant"
            )
