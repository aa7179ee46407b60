"""`pack` and `unpack`: any dictionary of tensors as bytes, and back."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fedwsq.codecs import CODECS, Codec, Fixed
from fedwsq.codecs.base import name_of
from fedwsq.codecs.rates import USUAL_BITS
from fedwsq.core.errors import ConfigError, MessageError, did_you_mean
from fedwsq.core.types import Key, Params, Rate, Shapes
from fedwsq.parts.label import FLOATS, Label, Row, check_row
from fedwsq.parts.parcel import Parcel, least_bytes, open_parcel
from fedwsq.wire import SELECTS, Link
from fedwsq.wire.link import Select, everything, weights
from fedwsq.wire.parse import require_bytes

SMALLEST_CODED = 16  # elements: below, a scale and its code save nothing worth having
MAX_ELEMENTS = 2**31


def pack(
    tensors: Mapping[str, Tensor],
    codec: str | Codec = "danuq",
    bits: Rate | None = None,
    select: Select | None = None,
    seed: int = 0,
) -> bytes:
    """A dictionary of tensors as bytes that stand for themselves; `unpack` gives it back.

        data = fedwsq.pack(model.state_dict(), "danuq", bits=4)
        model.load_state_dict(fedwsq.unpack(data))

    Floats are coded as float32, each with a scale of its own, and come back in their own type.
    Integers and truth values, and tensors of fewer than 16 elements, travel exact. Without `bits`
    the codec's rate nearest to 4 is used. Without `select` every tensor of two dimensions or more
    is coded, so that norms and biases stay as they are; where there is none of these, every tensor.
    `seed` is for codecs that rotate or round at random. `UpdateError` for what is not finite.
    """
    link = make_link(codec, bits)
    parcel = Parcel.of(make_label(link, tensors, select))
    key = make_key(seed)
    # Nothing is shared, so each packet has its own scale.
    packets = parcel.code(tensors, {}, key)
    return parcel.seal(packets, {}, key)


def unpack(
    data: bytes | memoryview,
    like: Mapping[str, Tensor] | None = None,
    max_elements: int = MAX_ELEMENTS,
) -> Params:
    """The tensors that `pack` or a `Compressor` made `data` of, on the CPU; or `MessageError`.

    Bytes from anywhere are refused unless all of them make sense. With `like`, so are names and
    shapes other than those in it. Without, `data` may stand for 2^22 elements and 160 more for each
    of its bytes: what the sparsest code can mean. More than `max_elements` are never made.
    """
    require_bytes(data, "unpack takes")
    # To Python, true is a number too.
    if type(max_elements) is not int or max_elements < 0:
        raise ConfigError(f"max_elements is {max_elements!r}, must be a whole number from 0")
    parcel = open_parcel(data)
    label = parcel.label
    if label.span > max_elements:
        raise MessageError(
            f"{label.span} elements, at most {max_elements} are taken; "
            "give max_elements to take more"
        )
    if like is not None:
        require_like(label, like)
    elif len(data) < least_bytes(label.span):
        raise MessageError(f"{len(data)} bytes cannot stand for {label.span} elements")
    return parcel.open(data)


def make_link(codec: str | Codec, bits: Rate | None, error_feedback: bool = False) -> Link:
    """A codec by name or as it is, at a rate that it offers."""
    if isinstance(codec, str):
        codec = _by_name(codec)
    if isinstance(codec, type):
        raise ConfigError(f"codec is the class {codec.__name__}; give one, {codec.__name__}()")
    if type(codec) not in CODECS.values():
        raise ConfigError(
            f"{name_of(codec)} is not a codec of the package, and whoever unpacks could not build "
            f"it; use one of {', '.join(CODECS)}"
        )
    if bits is None:
        bits = codec.rates.nearest(USUAL_BITS)
    # To Python, true is a number too.
    if isinstance(bits, bool) or not isinstance(bits, int | float):
        raise ConfigError(f"bits is {bits!r}, must be a number; {name_of(codec)} has {codec.rates}")
    # A link passes over the bits of a codec that has a single rate; here they were asked for.
    codec.rates.require(bits, name_of(codec))
    return Link(codec, Fixed(bits), select="all", error_feedback=error_feedback)


def _by_name(name: str) -> Codec:
    if name not in CODECS:
        raise ConfigError(
            f"codec is {name!r}; it can be {', '.join(CODECS)}{did_you_mean(name, CODECS)}"
        )
    return CODECS[name]()


def make_key(seed: int, number: int = 0) -> Key:
    """Where the randomness of one message starts."""
    if not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise ConfigError(f"seed is {seed!r}, must be a whole number from 0 to 2^64 - 1")
    return Key(seed, number, 0)


def make_label(link: Link, tensors: Mapping[str, Tensor], select: Select | None) -> Label:
    """What there is to say of these tensors; `ConfigError` for one that cannot be packed."""
    _require_dictionary(tensors, "pack")
    worth_coding: Shapes = {}
    for name, x in tensors.items():
        _require_tensor(name, x)
        if _dtype_name(x) in FLOATS and x.numel() >= SMALLEST_CODED:
            worth_coding[name] = tuple(x.shape)
    coded = set(choose(worth_coding, select))

    rows = []
    for name, x in tensors.items():
        row = Row(name, tuple(x.shape), _dtype_name(x), name in coded)
        try:
            check_row(row)
        except ConfigError as error:
            raise ConfigError(f"tensor {name!r}: {error}") from None
        rows.append(row)
    return Label(link, tuple(rows))


def choose(shapes: Shapes, select: Select | None) -> list[str]:
    """The tensors to code, by their shapes alone."""
    if select is None:
        # A norm's vectors lie to one side of zero, where a code for updates has no levels: no
        # trained network survives that.
        return weights(shapes) or everything(shapes)
    if not isinstance(select, str) or select not in SELECTS:
        raise ConfigError(f"select is {select!r}; it can be {', '.join(SELECTS)}")
    return SELECTS[select](shapes)


def require_like(label: Label, like: Mapping[str, Tensor]) -> None:
    """Refuse names and shapes other than those of `like`, in whatever order."""
    _require_dictionary(like, "like")
    for name, x in like.items():
        if not isinstance(x, Tensor):
            raise ConfigError(f"like takes tensors; {name!r} is {type(x).__name__}")
    found = label.shapes
    wanted = {name: tuple(x.shape) for name, x in like.items()}
    for name in [*wanted, *found]:
        if found.get(name) != wanted.get(name):
            here = found.get(name, "not there")
            there = wanted.get(name, "none")
            raise MessageError(f"tensor {name!r} is {here}, expected {there}")


def _require_dictionary(value: object, what: str) -> None:
    if isinstance(value, nn.Module):
        raise ConfigError(f"{what} takes a dictionary of tensors; give the model's state_dict()")
    if not isinstance(value, Mapping):
        raise ConfigError(f"{what} takes a dictionary of tensors, not {type(value).__name__}")


def _require_tensor(name: object, x: object) -> None:
    if not isinstance(name, str):
        raise ConfigError(f"pack takes tensors by name; {name!r} is not a string")
    if not isinstance(x, Tensor):
        raise ConfigError(f"pack takes tensors; {name!r} is {type(x).__name__}")
    if x.layout != torch.strided:
        raise ConfigError(f"tensor {name!r} is sparse; pack its to_dense()")
    # A subclass may have its values elsewhere, whatever it says of its device.
    if x.is_meta and type(x) in (Tensor, nn.Parameter):
        raise ConfigError(
            f"tensor {name!r} is on the device meta, where tensors have no values; "
            "pack it after it was loaded"
        )


def _dtype_name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")
