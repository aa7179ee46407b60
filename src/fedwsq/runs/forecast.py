"""What a run would be and cost, before it is started: `fedwsq run --dry-run`."""

import copy
import math
import resource
import statistics
import sys
import time
from dataclasses import dataclass

import torch

from fedwsq.core.threads import one_thread
from fedwsq.core.types import Key, Rate
from fedwsq.federation.charter import Charter
from fedwsq.federation.owners import SplitClients
from fedwsq.federation.server import first_snapshot
from fedwsq.federation.simulation import Simulation
from fedwsq.plan import dump_plan
from fedwsq.runs.backend import Machine
from fedwsq.runs.trial import learn
from fedwsq.wire.message import order_bytes

REPEATS = 3  # of the step that is timed; the fastest counts


@dataclass(frozen=True)
class Forecast:
    """Bytes are exact, or at most where a code's length depends on data; of secure sums, those of
    the ballots alone. The rest is a guess.
    """

    plan: str  # TOML, every default spelled out
    held: SplitClients  # who holds what
    test_examples: int
    parameters: int
    uplink_bytes: int  # of the first round, and of every other where bits are the same
    downlink_bytes: int
    exact: bool
    steps: float  # of a client, in the mean
    round_seconds: float  # without evaluation
    memory_bytes: int  # of all processes together


def foresee(simulation: Simulation, machine: Machine) -> Forecast:
    """Build the first broadcast for real, and time one step."""
    plan = simulation.plan
    charter = simulation.charter
    snapshot = first_snapshot(charter)
    server = simulation.server(simulation.serial(machine.device), snapshot)
    broadcast = server.broadcast(snapshot, 1)
    sizes = [int(size) for size in simulation.clients.split.sizes]

    up = 0
    down = 0
    for client in server.sample(1):
        key = Key(plan.seed, 1, client)
        sends = plan.algorithm.sends
        granted = charter.uplink.grant(key, plan.channels(key), snapshot.shared, sends)
        if granted is None:
            continue
        up += _reply_bytes(charter, granted)
        down += len(broadcast.body) + order_bytes(len(granted))

    steps = statistics.fmean(plan.training.steps(size) for size in sizes)
    seconds = _step_seconds(simulation, machine.device)
    work = plan.clients_per_round * steps * seconds / machine.workers
    return Forecast(
        plan=dump_plan(plan),
        held=simulation.clients,
        test_examples=len(simulation.test.chosen),
        parameters=sum(charter.schema.sizes.values()),
        uplink_bytes=up,
        downlink_bytes=down,
        exact=plan.uplink.codec.rates.fixed_length,
        steps=steps,
        round_seconds=work,
        memory_bytes=_memory(machine.workers),
    )


def _reply_bytes(charter: Charter, granted: tuple[Rate, ...]) -> int:
    plan = charter.plan
    whole = charter.uplink.granted_bytes(granted, plan.algorithm.sends)
    if not plan.uplink.secure:
        return whole
    # A masked code is as wide as the sum of all; keys, shares and the like are left out.
    sum_bits: int = (plan.clients_per_round * (2 ** int(granted[0]) - 1)).bit_length()
    coded: int = sum(charter.uplink.coded_sizes.values())
    return whole + math.ceil(coded * (sum_bits - granted[0]) / 8)


def _step_seconds(simulation: Simulation, device: torch.device) -> float:
    """One step of local training on a copy of the model, with a client's own batch size."""
    charter = simulation.charter
    sizes = simulation.clients.split.sizes
    shard = simulation.clients.shard(int(sizes.argmax()))
    batch = charter.plan.training.batch_size_for(len(shard.y))
    shard = shard._replace(x=shard.x[:batch], y=shard.y[:batch])
    network = copy.deepcopy(charter.model.network).to(device)
    taken = []
    with one_thread(), torch.random.fork_rng(devices=[]):
        for _ in range(1 + REPEATS):
            began = time.perf_counter()
            learn(network, shard, charter, device)
            taken.append(time.perf_counter() - began)
    return min(taken[1:])  # the first one warms up


def _memory(workers: int) -> int:
    """This process holds data and model; so does each worker, and as much again while it trains."""
    unit = 1 if sys.platform == "darwin" else 1024
    here = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    processes = 1 if workers == 1 else 1 + workers
    return int(1.2 * here * processes)
