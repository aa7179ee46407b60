"""For those who send again and again: what one code lost goes into the next."""

from collections.abc import Mapping
from typing import Any, TypedDict

import torch
from torch import Tensor

from fedwsq.codecs import Codec, Packet
from fedwsq.core.errors import ConfigError
from fedwsq.core.types import Params, Rate
from fedwsq.parts.dictionaries import make_key, make_label, make_link, unpack
from fedwsq.parts.label import codec_settings
from fedwsq.parts.parcel import VECTOR, Parcel
from fedwsq.wire.link import Select


class CompressorState(TypedDict):
    """What a compressor remembers: for `torch.save`, which can load it with `weights_only`."""

    settings: dict[str, Any]  # of the compressor: with others it would go on otherwise
    messages: int
    residuals: Params
    scales: Params


class Compressor:
    """A sender with a memory: of what was lost, and of how large each tensor usually is.

        compressor = fedwsq.Compressor("danuq", bits=1)
        data = compressor.compress(gradients)
        gradients = fedwsq.unpack(data)      # anywhere, by anyone

    With `error_feedback` what a code lost is added to the tensor of the same name in the next
    message. A codec that shares a scale (danuq) keeps its moving average here, and each message
    carries the one it was coded with. So a receiver needs no memory: it may have seen all earlier
    messages, some, or none. A message may hold other tensors than the one before it; a name must
    keep its shape.
    """

    def __init__(
        self,
        codec: str | Codec = "danuq",
        bits: Rate | None = 1,
        error_feedback: bool = True,
        select: Select | None = "all",
        seed: int = 0,
    ) -> None:
        self.link = make_link(codec, bits, error_feedback)
        self.select = select
        self.seed = seed
        self._messages = 0
        self._residuals: Params = {}
        self._scales: Params = {}

    def compress(self, tensors: Mapping[str, Tensor]) -> bytes:
        """The next message. Whatever is refused leaves the memory as it was."""
        parcel = Parcel.of(make_label(self.link, tensors, self.select))
        carried = dict(tensors)
        for name in parcel.coded:
            carried[name] = self._with_residual(name, tensors[name])
        known = self._known_scales(parcel)
        shared = {}
        if known:
            shared[VECTOR] = known
        # Another number, another rotation and other roundings.
        key = make_key(self.seed, self._messages + 1)
        packets = parcel.code(carried, shared, key)
        data = parcel.seal(packets, shared, key)

        # From here on nothing is refused, and the memory may move.
        if self.link.error_feedback:
            self._residuals |= parcel.losses(carried, packets, shared, key)
        self._scales |= self._next_scales(parcel, packets, known)
        self._messages += 1
        return data

    def decompress(self, data: bytes, like: Mapping[str, Tensor] | None = None) -> Params:
        """The same as `unpack`: it takes nothing from this end's memory."""
        return unpack(data, like)

    def state_dict(self) -> CompressorState:
        return CompressorState(
            settings=self.settings,
            messages=self._messages,
            residuals=dict(self._residuals),
            scales=dict(self._scales),
        )

    def load_state_dict(self, state: CompressorState) -> None:
        """Go on from where `state_dict` was taken, with the same bytes.

        `ConfigError` for what it never gave, and for the state of a compressor with other settings.
        """
        require_state(state)
        require_same(state["settings"], self.settings)
        self._messages = state["messages"]
        self._residuals = dict(state["residuals"])
        self._scales = dict(state["scales"])

    @property
    def settings(self) -> dict[str, Any]:
        """All that decides about the next message besides what is remembered."""
        (bits,) = self.link.bits.grants
        codec = codec_settings(self.link)
        name = codec.pop("name")
        return {
            "codec": name,
            **{f"codec.{key}": value for key, value in codec.items()},
            "bits": bits,
            "error_feedback": self.link.error_feedback,
            "select": self.select,
            "seed": self.seed,
        }

    def _with_residual(self, name: str, x: Tensor) -> Tensor:
        lost = self._residuals.get(name)
        if lost is None:
            return x
        if lost.shape != x.shape:
            raise ConfigError(
                f"tensor {name!r} is {tuple(x.shape)}, and was {tuple(lost.shape)} before; "
                "another tensor needs another name"
            )
        return x.detach().float() + lost.to(x.device)

    def _known_scales(self, parcel: Parcel) -> Params:
        known = {}
        for name, start in parcel.first_states().items():
            scale = self._scales.get(name)
            # Another shape may have other groups: then it starts anew.
            if scale is not None and scale.shape == start.shape:
                known[name] = scale
        return known

    def _next_scales(self, parcel: Parcel, packets: dict[str, Packet], known: Params) -> Params:
        after = {}
        for name, start in parcel.first_states().items():
            # A codec takes 0 for a scale that is not known yet: the first message calibrates it.
            before = known.get(name, torch.zeros_like(start))
            after[name] = self.link.codec.fold(before, [packets[name].side])
        return after


def require_state(state: object) -> None:
    match state:
        case {
            "settings": dict(),
            "messages": int(sent),
            "residuals": dict(residuals),
            "scales": dict(scales),
        }:
            tensors = [*residuals.values(), *scales.values()]
            if sent >= 0 and all(isinstance(x, Tensor) for x in tensors):
                return
    raise ConfigError("this is not what state_dict() of a Compressor gave")


def require_same(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Refuse the state of a compressor that was made otherwise, by the first that differs."""
    for name, value in ours.items():
        before = theirs.get(name)
        if before != value:
            raise ConfigError(
                f"the state is of a Compressor whose {name} is {before!r}, and of this one it is "
                f"{value!r}; make it with the same settings, or start anew without a state"
            )
