"""Code outside the package, as a user would bring it: `algorithm.name=user_code:Stuck`."""

import contextlib
import os
import signal
import sys
import time
from dataclasses import dataclass
from os import remove  # noqa: F401  not ours, and in reach by our name
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedwsq.algorithms import FedAvg
from fedwsq.codecs import Packet, Rates, Stateless
from fedwsq.codecs.base import rows_of
from fedwsq.core.errors import MessageError
from fedwsq.core.types import State, Update, Vectors
from fedwsq.data import Dataset, Split
from fedwsq.data.digits import digits
from fedwsq.models import cnn
from fedwsq.training import LocalTask


def stay() -> None:
    """The first process to get here while $TEST_STUCK is set does not go on.

    That path becomes a link to its number.
    """
    with contextlib.suppress(KeyError, FileExistsError):
        # A link: for one alone, and whole from the first moment.
        os.symlink(str(os.getpid()), os.environ["TEST_STUCK"])
        # Longer than any test waits, and not forever if there is no test left to end it.
        time.sleep(600)


@dataclass(frozen=True)
class Stuck(FedAvg):
    """FedAvg; a client of one round, whoever is first or the one named, may `stay`."""

    round: int = 2
    client: int = -1

    def client_update(
        self, received: Vectors, client: State, task: LocalTask
    ) -> tuple[Update, State]:
        """As ever, or never."""
        if task.key.round == self.round and self.client in (-1, task.key.client):
            stay()
        return super().client_update(received, client, task)


def digits_stuck_in_a_worker() -> Dataset:
    """The digits; a worker process may `stay` where it loads them."""
    if Path(sys.argv[0]).name == "worker.py":
        stay()
    return digits()


STEPS_BEFORE_SIGTERM = 0


def terminating_cnn(classes: int = 10, channels: int = 1) -> nn.Module:
    """The quick start's network; after some training steps its process is sent a SIGTERM, once."""
    model = cnn(classes, channels)
    model.register_forward_pre_hook(_terminate)
    return model


def _terminate(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    global STEPS_BEFORE_SIGTERM
    STEPS_BEFORE_SIGTERM -= module.training
    if module.training and STEPS_BEFORE_SIGTERM == 0:
        os.kill(os.getpid(), signal.SIGTERM)


def failing_cnn(classes: int = 10, channels: int = 1) -> nn.Module:
    """A network that cannot be trained, which a trial of a few examples does not show."""
    model = cnn(classes, channels)
    model.register_forward_pre_hook(_fail)
    return model


def _fail(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    if module.training and len(inputs[0]) > 8:
        raise RuntimeError("shapes do not fit\nand a second line")


def digits_and_ctrl_c() -> Dataset:
    """Someone presses Ctrl-C while the data is being loaded."""
    os.kill(os.getpid(), signal.SIGINT)
    return digits()


def not_a_model() -> str:
    """A mistake."""
    return "a model"


def no_split(labels: Tensor, clients: int):  # type: ignore[no-untyped-def]
    """A mistake that no annotation tells."""
    return [list(range(clients))]


def first_is_empty(labels: Tensor, clients: int, seed: int) -> Split:
    """Client 0 holds nothing; the others share all examples."""
    ends = torch.linspace(0, len(labels), clients).long()
    return Split(torch.arange(len(labels)), torch.cat([torch.zeros(1, dtype=torch.int64), ends]))


@dataclass(frozen=True)
class Ternary(Stateless):
    """-1, 0 or 1 times a scale of the packet's own, five to a byte: a rate beyond float32.

    At twice the rate, should that be on offer, every code comes twice.
    """

    wire_id: ClassVar[int] = 201
    draws: ClassVar[bool] = False
    offered: tuple[float, ...] = (1.6,)

    @property
    def rates(self) -> Rates:
        return Rates.of(*self.offered)

    def encode(self, x: Tensor, shared: Tensor, rate: float, seed: int) -> Packet:
        self.rates.require(rate, "ternary")
        scale = float(x.abs().mean()) if x.numel() else 0.0
        signs = (x.flatten().sign() * (x.flatten().abs() > scale / 2)).int() + 1
        signs = torch.cat([signs, signs.new_ones(-len(signs) % 5)]).view(-1, 5)
        code = bytes((signs * torch.tensor([1, 3, 9, 27, 81])).sum(dim=1).tolist())
        twice = round(rate / 1.6)
        return Packet(code * twice, (scale,), rate, x.numel(), rows=rows_of(x.shape))

    def check(self, packet: Packet) -> None:
        if any(byte >= 3**5 for byte in packet.code) or not 0 <= packet.side[0] <= 1e3:
            raise MessageError("ternary code out of range")

    def decode(self, packet: Packet, shared: Tensor, seed: int) -> Tensor:
        code = torch.tensor(list(packet.code), dtype=torch.int64).unsqueeze(1)
        signs = (code // torch.tensor([1, 3, 9, 27, 81])) % 3 - 1
        return signs.flatten()[: packet.numel] * packet.side[0]

    def max_bytes(self, numel: int, rate: float) -> int:
        return -(-numel // 5) * round(rate / 1.6)

    def side_values(self, numel: int, rows: int = 1) -> int:
        return 1


@dataclass(frozen=True)
class Flaky(FedAvg):
    """FedAvg; one client of one round fails, with what a terminal would obey in its text."""

    round: int = 2
    client: int = 1

    def client_update(
        self, received: Vectors, client: State, task: LocalTask
    ) -> tuple[Update, State]:
        if (task.key.round, task.key.client) == (self.round, self.client):
            raise RuntimeError("\x1b[31mred")
        return super().client_update(received, client, task)


def cnn_that_cannot_be_scored(classes: int = 10, channels: int = 1) -> nn.Module:
    """A network that trains, and fails where it is evaluated on more than a trial has."""
    model = cnn(classes, channels)
    model.register_forward_pre_hook(_fail_at_scoring)
    return model


def _fail_at_scoring(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    if not module.training and len(inputs[0]) > 8:
        raise IndexError("no such class")
