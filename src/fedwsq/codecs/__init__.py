"""Codecs: a flat update to bytes and back. One codec a file; `CODECS` and `BITS` name them for configs."""

from fedwsq.codecs.base import Codec, Packet
from fedwsq.codecs.bits import BITS, BitPolicy, Fixed
from fedwsq.codecs.danuq import Danuq
from fedwsq.codecs.float32 import Float32
from fedwsq.codecs.uq import Uq

CODECS: dict[str, type[Codec]] = {"danuq": Danuq, "float32": Float32, "uq": Uq}

__all__ = ["BITS", "CODECS", "BitPolicy", "Codec", "Danuq", "Fixed", "Float32", "Packet", "Uq"]
