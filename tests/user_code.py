"""Code outside the package, as a user would bring it: `model.name=user_code:paused_cnn` and the like."""

import os
import signal
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from fedwsq.data import Dataset, Split
from fedwsq.data.digits import digits
from fedwsq.models import cnn


def paused_cnn(classes: int = 10, channels: int = 1) -> nn.Module:
    """The network of the quick start, bit for bit; $TEST_PAUSE_SECONDS go by in each training step."""
    model = cnn(classes, channels)
    model.register_forward_pre_hook(_pause)
    return model


def _pause(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    if module.training:
        if "TEST_PAUSE_MARK" in os.environ:
            Path(os.environ["TEST_PAUSE_MARK"]).touch()
        time.sleep(float(os.environ.get("TEST_PAUSE_SECONDS", "0")))


STEPS_BEFORE_SIGTERM = 0


def terminating_cnn(classes: int = 10, channels: int = 1) -> nn.Module:
    """The same network; after some training steps someone sends its process a SIGTERM, once."""
    model = cnn(classes, channels)
    model.register_forward_pre_hook(_terminate)
    return model


def _terminate(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    global STEPS_BEFORE_SIGTERM
    STEPS_BEFORE_SIGTERM -= module.training
    if module.training and STEPS_BEFORE_SIGTERM == 0:
        os.kill(os.getpid(), signal.SIGTERM)


def failing_cnn(classes: int = 10, channels: int = 1) -> nn.Module:
    """A network that cannot be trained."""
    model = cnn(classes, channels)
    model.register_forward_pre_hook(_fail)
    return model


def _fail(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    if module.training:
        raise RuntimeError("shapes do not fit\nand a second line")


def digits_and_ctrl_c() -> Dataset:
    """Someone presses Ctrl-C while the data is being loaded."""
    os.kill(os.getpid(), signal.SIGINT)
    return digits()


def not_a_model() -> str:
    """A mistake."""
    return "a model"


def first_is_empty(labels: Tensor, clients: int, seed: int) -> Split:
    """Client 0 holds nothing; the others share all examples."""
    ends = torch.linspace(0, len(labels), clients).long()
    return Split(torch.arange(len(labels)), torch.cat([torch.zeros(1, dtype=torch.int64), ends]))
