"""Our SGD and clipping are torch's, bit for bit, without torch's compiler behind them."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from fedwsq.training import Sgd
from fedwsq.training.clipping import clip_norm

SHAPES = [(16, 8, 3, 3), (16,), (10, 16), ()]


def two_models():
    rng = torch.Generator().manual_seed(0)
    values = [torch.randn(shape, generator=rng) for shape in SHAPES]
    return [[nn.Parameter(x.clone()) for x in values] for _ in range(2)]


def give_gradients(*models, seed, missing=None):
    rng = torch.Generator().manual_seed(seed)
    for index, together in enumerate(zip(*models, strict=True)):
        gradient = torch.randn(together[0].shape, generator=rng)
        for p in together:
            p.grad = None if index == missing else gradient.clone()


@pytest.mark.parametrize(
    ("momentum", "nesterov", "decay"),
    [(0.0, False, 0.0), (0.0, False, 1e-3), (0.9, False, 1e-3), (0.9, True, 0.1)],
)
def test_sgd_steps_are_torchs(momentum, nesterov, decay):
    ours, theirs = two_models()
    mine = Sgd(momentum, nesterov).build(iter(ours), decay, 0.0)
    torchs = torch.optim.SGD(
        theirs, lr=0.0, momentum=momentum, nesterov=nesterov, weight_decay=decay
    )
    for step in range(4):
        for group in (*mine.param_groups, *torchs.param_groups):
            group["lr"] = 0.1 / (step + 1)
        give_gradients(ours, theirs, seed=step, missing=1 if step == 2 else None)
        mine.step()
        torchs.step()
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_gradient_is_left_as_it_was():
    ours, _ = two_models()
    give_gradients(ours, seed=0)
    before = [p.grad.clone() for p in ours]
    optimizer = Sgd().build(ours, 0.1, 0.0)
    optimizer.param_groups[0]["lr"] = 1.0
    optimizer.step()
    assert all(torch.equal(p.grad, b) for p, b in zip(ours, before, strict=True))


@pytest.mark.parametrize("limit", [0.5, 5.0, 1000.0])
def test_clipping_is_torchs(limit):
    ours, theirs = two_models()
    give_gradients(ours, theirs, seed=3, missing=0)
    clip_norm(ours, limit)
    nn.utils.clip_grad_norm_(theirs, limit)
    assert ours[0].grad is None
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours[1:], theirs[1:], strict=True))


def test_a_gradient_that_is_not_a_number_is_not_hidden():
    ours, _ = two_models()
    give_gradients(ours, seed=3)
    ours[1].grad[0] = torch.nan
    clip_norm(ours, 10.0)
    assert all(p.grad.isnan().all() for p in ours)


def test_without_gradients_there_is_nothing_to_clip():
    clip_norm([nn.Parameter(torch.ones(2))], 1.0)


def test_training_does_not_import_torchs_compiler():
    code = """
import sys, torch
from torch import nn
from fedwsq.core.types import Key
from fedwsq.training import LocalTask, Shard, Training
model, training = nn.Linear(2, 2), Training(epochs=1, precision="float32")
shard = Shard(torch.rand(4, 2), torch.tensor([0, 1, 0, 1]))
start = {name: p.detach().clone() for name, p in model.named_parameters()}
assert LocalTask(model, shard, Key(0, 1, 0), training, [0.1]).train(start).steps == 4
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
