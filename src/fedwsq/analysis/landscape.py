"""The loss around a model along two directions, each filter of them as long as the model's own.

Li et al. (2018, arXiv:1712.09913): random directions whose filters are scaled to the lengths of the
model's, so that pictures of different models can be compared; biases and norms stay where they are.
Directions depend on a tensor's name and shape alone, so models that are compared share them.
"""

import math
import time
from collections.abc import Callable

import torch

from fedwsq.analysis.subject import Found, Options, Subject
from fedwsq.core.seeds import torch_rng
from fedwsq.core.threads import one_thread
from fedwsq.core.tree import axpy
from fedwsq.core.types import Params
from fedwsq.evaluation import total
from fedwsq.federation.evaluator import Scorer
from fedwsq.federation.owners import EVAL_BATCH

CPU = torch.device("cpu")


def analyze(subject: Subject, options: Options) -> Found:
    """The test loss on a grid; the middle point is the model's own."""
    test = subject.simulation.test
    starts = list(test.starts)[: -(-options.examples // EVAL_BATCH)]
    batches = [test.batch(start) for start in starts]
    scorer = Scorer(subject.simulation.charter, CPU)

    def loss(params: Params) -> float:
        scorer.load(params)
        return total(scorer.score(batch) for batch in batches).loss

    found: Found = {"examples": sum(len(batch.y) for batch in batches), "data": test.name}
    return found | surface(subject.params, loss, options, subject.name)


def surface(
    params: Params, loss: Callable[[Params], float], options: Options, name: str = "model"
) -> Found:
    """Any loss of named tensors, on a grid around them."""

    def finite(here: Params) -> float | None:
        with one_thread():
            found = float(loss(here))
        # Far out it may overflow, and JSON has no word for that.
        return found if math.isfinite(found) else None

    began = time.perf_counter()
    centre = finite(params)
    foreseen = (time.perf_counter() - began) * options.points**2
    options.note(
        f"{name}: landscape of {options.points} x {options.points} points, about {foreseen:.0f} s"
    )
    along = direction(params, options.seed, 0)
    across = direction(params, options.seed, 1)
    last = options.points - 1
    # Exactly 0 in the middle, whatever their number.
    steps = [options.reach * (2 * k / last - 1) for k in range(options.points)]
    losses = []
    for a in steps:
        here = axpy(a, along, params)
        losses.append([finite(axpy(b, across, here)) for b in steps])
    return {
        "seed": options.seed,
        "steps": steps,
        "loss": losses,
        "centre": centre,
        "seconds": time.perf_counter() - began,
    }


def direction(params: Params, seed: int, axis: int) -> Params:
    """A random direction with filters as long as those of `params`."""
    found: Params = {}
    for name, p in params.items():
        if p.dim() < 2:
            found[name] = torch.zeros_like(p)
            continue
        drawn = torch.randn(p.shape, generator=torch_rng(seed, "landscape", axis, name))
        rows = drawn.to(p.dtype).flatten(1)
        lengths = p.detach().flatten(1).norm(dim=1, keepdim=True)
        found[name] = (rows * (lengths / rows.norm(dim=1, keepdim=True))).view(p.shape)
    return found
