"""Parts to take without the rest: dictionaries of tensors as bytes, once or again and again."""

from fedwsq.parts.compressor import Compressor, CompressorState
from fedwsq.parts.dictionaries import pack, unpack
from fedwsq.parts.gradients import GradientCompression, compress_gradients

__all__ = [
    "Compressor",
    "CompressorState",
    "GradientCompression",
    "compress_gradients",
    "pack",
    "unpack",
]
