"""`fedwsq deploy local`: a SuperLink and its nodes on this machine, for one run."""

import argparse
import shlex
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import util
from pathlib import Path

from fedwsq.cli.progress import sigterm_interrupts
from fedwsq.cli.run import config_and_overrides
from fedwsq.cli.start import INTERRUPTED, saying
from fedwsq.cli.trust import trusting
from fedwsq.core.errors import ConfigError, RunError
from fedwsq.flower.children import Child, Children
from fedwsq.flower.local import RUN_CONFIG, Local, free_ports, listens
from fedwsq.flower.shards import write_shards
from fedwsq.plan import Plan, load_plan, parse_overrides
from fedwsq.runs.directory import free_folder
from fedwsq.runs.lines import line, times_less
from fedwsq.runs.reading import read_run

FEW_ROUNDS = "rounds=10"  # of the quick start, where nobody has said how many
START_SECONDS = 600.0  # of a process that is alive, on a busy machine
LOOK_SECONDS = 0.5


def local(args: argparse.Namespace) -> int:
    if args.nodes < 1:
        raise ConfigError(f"--nodes is {args.nodes}, must be at least 1")
    config, words = config_and_overrides(args.words or [FEW_ROUNDS])
    with trusting(config, words, args.trust):
        plan = split_plan(config, words, args.nodes)
    if args.out:
        require_ours(args.out)
    if args.simulation:
        require_simulation(args.tls)
    folder = (args.out or free_folder("deploy")).absolute()
    here = Local(folder, args.nodes, args.tls, free_ports(1 + args.nodes), args.simulation)
    with saying(f"splitting {plan.data.load.name} over {args.nodes} nodes ..."):
        overrides = overrides_of(words, plan, own=not args.simulation)
        here.prepare({"config": _place(config), "overrides": overrides})
        if not args.simulation:
            write_shards(plan, [here.data(node) for node in range(args.nodes)])
        if plan.uplink.secure and not here.keys.exists():
            from fedwsq.secure.keys import write_keys  # an extra

            write_keys(here.keys, args.nodes)
    print(f"{folder}: each node's examples, logs, and the run itself")

    try:
        with (
            sigterm_interrupts(),
            # Ray's files: in the system's folder, for their sockets' names must be short.
            tempfile.TemporaryDirectory(prefix="ray-") as scratch,
            Children({**here.environment(), "RAY_TMPDIR": scratch}) as children,
        ):
            _start(here, children)
    except KeyboardInterrupt:
        rounds = len(read_run(here.run_folder).rows) if here.run_folder.exists() else 0
        print(f"stopped, and all that was started; {rounds} complete rounds are saved")
        print(f"go on with: {_same_command(args, folder)}")
        return INTERRUPTED
    _show_summary(here)
    return 0


def require_ours(folder: Path) -> None:
    """Refuse a folder that holds something else."""
    if folder.exists() and any(folder.iterdir()) and not (folder / RUN_CONFIG).exists():
        raise ConfigError(f"{folder} holds other things; choose a new folder with --out")


def require_simulation(tls: bool) -> None:
    if tls:
        raise ConfigError("--tls and --simulation: simulated nodes are in one process; drop one")
    if util.find_spec("ray") is None:
        raise ConfigError(
            "--simulation needs Ray, which Flower simulates nodes with: "
            "pip install 'flwr[simulation]'; or leave it out, and nodes are processes"
        )


def split_plan(config: str, words: Sequence[str], nodes: int) -> Plan:
    """The plan of a simulation with a client for each node, whose split the nodes get."""
    said = parse_overrides(words)
    if "data.clients" in said:
        raise ConfigError("data.clients is the number of nodes; say --nodes N instead")
    said.setdefault("clients_per_round", nodes)
    plan = load_plan(config, {**said, "data.clients": nodes})
    if plan.data.partition.name == "own":
        raise ConfigError(
            "data.partition is own: nodes that have data are started with fedwsq deploy node; "
            "fedwsq deploy local splits a data set, so choose another partition"
        )
    return plan


def overrides_of(words: Sequence[str], plan: Plan, own: bool = True) -> str:
    """The overrides of the run; `own`: its nodes bring what they were given."""
    ours: dict[str, object] = {
        "data.clients": plan.data.clients,
        "clients_per_round": plan.clients_per_round,
    }
    if own:
        ours["data.partition"] = "own"
    kept = []
    for word in words:
        key = word.partition("=")[0].strip()
        if key not in ours and not (own and key.startswith("data.partition.")):
            kept.append(word)
    return shlex.join([*kept, *(f"{key}={value}" for key, value in ours.items())])


def _place(config: str) -> str:
    """A shipped config by its name; a file by its path, which other processes can find."""
    return str(Path(config).absolute()) if Path(config).exists() else config


def _start(here: Local, children: Children) -> None:
    """Start everything in its order, and follow the run to its end."""
    for name, value in here.settings.items():
        print(f"export {name}={shlex.quote(value)}")
    link = _child(here, children, "superlink", here.superlink())
    _wait(lambda: listens(here.ports[0]), link)
    if here.tls:
        for number in range(here.nodes):
            admitted = _child(here, children, f"register-{number}", here.register(number))
            _wait_for_success(admitted)
    others = [link]
    for number in range(0 if here.simulation else here.nodes):
        others.append(_child(here, children, f"node-{number}", here.node(number)))
    run = _child(here, children, "flwr", here.run())
    _follow(here, run, others)


def _child(here: Local, children: Children, name: str, command: list[str]) -> Child:
    print(shlex.join(command), flush=True)
    return children.start(name, command, here.log(name))


def _wait(true: Callable[[], bool], child: Child) -> None:
    end = time.monotonic() + START_SECONDS
    while not true():
        if child.ended or time.monotonic() > end:
            why = child.ended or f"{child.name} was not ready after {START_SECONDS:.0f} s"
            raise RunError(f"{why}; its last words, in {child.log}:\n{child.last_lines()}")
        time.sleep(LOOK_SECONDS)


def _wait_for_success(child: Child) -> None:
    _wait(lambda: child.process.poll() == 0, child)


def _follow(here: Local, run: Child, others: list[Child]) -> None:
    """A line for each round, and for each process that ends before its time."""
    shown = 0
    running = list(others)
    while True:
        # In this order: what a run wrote before it ended is still shown.
        ended = run.ended
        if here.run_folder.exists():
            found = read_run(here.run_folder)
            for row in found.rows[shown:]:
                print(line(row, found.rounds), flush=True)
            shown = len(found.rows)
        for child in [child for child in running if child.ended]:
            running.remove(child)
            print(f"{child.ended}; see {child.log}", flush=True)
        if others[0] not in running:
            raise RunError(f"without its SuperLink the run cannot go on; see {others[0].log}")
        if ended:
            break
        time.sleep(LOOK_SECONDS)
    if not here.run_folder.exists() or read_run(here.run_folder).state != "finished":
        raise RunError(f"the run did not finish; its last words, in {run.log}:\n{run.last_lines()}")


def _show_summary(here: Local) -> None:
    found = read_run(here.run_folder)
    summary = found.summary
    assert summary is not None  # it is finished
    print(f"{here.run_folder} after {summary.rounds} rounds, {summary.seconds:.1f} s")
    if summary.accuracy is not None:
        print(f"  {found.metric} {summary.accuracy:.4f}")
    up = times_less(summary.uplink_factor)
    down = times_less(summary.downlink_factor)
    print(f"  uplink {summary.uplink_bytes:,} bytes, {up} than float32")
    print(f"  downlink {summary.downlink_bytes:,} bytes, {down} than float32")
    print(f"  weights {summary.weights}")


def _same_command(args: argparse.Namespace, folder: Path) -> str:
    words = ["fedwsq", "deploy", "local", "--nodes", str(args.nodes), "--out", str(folder)]
    words += ["--tls"] * args.tls + ["--simulation"] * args.simulation
    words += ["--trust"] * args.trust
    return shlex.join([*words, *args.words])
