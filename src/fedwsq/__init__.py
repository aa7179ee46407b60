"""Communication-efficient federated learning: weight standardization and DANUQ, in real bytes.

import fedwsq, torch

# Weight standardization of your own model.
model = fedwsq.standardize(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3)))

# A federated run, to its end: result.accuracy, result.rounds, result.model.
result = fedwsq.run("quickstart", rounds=1, out="runs/mine")

# One tensor to bytes and back, around a scale that server and clients share.
codec = fedwsq.Danuq()
x = 1e-3 * torch.randn(1000)
scale = codec.init(x.numel())
packet = codec.encode(x, scale, rate=4, seed=0)
restored = codec.decode(packet, scale, seed=0)
"""

import typing

from fedwsq.core import lazy, version

__version__ = version.VERSION

# Nobody waits for torch before it is used. Type checkers and editors read the imports, Python the
# table; a test holds the two against each other.
_HOMES = {
    "fedwsq.algorithms": "Algorithm FedAvg",
    "fedwsq.codecs": "BitPolicy Codec Danuq Fixed Float32 Packet",
    "fedwsq.core.errors": "FedwsqError",
    "fedwsq.core.seeds": "derive",
    "fedwsq.core.types": "Key Update",
    "fedwsq.data": "Dataset Examples Split",
    "fedwsq.federation.server": "Server",
    "fedwsq.models": "bake replace_batchnorm standardize",
    "fedwsq.parts": "Compressor GradientCompression compress_gradients pack unpack",
    "fedwsq.plan": "Plan dump_plan load_plan",
    "fedwsq.runs": "Result Run Summary run",
    "fedwsq.wire": "Link Message Schema decode encode",
}
_PARTS = (
    "algorithms codecs data evaluation federation flower models parts plan runs training "
    "transports wire"
)

if typing.TYPE_CHECKING:
    from fedwsq.algorithms import Algorithm, FedAvg
    from fedwsq.codecs import BitPolicy, Codec, Danuq, Fixed, Float32, Packet
    from fedwsq.core.errors import FedwsqError
    from fedwsq.core.seeds import derive
    from fedwsq.core.types import Key, Update
    from fedwsq.data import Dataset, Examples, Split
    from fedwsq.federation.server import Server
    from fedwsq.models import bake, replace_batchnorm, standardize
    from fedwsq.parts import Compressor, GradientCompression, compress_gradients, pack, unpack
    from fedwsq.plan import Plan, dump_plan, load_plan
    from fedwsq.runs import Result, Run, Summary, run
    from fedwsq.wire import Link, Message, Schema, decode, encode
else:
    __getattr__ = lazy.lazily(__name__, _HOMES, _PARTS)

__all__ = [
    "Algorithm",
    "BitPolicy",
    "Codec",
    "Compressor",
    "Danuq",
    "Dataset",
    "Examples",
    "FedAvg",
    "FedwsqError",
    "Fixed",
    "Float32",
    "GradientCompression",
    "Key",
    "Link",
    "Message",
    "Packet",
    "Plan",
    "Result",
    "Run",
    "Schema",
    "Server",
    "Split",
    "Summary",
    "Update",
    "bake",
    "compress_gradients",
    "decode",
    "derive",
    "dump_plan",
    "encode",
    "load_plan",
    "pack",
    "replace_batchnorm",
    "run",
    "standardize",
    "unpack",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PARTS.split()})
