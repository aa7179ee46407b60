"""For those who send again and again: what one code lost goes into the next."""

from collections.abc import Mapping
from typing import TypedDict

import torch
from torch import Tensor

from fedwsq.codecs import Codec, Packet
from fedwsq.core.errors import ConfigError
from fedwsq.core.types import Params, Rate
from fedwsq.parts.dictionaries import make_key, make_label, make_link, unpack
from fedwsq.parts.parcel import VECTOR, Parcel
from fedwsq.wire.link import Select


class CompressorState(TypedDict):
    """What a compressor remembers: for `torch.save`, which can load it with `weights_only`."""

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
            messages=self._messages, residuals=dict(self._residuals), scales=dict(self._scales)
        )

    def load_state_dict(self, state: CompressorState) -> None:
        """Go on from where `state_dict` was taken; `ConfigError` for what it never gave."""
        require_state(state)
        self._messages = state["messages"]
        self._residuals = dict(state["residuals"])
        self._scales = dict(state["scales"])

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
        case {"messages": int(sent), "residuals": dict(residuals), "scales": dict(scales)}:
            tensors = [*residuals.values(), *scales.values()]
            if sent >= 0 and all(isinstance(x, Tensor) for x in tensors):
                return
    raise ConfigError("this is not what state_dict() of a Compressor gave")
