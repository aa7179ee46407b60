"""Training steps: what weight standardization and augmentation add, and a whole run against bare PyTorch loops."""

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from fedwsq.bench.bare import BATCH, images, network, steps
from fedwsq.bench.figure import REPEATS, Figure, figure, in_turn, ratios
from fedwsq.core.threads import one_thread
from fedwsq.data.batches import augment
from fedwsq.federation.server import Federation
from fedwsq.federation.workload import build_workload
from fedwsq.plan.build import dump_plan, load_plan
from fedwsq.plan.settings import Plan
from fedwsq.training.local import Precision, resolve_precision
from fedwsq.transports.pool import MALLOC, Pool

CPU = torch.device("cpu")
SHARD = 10 * BATCH  # the paper's: 50,000 pictures over 100 clients, ten batches an epoch


def measure() -> list[Figure]:
    """All of them, in the precision that a run would choose."""
    precision = resolve_precision("auto", CPU)
    found = [standardization(precision)]
    with one_thread():
        found.append(augmentation(precision))
    found.append(against_bare("resnet8", epochs=5, must=0.9, precision=precision))
    found.append(against_bare("resnet18", epochs=2, must=0.95, precision=precision))
    return found


def standardization(precision: Precision, model: str = "resnet18", repeats: int = 15) -> Figure:
    """A step with weight standardization over the same step without, each in a process that is set up like a worker."""
    with bare_loops(
        (model, 1, precision, True), (model, 1, precision, False), environment=MALLOC
    ) as (ws, plain):
        with_ws, without = in_turn([lambda: side_by_side(ws), lambda: side_by_side(plain)], repeats)
    note = f"{precision}, {1e3 * statistics.median(without):.0f} ms a step without"
    return figure(
        f"{model} step, WS / without",
        ratios(with_ws, without),
        must=1.05,
        better="lower",
        note=note,
    )


def augmentation(precision: Precision, repeats: int = 21) -> Figure:
    """The share of augmentation in a ResNet-8 step."""
    x, rng = images(BATCH).train.take(torch.arange(BATCH))[0], torch.Generator()
    step, batch = in_turn(
        [steps(network("resnet8"), 1, precision), lambda: augment(x, rng)], repeats
    )
    note = f"{1e3 * statistics.median(batch):.2f} ms of {1e3 * statistics.median(step):.0f} ms"
    return figure(
        "augmentation / ResNet-8 step", [100 * r for r in ratios(batch, step)],
        unit="%", must=5.0, better="lower", note=note,
    )  # fmt: skip


def against_bare(
    model: str, epochs: int, must: float, precision: Precision, repeats: int = REPEATS
) -> Figure:
    """Whole rounds of two clients on two workers, in turn with two bare loops side by side that train as much."""
    plan = training_plan(model, epochs, precision)
    count, workload = epochs * SHARD // BATCH, build_workload(plan)
    pool = Pool(dump_plan(plan), 2, CPU)
    try:
        with bare_loops(*[(model, count, precision)] * 2) as (first, second):
            federation = Federation(workload, pool)
            ours, bare = in_turn([federation.step, lambda: side_by_side(first, second)], repeats)
    finally:
        pool.close()
    rate = 2 * count * BATCH / statistics.median(ours)
    note = f"{rate:.0f} samples a second, {count} steps a client, {precision}"
    if (os.cpu_count() or 1) < 2:
        note += "; one core for two workers"
    return figure(
        f"{model} run / bare loops, samples a second", ratios(bare, ours), must=must, note=note
    )


def training_plan(model: str, epochs: int, precision: Precision) -> Plan:
    """The paper's local work at 4 bits, for two clients that hold as much as one of a hundred would of CIFAR."""
    return load_plan(
        "cifar10",
        {
            "rounds": 1000,
            "eval_every": 1000,
            "clients_per_round": 2,
            "data": {
                "name": "fedwsq.bench.bare:images",
                "samples": 2 * SHARD,
                "clients": 2,
                "partition": "iid",
            },
            "model.name": model,
            "training.epochs": epochs,
            "training.precision": precision,
        },
    )


@contextmanager
def bare_loops(
    *arguments: tuple[Any, ...], environment: Mapping[str, str] | None = None
) -> Iterator[list["subprocess.Popen[str]"]]:
    """A process for each tuple of arguments of `bare.main`, that waits for its turn."""
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    loops = [
        subprocess.Popen(
            [sys.executable, "-c", f"from fedwsq.bench.bare import main; main{each!r}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **threads, **(environment or {})},
        )
        for each in arguments
    ]
    try:
        yield loops
    finally:
        for loop in loops:
            loop.communicate()  # closes its input, which ends it


def side_by_side(*loops: "subprocess.Popen[str]") -> list[float]:
    """Have the loops train at the same time, and wait for all."""
    for loop in loops:
        assert loop.stdin is not None
        loop.stdin.write("go\n")
        loop.stdin.flush()
    return [float(loop.stdout.readline()) for loop in loops if loop.stdout is not None]
