"""Communication-efficient federated learning: weight standardization and DANUQ, in real bytes.

import fedwsq

model = fedwsq.standardize(model)                             # weight standardization for any model
summary = fedwsq.run("quickstart", out="runs/mine")            # a whole federated run
packet = fedwsq.Danuq().encode(x, scale, rate=4, seed=0)      # one tensor to bytes
"""

__version__ = "0.1.0"

from fedwsq.algorithms import Algorithm, FedAvg
from fedwsq.codecs import BitPolicy, Codec, Danuq, Fixed, Float32, Packet
from fedwsq.config import dump_plan, load_plan
from fedwsq.core.errors import FedwsqError
from fedwsq.core.seeds import derive
from fedwsq.core.types import Key, Update
from fedwsq.data import Dataset, Examples, Split
from fedwsq.federation.federation import Federation
from fedwsq.federation.plan import Plan
from fedwsq.federation.run import Run, Summary, run
from fedwsq.models import bake, replace_batchnorm, standardize
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
