"""Gradients of data-parallel training as messages: a hook of torch's DistributedDataParallel."""

from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from fedwsq.codecs import Codec
from fedwsq.core.errors import ConfigError, UpdateError
from fedwsq.core.seeds import derive
from fedwsq.core.types import Params, Rate
from fedwsq.parts.compressor import Compressor
from fedwsq.parts.dictionaries import unpack


class Bucket(Protocol):
    """Some of a model's gradients that go out together: torch's GradBucket."""

    def buffer(self) -> Tensor:
        """All of them in a row."""

    def gradients(self) -> list[Tensor]:
        """The gradient of each parameter: views of the buffer."""

    def parameters(self) -> list[Tensor]:
        """The parameters, in the same order."""


class GradientCompression:
    """One rank's end: its compressor, and what it has sent so far.

    `sent_bytes` is what went to each of the other ranks: messages, filled up to the longest of any
    rank, and eight bytes for the length of each. `float32_bytes` are the gradients in float32.
    """

    def __init__(self, model: DistributedDataParallel, compressor: Compressor) -> None:
        self.compressor = compressor
        self.sent_bytes = 0
        self.float32_bytes = 0
        self._group = model.process_group
        self._names = {parameter: name for name, parameter in model.module.named_parameters()}

    def exchange(self, bucket: Bucket) -> torch.futures.Future[Tensor]:
        """Put the mean of all ranks' gradients into the bucket; done when this returns."""
        names = [self._names[parameter] for parameter in bucket.parameters()]
        self._average(bucket.buffer(), dict(zip(names, bucket.gradients(), strict=True)))
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    def _average(self, buffer: Tensor, gradients: Params) -> None:
        self.float32_bytes += 4 * buffer.numel()
        try:
            data = self.compressor.compress(gradients)
        except UpdateError:
            # The others wait for this rank: it says nothing, and everybody knows what that means.
            data = b""

        messages = self._gather(data, buffer.device)
        if all(messages):
            mean = mean_of(messages, gradients)
            for name, gradient in gradients.items():
                gradient.copy_(mean[name])
        else:
            # As without compression, where one rank's NaN reaches all: a gradient scaler skips it.
            buffer.fill_(torch.nan)

    def _gather(self, data: bytes, device: torch.device) -> list[bytes]:
        """Every rank's message, in the order of ranks."""
        ranks = dist.get_world_size(self._group)
        length = torch.tensor([len(data)], device=device)
        lengths = [torch.empty_like(length) for _ in range(ranks)]
        dist.all_gather(lengths, length, group=self._group)
        sizes = [int(found) for found in lengths]

        # Gathered tensors have one length, so that all are as long as the longest.
        padded = np.zeros(max(sizes), np.uint8)
        padded[: len(data)] = np.frombuffer(data, np.uint8)
        sent = torch.from_numpy(padded).to(device)
        gathered = [torch.empty_like(sent) for _ in range(ranks)]
        dist.all_gather(gathered, sent, group=self._group)
        self.sent_bytes += length.nbytes + sent.nbytes

        messages = []
        for found, size in zip(gathered, sizes, strict=True):
            messages.append(found[:size].cpu().numpy().tobytes())
        return messages


def mean_of(messages: list[bytes], like: Params) -> Params:
    """The mean of what messages stand for, added up in their order: the same bits on every rank."""
    total = {name: torch.zeros(x.shape) for name, x in like.items()}
    for data in messages:
        for name, x in unpack(data, like).items():
            total[name] += x
    return {name: x / len(messages) for name, x in total.items()}


def compress_gradients(
    model: DistributedDataParallel,
    codec: str | Codec = "danuq",
    bits: Rate | None = 4,
    error_feedback: bool = True,
    seed: int = 0,
) -> GradientCompression:
    """Have `model` exchange its gradients as messages from now on; call it on every rank.

        model = DistributedDataParallel(model)
        compression = fedwsq.compress_gradients(model, "danuq", bits=4)

    Registers a communication hook. Each rank codes its gradients on top of what its own code lost
    before, gets the messages of all ranks and takes the mean of what they stand for, so that all
    hold the same bits. A gradient that is not finite makes the bucket NaN on every rank.
    """
    if not isinstance(model, DistributedDataParallel):
        raise ConfigError(
            f"compress_gradients takes a DistributedDataParallel, not {type(model).__name__}; "
            "wrap the model first: model = DistributedDataParallel(model)"
        )
    rank = dist.get_rank(model.process_group)
    # Ranks that round at random do so independently, so that their errors cancel in the mean.
    compressor = Compressor(codec, bits, error_feedback, seed=derive(seed, "rank", rank))
    compression = GradientCompression(model, compressor)

    # Without annotations: torch compares them with a class that not every build of it has.
    model.register_comm_hook(compression, lambda state, bucket: state.exchange(bucket))
    return compression
