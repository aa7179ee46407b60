"""Codecs: a flat update to bytes and back.

One codec a file; `CODECS` and `BITS` name them for configs.
"""

import typing

from fedwsq.core import lazy

# Levels are plain numbers, to be had without torch. As in `fedwsq/__init__.py`.
_HOMES = {
    "fedwsq.codecs.base": "Codec Packet Stateless",
    "fedwsq.codecs.bits": "BITS BitPolicy Fixed",
    "fedwsq.codecs.danuq": "Danuq Danuq4 Danuq8",
    "fedwsq.codecs.ecq": "Ecq",
    "fedwsq.codecs.eden": "Eden",
    "fedwsq.codecs.float16": "Float16",
    "fedwsq.codecs.float32": "Float32",
    "fedwsq.codecs.fp": "Fp",
    "fedwsq.codecs.nf": "Nf",
    "fedwsq.codecs.qsgd": "Qsgd",
    "fedwsq.codecs.rates": "Rates",
    "fedwsq.codecs.rotated": "Rotated",
    "fedwsq.codecs.sign": "Sign",
    "fedwsq.codecs.table": "CODECS",
    "fedwsq.codecs.topk": "Topk",
    "fedwsq.codecs.uq": "Uq",
}

if typing.TYPE_CHECKING:
    from fedwsq.codecs.base import Codec, Packet, Stateless
    from fedwsq.codecs.bits import BITS, BitPolicy, Fixed
    from fedwsq.codecs.danuq import Danuq, Danuq4, Danuq8
    from fedwsq.codecs.ecq import Ecq
    from fedwsq.codecs.eden import Eden
    from fedwsq.codecs.float16 import Float16
    from fedwsq.codecs.float32 import Float32
    from fedwsq.codecs.fp import Fp
    from fedwsq.codecs.nf import Nf
    from fedwsq.codecs.qsgd import Qsgd
    from fedwsq.codecs.rates import Rates
    from fedwsq.codecs.rotated import Rotated
    from fedwsq.codecs.sign import Sign
    from fedwsq.codecs.table import CODECS
    from fedwsq.codecs.topk import Topk
    from fedwsq.codecs.uq import Uq
else:
    __getattr__ = lazy.lazily(__name__, _HOMES)

__all__ = [
    "BITS",
    "CODECS",
    "BitPolicy",
    "Codec",
    "Danuq",
    "Danuq4",
    "Danuq8",
    "Ecq",
    "Eden",
    "Fixed",
    "Float16",
    "Float32",
    "Fp",
    "Nf",
    "Packet",
    "Qsgd",
    "Rates",
    "Rotated",
    "Sign",
    "Stateless",
    "Topk",
    "Uq",
]
