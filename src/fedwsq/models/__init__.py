"""Backbones by name, and weight standardization for any model.

A model is any `nn.Module` that returns logits; those in `MODELS` are `Staged`, for the methods that
look inside.
"""

from collections.abc import Callable

from torch import nn

from fedwsq.models.check import check_model
from fedwsq.models.closed_form import standardized
from fedwsq.models.cnn import cnn
from fedwsq.models.mobilevit import MobileViT, mobilevit_s, mobilevit_xs, mobilevit_xxs
from fedwsq.models.part import frozen, train_only, trainable
from fedwsq.models.replace import replace_batchnorm
from fedwsq.models.resnet import ResNet, resnet8, resnet18, resnet18_quarter, resnet34
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
from fedwsq.models.shufflenet import shufflenet
from fedwsq.models.squeezenet import squeezenet
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
)
from fedwsq.models.vgg import VGG, vgg9
from fedwsq.models.weights import load_weights, weights_digest

MODELS: dict[str, Callable[..., nn.Module]] = {
    "cnn": cnn,
    "resnet8": resnet8,
    "resnet18": resnet18,
    "resnet18_quarter": resnet18_quarter,
    "resnet34": resnet34,
    "vgg9": vgg9,
    "squeezenet": squeezenet,
    "shufflenet": shufflenet,
    "mobilevit_xxs": mobilevit_xxs,
    "mobilevit_xs": mobilevit_xs,
    "mobilevit_s": mobilevit_s,
}
STANDARDIZATIONS: dict[str, type[Standardization]] = {
    "none": NoStandardization,
    "ws": WeightStandardization,
    "scaled": ScaledStandardization,
}

__all__ = [
    "MODELS",
    "STANDARDIZATIONS",
    "VGG",
    "MobileViT",
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
    "frozen",
    "init_standardized",
    "load_weights",
    "mobilevit_s",
    "mobilevit_xs",
    "mobilevit_xxs",
    "replace_batchnorm",
    "resnet8",
    "resnet18",
    "resnet18_quarter",
    "resnet34",
    "scaled_standardized",
    "shufflenet",
    "squeezenet",
    "standardize",
    "standardize_scaled",
    "standardized",
    "train_only",
    "trainable",
    "vgg9",
    "weights_digest",
]
