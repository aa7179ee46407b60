"""Flower's records of arrays: as tensors, and as one array that holds them all, packed."""

import json
from dataclasses import dataclass

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedwsq.core.errors import MessageError
from fedwsq.core.types import Params, Shapes
from fedwsq.parts import unpack
from fedwsq.parts.integers import INTEGERS
from fedwsq.parts.label import FLOATS, Label, read_label, write_label
from fedwsq.parts.parcel import open_parcel
from fedwsq.wire import Link

PLAIN = "numpy.ndarray"  # how Flower serializes its arrays
PACKED = "fedwsq.pack"  # how we do
WISH = "fedwsq.compress"  # the record in which a server says what it wants


@dataclass(frozen=True)
class Wish:
    """How a server wants updates to be coded; it goes out with every message."""

    link: Link

    def record(self) -> ConfigRecord:
        # A label without tensors: the codec with its settings, and the bits.
        label = write_label(Label(self.link, ()))
        return ConfigRecord({"label": label, "error-feedback": self.link.error_feedback})

    @classmethod
    def of(cls, content: RecordDict) -> "Wish | None":
        """The wish that comes with a message; None from a server that has none."""
        record = content.config_records.get(WISH)
        if record is None:
            return None
        label = record.get("label")
        error_feedback = record.get("error-feedback")
        if not isinstance(label, str) or not isinstance(error_feedback, bool):
            raise MessageError(f"{WISH} has {json.dumps(list(record))[:80]}, must have a label")
        link = read_label(label).link
        return cls(Link(link.codec, link.bits, "all", error_feedback=error_feedback))


# Records and tensors.


def tensors_of(record: ArrayRecord) -> Params | None:
    """The arrays as tensors; None if one of them is nothing that can be packed."""
    found = {}
    for name, array in record.items():
        if array.stype != PLAIN:
            return None
        values = array.numpy()
        if str(values.dtype) not in (*FLOATS, *INTEGERS):
            return None
        found[name] = torch.from_numpy(values)
    return found


def record_of(tensors: Params) -> ArrayRecord:
    return ArrayRecord({name: Array(x.numpy()) for name, x in tensors.items()})


def shapes_of(tensors: Params) -> Shapes:
    return {name: tuple(x.shape) for name, x in tensors.items()}


# Records and packed bytes.


def sealed(name: str, data: bytes) -> ArrayRecord:
    """One array with all the bytes: Flower adds half a kilobyte to each."""
    blob = Array(dtype="uint8", shape=(len(data),), stype=PACKED, data=data)
    return ArrayRecord({name: blob})


def sealed_in(record: ArrayRecord) -> tuple[str, bytes] | None:
    """The name and the bytes that `sealed` made a record of; None for any other."""
    for name, array in record.items():
        if array.stype == PACKED:
            return name, array.data
    return None


def moved(data: bytes, base: Params) -> Params:
    """Where an update leads from `base`: what is coded is a difference, the rest the value."""
    update = unpack(data, like=base)
    found = {}
    coded = open_parcel(data).coded
    for name, x in update.items():
        found[name] = _sum(base[name], x) if name in coded else x
    return found


def _sum(base: Tensor, difference: Tensor) -> Tensor:
    return (base.to(difference.dtype) + difference).contiguous()
