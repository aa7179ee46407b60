"""Where the time of a ResNet-18 round goes, in one version of the package or in several.

    python benchmarks/profile_round.py [LABEL=SRC ...] [--out OUT] [--repeats 3]
        [--write benchmarks/results/profile.md]

A round of the `cifar10` config on made-up pictures: two clients, five batches of 50 each, 500
pictures to evaluate on, a checkpoint; one process, one thread, in the environment that the version
gives its worker processes. Each version (SRC is the folder that holds its `fedwsq`; none: the one
that Python finds) runs in fresh processes, in turn with the others: a round to warm up, then three
that count. Runs that are in OUT are not run again.

The table has medians of CPU time, which other processes disturb less than time on the clock.
Training is divided as torch.profiler divides it, by the self time of its operations. Speeds, in
billions of additions and multiplications a second, are those of training's convolutions and, beside
them, of a product of large matrices.
"""

import argparse
import functools
import gc
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

Row = dict[str, float]

# What belongs to a part: attributes to look up, in versions that have them. A call within another
# part is that part's.
PARTS = {
    "encode the broadcast": ["fedwsq.federation.server:Server.broadcast"],
    "decode the broadcast": ["fedwsq.federation.site:Site.receive"],
    "data": ["fedwsq.federation.owners:SplitClients.shard"],
    "training": ["fedwsq.algorithms.fedavg:FedAvg.client_update"],
    "code the update": ["fedwsq.wire.line:Line.send", "fedwsq.federation.site:encode"],
    "read and check the reply": ["fedwsq.federation.fold:decode", "fedwsq.wire.line:Line.check"],
    "fold the reply": ["fedwsq.wire.line:Line.accumulate"],
    "server update": ["fedwsq.federation.server:Server.update"],
    "evaluation": ["fedwsq.federation.server:Server.evaluate"],
    "checkpoint": ["fedwsq.runs.checkpoint:save_snapshot"],
}
CLIP, BATCHES = "clipping, optimizer", "data"
# Calls within training that the profiler shall see by name.
MARKED = {
    "fedwsq.training.local:clip_norm": CLIP,
    "fedwsq.training.local:nn.utils.clip_grad_norm_": CLIP,
    "fedwsq.training.optimizers:SgdStepper.step": CLIP,
}
EPOCH = "fedwsq.training.local:LocalTask._epoch"
# Operations of training, by the profiler's name of them or of the nearest one they are part of.
OPERATIONS = {
    "aten::conv2d": "convolution, forward",
    "ConvolutionBackward0": "convolution, backward",
    "aten::group_norm": "group norm",
    "NativeGroupNormBackward0": "group norm",
    "aten::relu": "ReLU",
    "ReluBackward0": "ReLU",
    "Standardize": "weight standardization",
    "StandardizeBackward": "weight standardization",
    "Optimizer.step#SGD.step": CLIP,
    CLIP: CLIP,
    BATCHES: BATCHES,
}
REST_OF_TRAINING = "loss, sums, copies, rest"
TRAINING = [*dict.fromkeys(OPERATIONS.values()), REST_OF_TRAINING]
PICTURES = 500  # that all clients train on, and as many to evaluate on
SPEEDS = ("convolution, forward", "convolution, backward", "matrix product")


def pictures():
    """Noise of CIFAR's shape, augmented and normalized as CIFAR is."""
    from fedwsq.data.dataset import Dataset, Examples

    rng = torch.Generator().manual_seed(0)
    noise = [
        torch.randint(256, (PICTURES, 3, 32, 32), generator=rng, dtype=torch.uint8)
        for _ in range(2)
    ]
    train, test = (Examples([x], torch.arange(PICTURES) % 10) for x in noise)
    return Dataset(train, test, 10, mean=(0.5,) * 3, std=(0.25,) * 3, augment=True)


class Clock:
    """CPU milliseconds of every part, each call's going to the outermost part around it."""

    def __init__(self) -> None:
        self.spent: Row = defaultdict(float)
        self._within = False

    def wrap(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        """`function`, timed, and visible to the profiler as `part`."""

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._within:
                return function(*args, **kwargs)
            self._within, began = True, time.process_time()
            try:
                with torch.profiler.record_function(f"part: {part}"):
                    return function(*args, **kwargs)
            finally:
                self.spent[part] += 1e3 * (time.process_time() - began)
                self._within = False

        return timed


def marked(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def visible(*args: Any, **kwargs: Any) -> Any:
        with torch.profiler.record_function(name):
            return function(*args, **kwargs)

    return visible


def marked_batches(epoch: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    @functools.wraps(epoch)
    def visible(*args: Any) -> Iterator[Any]:
        batches = epoch(*args)
        while True:
            with torch.profiler.record_function(BATCHES):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    return visible


def patch(address: str, change: Callable[[Any], Any]) -> bool:
    """Replace `module:attribute.path` by what `change` makes of it; False where there is none."""
    module, _, path = address.partition(":")
    *owners, name = path.split(".")
    try:
        owner = functools.reduce(getattr, owners, importlib.import_module(module))
        setattr(owner, name, change(getattr(owner, name)))
    except (ImportError, AttributeError):
        return False
    return True


def instrument() -> Clock:
    """Have all parts timed, and every one found in at least one place."""
    clock = Clock()
    for part, addresses in PARTS.items():
        found = [
            patch(address, lambda function, part=part: clock.wrap(function, part))
            for address in addresses
        ]
        if not any(found):
            raise SystemExit(
                f"this version has nothing to time for {part!r}: none of {', '.join(addresses)}"
            )
    for address, name in MARKED.items():
        patch(address, lambda function, name=name: marked(function, name))
    patch(EPOCH, marked_batches)
    return clock


def operations(profile: torch.profiler.profile) -> Row:
    """Each kind of operation's share of training."""
    spent: Row = defaultdict(float)
    whole = 0.0
    for event in profile.events():
        if event.name == "part: training":
            whole += event.cpu_time_total
        kind, outer = None, event
        while outer is not None and outer.name != "part: training":
            kind, outer = kind or OPERATIONS.get(outer.name), outer.cpu_parent
        if outer is not None and kind is not None:
            spent[kind] += event.self_cpu_time_total
    return {kind: spent[kind] / whole for kind in TRAINING[:-1]}


def convolution_work(model: nn.Module) -> list[int]:
    """Additions and multiplications in the convolutions of one picture, forward and backward."""
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 3, 32, 32)).sum().backward()
    counted = counter.get_flop_counts()["Global"]
    return [counted[torch.ops.aten.convolution], counted[torch.ops.aten.convolution_backward]]


def product_speed(precision: str, size: int = 2048, repeats: int = 5) -> float:
    """Of a product of two square matrices, in billions a second; the median."""
    a, b = torch.randn(2, size, size).to(getattr(torch, precision))
    seconds = []
    for _ in range(repeats):
        began = time.process_time()
        a @ b
        seconds.append(time.process_time() - began)
    return 2 * size**3 / 1e9 / statistics.median(seconds)


def rounds(count: int) -> tuple[str, list[Row]]:
    """The precision that `auto` means, and the milliseconds of `count` rounds after one that does
    not count.
    """
    clock = instrument()  # before anything copies the functions' names
    from fedwsq.federation.simulation import simulate
    from fedwsq.plan import load_plan
    from fedwsq.runs import checkpoint
    from fedwsq.training.precision import resolve_precision

    torch.set_num_threads(1)
    device = torch.device("cpu")
    precision = resolve_precision("auto", device)
    settings = {
        "clients_per_round": 2,
        "data": {"name": "profile_round:pictures", "clients": 2, "partition": "iid"},
        "training.epochs": 1,
        "training.batch_size": 50,
        "training.precision": precision,
    }
    simulation = simulate(load_plan("cifar10", settings))
    server = simulation.server(simulation.serial(device))
    work = convolution_work(simulation.model.network)

    def measured(folder: Path) -> Row:
        # What the profiler left behind is not to be gone through in the middle of a round.
        gc.collect()
        clock.spent.clear()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            wall, cpu = time.perf_counter(), time.process_time()
            record = server.step()
            checkpoint.save_snapshot(folder, server.snapshot)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        if record.replied != 2:
            raise SystemExit(f"a client failed: {record.failures}")
        row = divide(dict(clock.spent), operations(profile), 1e3 * wall, 1e3 * cpu)
        speeds = [
            PICTURES * each / 1e6 / row[kind] for kind, each in zip(SPEEDS[:2], work, strict=True)
        ]
        named = zip(SPEEDS, [*speeds, product_speed(precision)], strict=True)
        return row | {f"speed of {kind}": speed for kind, speed in named}

    with tempfile.TemporaryDirectory() as folder:
        return precision, [measured(Path(folder)) for _ in range(1 + count)][1:]


def divide(spent: Row, shares: Row, wall: float, cpu: float) -> Row:
    """A round's parts, training in its own, which add up to the CPU time of the round."""
    training = spent.pop("training")
    row = {"training": training + spent["data"], "round": cpu, "round, on the clock": wall}
    row["rest"] = cpu - training - sum(spent.values())
    row |= {kind: share * training for kind, share in shares.items()}
    row[REST_OF_TRAINING] = training * (1 - sum(shares.values()))
    return row | spent | {"data": row[BATCHES] + spent["data"]}


def run_in_turn(
    versions: dict[str, str], out: Path, repeats: int, count: int
) -> tuple[dict[str, str], dict[str, list]]:
    """The precision and the rounds of each version, every run in a process of its own."""
    rows: dict[str, list[Row]] = {label: [] for label in versions}
    precision = {}
    for repeat in range(repeats):
        for label, source in versions.items():
            file = out / f"{label}-{repeat}.json"
            if not file.exists():
                command = [sys.executable, __file__, "--rounds", str(count), "--json", str(file)]
                environment = {
                    **os.environ,
                    **({"PYTHONPATH": str(Path(source).resolve())} if source else {}),
                }
                subprocess.run(command, check=True, env=environment)
            found = json.loads(file.read_text())
            precision[label] = found["precision"]
            rows[label] += found["rounds"]
            seconds = statistics.median(row["round"] for row in found["rounds"]) / 1e3
            print(f"run {repeat}, {label}: {seconds:.2f} s a round", file=sys.stderr, flush=True)
    return precision, rows


def table(precision: dict[str, str], rows: dict[str, list[Row]]) -> str:
    """Medians of every part in milliseconds of CPU time, and their share of the last version's."""
    *_, last = rows

    def middle(label: str, name: str) -> float:
        return statistics.median(row[name] for row in rows[label])

    def line(name: str, title: str, share: bool = True) -> str:
        cells = [f"{middle(label, name):.0f}" for label in rows]
        cells.append(f"{100 * middle(last, name) / middle(last, 'round'):.1f} %" if share else "")
        return f"| {title} | {' | '.join(cells)} |"

    rounds = {label: [row["round"] for row in each] for label, each in rows.items()}
    spread = " | ".join(f"{min(each):.0f} to {max(each):.0f}" for each in rounds.values())
    versions = " | ".join(f"{label}, {precision[label]}" for label in rows)
    encode, decode, _, _, *others = PARTS
    return "\n".join(
        [
            f"| CPU milliseconds | {versions} | share, {last} |",
            "|---|" + "---|" * (len(rows) + 1),
            *(line(name, name) for name in (encode, decode, "training")),
            *(line(name, f"- {name}") for name in TRAINING),
            *(line(name, name) for name in (*others, "rest", "round")),
            f"| round, shortest to longest | {spread} | |",
            line("round, on the clock", "round, on the clock", share=False),
            *(
                line(f"speed of {kind}", f"speed of {kind}, 10^9 a second", share=False)
                for kind in SPEEDS
            ),
            "",
        ]
    )


def as_a_worker() -> None:
    """Start over in the environment that this version's worker processes have: it can only be set
    from outside.
    """
    from fedwsq.transports import pool as inprocess

    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    environment = {**getattr(inprocess, "MALLOC", {}), **os.environ, **threads}
    if environment != dict(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("versions", nargs="*", metavar="LABEL=SRC")
    parser.add_argument("--out", type=Path, default=Path("runs/profile"))
    parser.add_argument("--rounds", type=int, default=3, help="that count, in each run")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each version")
    parser.add_argument(
        "--json", type=Path, help="run once, in this process, and write every round to this file"
    )
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    if args.json:
        as_a_worker()
        precision, rows = rounds(args.rounds)
        args.json.write_text(json.dumps({"precision": precision, "rounds": rows}, indent=2) + "\n")
        return
    versions = {}
    for each in args.versions or ["now="]:
        label, _, source = each.partition("=")
        if source and not Path(source, "fedwsq").is_dir():
            parser.error(f"{each}: {source} has no folder fedwsq; give the src of a checkout")
        versions[label] = source
    args.out.mkdir(parents=True, exist_ok=True)
    text = table(*run_in_turn(versions, args.out, args.repeats, args.rounds))
    print(text)
    if args.write:
        args.write.write_text(text)


if __name__ == "__main__":
    main()
