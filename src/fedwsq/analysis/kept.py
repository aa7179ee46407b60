"""Rounds whose messages were kept: what each of their clients learned.

A message holds what the code left of an update. What the client had before can be had again where
the method keeps no memory on clients: from the model before, with the same batches, its training
gives the same bits.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from fedwsq.analysis.subject import Options, Subject
from fedwsq.core.errors import MessageError, RunError
from fedwsq.core.files import mapped
from fedwsq.core.threads import one_thread
from fedwsq.core.types import Key, Params
from fedwsq.federation.site import Site
from fedwsq.runs.directory import MESSAGES, model_before
from fedwsq.wire import Kind, Message, Schema, decode

CPU = torch.device("cpu")


@dataclass(frozen=True)
class KeptRound:
    """What the clients of a round learned."""

    number: int
    deltas: dict[int, Params]  # by client
    exact: bool  # before they were coded; else as they arrived


def kept_rounds(subject: Subject, options: Options) -> Iterator[KeptRound]:
    """The rounds that the run kept, in order; RunError if it kept none."""
    if subject.plan.uplink.counts:
        raise RunError(
            f"{subject.folder} adds codes up as integers (uplink.counts or uplink.secure), so that "
            "no message has what one client learned; look at a run without"
        )
    numbers = kept_numbers(subject)
    if not numbers:
        raise RunError(
            f"{subject.folder} kept no round to look at: run it with record.rounds=[1, 10], "
            "or repeat it up to a round with --repeat 10"
        )
    site = subject.simulation.site(CPU)
    for number in numbers:
        options.note(f"{subject.name}: updates of round {number}")
        yield read_round(subject, site, number, options)


def kept_numbers(subject: Subject) -> list[int]:
    """The rounds whose model before was kept, and so were the updates of their clients."""
    if subject.plan.uplink.counts:
        return []
    folder = subject.folder / MESSAGES
    names = [path.name for path in folder.glob("round-*-before.safetensors")]
    found = [re.fullmatch(r"round-(\d+)-before\.safetensors", name) for name in names]
    numbers = sorted(int(match[1]) for match in found if match)
    return [number for number in numbers if model_before(subject.folder, number).exists()]


def read_round(subject: Subject, site: Site, number: int, options: Options) -> KeptRound:
    folder = subject.folder / MESSAGES
    charter = subject.simulation.charter
    body_path = folder / f"round-{number}-broadcast.fwsq"
    broadcast = read_message(body_path, charter.schema, Kind.BROADCAST)
    again = not charter.plan.uplink.lossless and can_train_again(subject)
    with one_thread():
        # Read once for all clients: a broadcast is as large as the model.
        start = site.receive(bytes(mapped(body_path))).vectors if again else {}
    deltas: dict[int, Params] = {}
    for client in _clients(subject, number)[: options.clients]:
        path = folder / f"round-{number}-client-{client}.fwsq"
        reply = read_message(path, charter.schema)
        if reply.kind is not Kind.REPLY:
            continue
        if reply.key != Key(charter.plan.seed, number, client):
            raise RunError(f"{path} is a message of another round, client or run")
        if again:
            with one_thread():
                task = site.task(reply.key)
                update, _ = charter.plan.algorithm.client_update(start, {}, task)
            deltas[client] = update.vectors["delta"]
        else:
            packets = reply.packets
            deltas[client] = charter.uplink.receive(packets, broadcast.states, reply.key)["delta"]
    if not deltas:
        raise RunError(
            f"{folder} has no client's update of round {number}: its replies are missing"
        )
    return KeptRound(number, deltas, again or charter.plan.uplink.lossless)


def read_message(path: Path, schema: Schema, kind: Kind | None = None) -> Message:
    """A kept message; RunError, with its name, if it is missing or damaged."""
    try:
        return decode(mapped(path), schema, kind)
    except (OSError, MessageError) as error:
        raise RunError(f"{path} cannot be read: {error}") from None


def can_train_again(subject: Subject) -> bool:
    """Whether a client's work depends on nothing but the broadcast and its data."""
    plan = subject.plan
    remembers = plan.algorithm.init_client(subject.params) or plan.uplink.error_feedback
    # Noise comes from nowhere that could be asked again, and belongs to what was sent.
    return not remembers and plan.privacy is None and plan.downlink.mode != "chain"


def _clients(subject: Subject, number: int) -> list[int]:
    folder = subject.folder / MESSAGES
    names = [path.name for path in folder.glob(f"round-{number}-client-*.fwsq")]
    found = [re.fullmatch(r"round-\d+-client-(\d+)\.fwsq", name) for name in names]
    clients = sorted(int(match[1]) for match in found if match)
    return [client for client in clients if client < subject.plan.data.clients]
