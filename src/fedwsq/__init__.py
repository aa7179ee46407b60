"""Communication-efficient federated learning: weight standardization and DANUQ, in real bytes.

import fedwsq, torch

# Weight standardization of your own model.
model = fedwsq.standardize(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3)))

# A federated run, to its end.
summary = fedwsq.run("quickstart", {"rounds": 1}, out="runs/mine")

# One tensor to bytes and back, around a scale that server and clients share.
codec = fedwsq.Danuq()
x = 1e-3 * torch.randn(1000)
scale = codec.init(x.numel())
packet = codec.encode(x, scale, rate=4, seed=0)
restored = codec.decode(packet, scale, seed=0)
"""

from fedwsq.algorithms import Algorithm, FedAvg
from fedwsq.codecs import BitPolicy, Codec, Danuq, Fixed, Float32, Packet
from fedwsq.core import version
from fedwsq.core.errors import FedwsqError
from fedwsq.core.seeds import derive
from fedwsq.core.types import Key, Update
from fedwsq.data import Dataset, Examples, Split
from fedwsq.federation.server import Server
from fedwsq.models import bake, replace_batchnorm, standardize
from fedwsq.plan import Plan, dump_plan, load_plan
from fedwsq.runs import Run, Summary, run
from fedwsq.wire import Link, Message, Schema, decode, encode

__version__ = version.VERSION

__all__ = [
    "Algorithm",
    "BitPolicy",
    "Codec",
    "Danuq",
    "Dataset",
    "Examples",
    "FedAvg",
    "FedwsqError",
    "Fixed",
    "Float32",
    "Key",
    "Link",
    "Message",
    "Packet",
    "Plan",
    "Run",
    "Schema",
    "Server",
    "Split",
    "Summary",
    "Update",
    "bake",
    "decode",
    "derive",
    "dump_plan",
    "encode",
    "load_plan",
    "replace_batchnorm",
    "run",
    "standardize",
]
