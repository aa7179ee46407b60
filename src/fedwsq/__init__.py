"""Communication-efficient federated learning: weight standardization and DANUQ, in real bytes.

import fedwsq, torch

model = fedwsq.standardize(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3)))  # weight standardization of your model
summary = fedwsq.run("quickstart", {"rounds": 1}, out="runs/mine")         # a federated run, to its end

codec, x = fedwsq.Danuq(), 1e-3 * torch.randn(1000)
scale = codec.init(x.numel())                                              # what server and clients share
packet = codec.encode(x, scale, rate=4, seed=0)                            # one tensor to bytes
restored = codec.decode(packet, scale, seed=0)
"""

__version__ = "0.1.0"

from fedwsq.algorithms import Algorithm, FedAvg
from fedwsq.codecs import BitPolicy, Codec, Danuq, Fixed, Float32, Packet
from fedwsq.core.errors import FedwsqError
from fedwsq.core.seeds import derive
from fedwsq.core.types import Key, Update
from fedwsq.data import Dataset, Examples, Split
from fedwsq.federation.server import Federation
from fedwsq.models import bake, replace_batchnorm, standardize
from fedwsq.plan.build import dump_plan, load_plan
from fedwsq.plan.settings import Plan
from fedwsq.runs.run import Run, Summary, run
from fedwsq.wire import Link, Message, Schema, decode, encode

__all__ = [
    "Algorithm",
    "BitPolicy",
    "Codec",
    "Danuq",
    "Dataset",
    "Examples",
    "FedAvg",
    "Federation",
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
