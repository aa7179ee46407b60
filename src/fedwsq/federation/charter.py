"""What both ends of a federation hold: the plan, the model, and a digest of what they share."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral, Real
from typing import TypeAlias

from fedwsq.core.errors import MessageError
from fedwsq.core.tree import fingerprint
from fedwsq.core.types import Params
from fedwsq.federation.owners import ModelSpec
from fedwsq.plan import PLACES, Plan, plan_settings
from fedwsq.plan.read import dotted
from fedwsq.wire import Line, Message, Schema
from fedwsq.wire.message import VERSION

Settings: TypeAlias = dict[str, object]  # dotted name -> a value that JSON can say


@dataclass(frozen=True)
class Charter:
    """A plan and its model, as server and client each build them for themselves.

    Two ends whose charters differ would not mean the same thing by the same bytes: every message
    carries the digest, whoever receives another one refuses it, and a hello, which carries the
    settings themselves, names the first that differs.
    """

    plan: Plan
    model: ModelSpec

    @property
    def schema(self) -> Schema:
        return self.model.schema

    @cached_property
    def uplink(self) -> Line:
        return Line(self.plan.uplink, self.schema)

    @cached_property
    def start(self) -> Params:
        """The weights of round 0 where broadcasts build on them; drawn once, and never changed."""
        return self.model.initial_params()

    def initial_params(self) -> Params:
        """The weights of round 0, for the caller alone."""
        # Drawing them takes a second, so they are copied where they are at hand, and not kept else.
        if self.plan.downlink.mode != "start":
            return self.model.initial_params()
        return {name: x.clone() for name, x in self.start.items()}

    @cached_property
    def settings(self) -> Settings:
        """Everything that both ends must share to mean the same thing, by dotted name.

        Not where files lie, nor the precision or the device: those may differ, and are reported.
        """
        plan = plan_settings(self.plan)
        parts = ["seed", "algorithm", "training", "model", "uplink", "downlink", "data", "metric"]
        if self.plan.privacy is not None:
            parts.append("privacy")
        shared: Settings = {"wire": VERSION, **comparable({part: plan[part] for part in parts})}
        if self.plan.training.schedule == "published":
            shared["rounds"] = self.plan.rounds  # the learning rates depend on it
        for name in ("training.precision", *PLACES):
            shared.pop(name, None)
        if self.plan.data.partition.name == "own":
            shared = {name: value for name, value in shared.items() if not _data_source(name)}
        for name, value in self.model.format._asdict().items():
            shared[f"data.{name}"] = _plain(value)
        shared["model.tensors"] = self.schema.digest.hex()  # frozen weights count
        if self.plan.downlink.mode == "start":
            # Broadcasts mean something only on top of it.
            shared["model.start"] = fingerprint(self.start)
        return shared

    @cached_property
    def digest(self) -> bytes:
        text = json.dumps(self.settings, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).digest()

    def require(self, message: Message) -> None:
        """Refuse a message of an end that works by other settings."""
        if message.agreement != self.digest:
            raise MessageError(
                f"the other end works by other settings: their digest is "
                f"{message.agreement.hex()}, this end's is {self.digest.hex()}; "
                "a hello names the first that differs"
            )


def difference(mine: Settings, theirs: Mapping[str, object]) -> str | None:
    """The first setting in which two ends differ, with both values; None when they agree."""
    for name in (*mine, *theirs):
        here = json.dumps(mine[name]) if name in mine else "not there"
        there = json.dumps(theirs[name]) if name in theirs else "not there"
        if here != there:
            return f"{name} is {there} at the other end and {here} at this one"
    return None


def comparable(settings: Mapping[str, object]) -> Settings:
    """{"training": {"lr": 1.0}} -> {"training.lr": 1}, as both ends say it."""
    return {name: _plain(value) for name, value in dotted(settings).items()}


def _plain(value: object) -> object:
    """A value as JSON says it; 4 and 4.0 are the same setting, however a plan came by them."""
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    # A data set of somebody's own may have numpy's numbers, which JSON does not know.
    if isinstance(value, Integral):
        return int(value)
    number = float(value)
    return int(number) if number.is_integer() else number


def _data_source(name: str) -> bool:
    """Whether a setting says where examples come from: where clients bring their own, each may."""
    return name.startswith("data.") and name not in ("data.clients", "data.partition.name")
