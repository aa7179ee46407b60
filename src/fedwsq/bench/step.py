"""Training steps: what standardization and augmentation add; a run against bare PyTorch loops."""

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from fedwsq.bench.bare import BATCH, Loop, images, network, steps
from fedwsq.bench.figure import REPEATS, Figure, figure, in_turn, ratios
from fedwsq.core.threads import one_thread
from fedwsq.data.batches import augment
from fedwsq.federation.simulation import SitePool, simulate
from fedwsq.plan import Plan, load_plan
from fedwsq.training.precision import Precision, resolve_precision
from fedwsq.transports.pool import MALLOC

CPU = torch.device("cpu")
SHARD = 10 * BATCH  # the paper's: 50,000 pictures over 100 clients, ten batches an epoch
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


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
    """A step with weight standardization over the same step without.

    Each in a process that is set up like a worker.
    """
    both = [Loop(model, 1, precision, ws=True), Loop(model, 1, precision, ws=False)]
    with bare_loops(both, {**ONE_THREAD, **MALLOC}) as (ws, plain):
        with_ws, without = in_turn([lambda: side_by_side(ws), lambda: side_by_side(plain)], repeats)
    return figure(
        f"{model} step, WS / without",
        ratios(with_ws, without),
        must=1.05,
        better="lower",
        note=f"{precision}, {1e3 * statistics.median(without):.0f} ms a step without",
    )


def augmentation(precision: Precision, repeats: int = 21) -> Figure:
    """The share of augmentation in a ResNet-8 step."""
    x, _ = images(BATCH).train.take(torch.arange(BATCH))
    rng = torch.Generator()
    train = steps(network("resnet8"), 1, precision)
    step, batch = in_turn([train, lambda: augment(x, rng)], repeats)
    return figure(
        "augmentation / ResNet-8 step",
        [100 * ratio for ratio in ratios(batch, step)],
        unit="%",
        must=5.0,
        better="lower",
        note=f"{1e3 * statistics.median(batch):.2f} ms of {1e3 * statistics.median(step):.0f} ms",
    )


def against_bare(
    model: str, epochs: int, must: float, precision: Precision, repeats: int = REPEATS
) -> Figure:
    """Whole rounds of two clients on two workers over two bare loops that train as much."""
    plan = training_plan(model, epochs, precision)
    count = epochs * SHARD // BATCH
    pool = SitePool(plan, 2, CPU)
    # In turn with the loops, so that both meet the same machine.
    try:
        with bare_loops(2 * [Loop(model, count, precision)]) as (first, second):
            server = simulate(plan).server(pool)
            ours, bare = in_turn([server.step, lambda: side_by_side(first, second)], repeats)
    finally:
        pool.close()

    rate = 2 * count * BATCH / statistics.median(ours)
    note = f"{rate:.0f} samples a second, {count} steps a client, {precision}"
    if (os.cpu_count() or 1) < 2:
        note += "; one core for two workers"
    name = f"{model} run / bare loops, samples a second"
    return figure(name, ratios(bare, ours), must=must, note=note)


def training_plan(model: str, epochs: int, precision: Precision) -> Plan:
    """The paper's local work at 4 bits, for two clients with as much as one of a hundred has."""
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
    loops: list[Loop], environment: Mapping[str, str] = ONE_THREAD
) -> Iterator[list["subprocess.Popen[str]"]]:
    """A process for each loop, that waits for its turn."""
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"from fedwsq.bench.bare import Loop, main; main(Loop{tuple(loop)!r})",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        for loop in loops
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.communicate()  # closes its input, which ends it


def side_by_side(*loops: "subprocess.Popen[str]") -> list[float]:
    """Have the loops train at the same time, and wait for all."""
    for loop in loops:
        assert loop.stdin is not None
        loop.stdin.write("go\n")
        loop.stdin.flush()
    return [float(loop.stdout.readline()) for loop in loops if loop.stdout is not None]
