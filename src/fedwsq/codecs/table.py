"""Every codec by the name that a config has for it."""

from fedwsq.codecs.base import Codec
from fedwsq.codecs.danuq import Danuq, Danuq4, Danuq8
from fedwsq.codecs.ecq import Ecq
from fedwsq.codecs.eden import Eden
from fedwsq.codecs.float16 import Float16
from fedwsq.codecs.float32 import Float32
from fedwsq.codecs.fp import Fp
from fedwsq.codecs.nf import Nf
from fedwsq.codecs.qsgd import Qsgd
from fedwsq.codecs.rotated import Rotated
from fedwsq.codecs.sign import Sign
from fedwsq.codecs.topk import Topk
from fedwsq.codecs.uq import Uq

CODECS: dict[str, type[Codec]] = {
    "danuq": Danuq,
    "danuq4": Danuq4,
    "danuq8": Danuq8,
    "ecq": Ecq,
    "eden": Eden,
    "float16": Float16,
    "float32": Float32,
    "fp": Fp,
    "nf": Nf,
    "qsgd": Qsgd,
    "rotated": Rotated,
    "sign": Sign,
    "topk": Topk,
    "uq": Uq,
}
