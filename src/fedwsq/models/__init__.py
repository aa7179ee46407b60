"""Backbones by name, and weight standardization for any model.

A model is any `nn.Module` that returns logits; those in `MODELS` are `Staged`, for the methods that look inside.
"""

from collections.abc import Callable

from torch import nn

from fedwsq.models.check import check_model
from fedwsq.models.cnn import cnn
from fedwsq.models.resnet import ResNet, resnet8, resnet18
from fedwsq.models.scaled import (
    ScaledStandardization,
    ScaledWSConv1d,
    ScaledWSConv2d,
    ScaledWSConv3d,
    ScaledWSLayer,
    drop_norms,
    exchange_standardized,
    scaled_standardized,
    standardize_scaled,
)
from fedwsq.models.staged import Staged
from fedwsq.models.standardize import (
    NoStandardization,
    Standardization,
    WeightStandardization,
    WSConv1d,
    WSConv2d,
    WSConv3d,
    WSLinear,
    bake,
    convolutions,
    init_standardized,
    standardize,
    standardized,
)

MODELS: dict[str, Callable[..., nn.Module]] = {"cnn": cnn, "resnet8": resnet8, "resnet18": resnet18}
STANDARDIZATIONS: dict[str, type[Standardization]] = {
    "none": NoStandardization,
    "ws": WeightStandardization,
    "scaled": ScaledStandardization,
}

__all__ = [
    "MODELS",
    "STANDARDIZATIONS",
    "NoStandardization",
    "ResNet",
    "ScaledStandardization",
    "ScaledWSConv1d",
    "ScaledWSConv2d",
    "ScaledWSConv3d",
    "ScaledWSLayer",
    "Staged",
    "Standardization",
    "WSConv1d",
    "WSConv2d",
    "WSConv3d",
    "WSLinear",
    "WeightStandardization",
    "bake",
    "check_model",
    "cnn",
    "convolutions",
    "drop_norms",
    "exchange_standardized",
    "init_standardized",
    "resnet8",
    "resnet18",
    "scaled_standardized",
    "standardize",
    "standardize_scaled",
    "standardized",
]
