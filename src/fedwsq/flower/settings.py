"""What an app and a node are told: Flower's run config and node config, as plain values."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedwsq.core.errors import ConfigError, did_you_mean
from fedwsq.federation.owners import ExampleFormat
from fedwsq.flower.plain import Config
from fedwsq.plan import Plan, load_plan, make_plan, parse_overrides, plan_settings

OWN = "own"  # the split of a plan whose clients bring their data
# Keys of a run config that set one key of the plan; "" and 0 leave it as the config has it.
COMMON = {"method": "method", "bits": "uplink.bits", "rounds": "rounds"}
NODE_KEYS = (
    "client",  # which one lives here, with data of its own
    "data",  # that data: a folder, an .npz file or module:function
    "partition-id",  # or which share of a simulation's clients,
    "num-partitions",  # of how many
    "memory",  # a folder for what clients remember
    "device",
    "plan",  # a config that this node has agreed to, in place of the run's
    "keys",  # a folder with its clients' keys for secure sums, and everybody's roster
    "warm",  # false: no process that stays up between messages
)


def plan_of(run: Config) -> Plan:
    """The plan that a run config spells out."""
    overrides = parse_overrides(_words(str(run.get("overrides", ""))))
    for name, key in COMMON.items():
        value = run.get(name)
        if not value:
            continue
        if key in overrides:
            raise ConfigError(f"{key} is given twice, by {name} and in overrides; keep one of them")
        overrides[key] = value
    return load_plan(str(run.get("config") or "quickstart"), overrides)


def _words(overrides: str) -> list[str]:
    """The words of overrides, apart as a shell has them."""
    try:
        return shlex.split(overrides)
    except ValueError as error:
        raise ConfigError(
            f"overrides is {overrides!r}, which cannot be told apart into words: "
            f"{str(error).lower()}; close every quote, or do without, such as "
            "overrides='uplink.bits=2 data.clients=50'"
        ) from None


class Home(NamedTuple):
    """What a node is started with, in its node config."""

    client: int | None
    partition: int | None
    partitions: int | None
    data: str
    memory: str
    device: str
    plan: str
    keys: str

    @classmethod
    def of(cls, node: Config) -> "Home":
        for key in node:
            if key not in NODE_KEYS:
                raise ConfigError(
                    f"unknown key {key} in the node config; it can have "
                    f"{', '.join(NODE_KEYS)}{did_you_mean(key, NODE_KEYS)}"
                )
        partition = _whole(node, "partition-id")
        client = _whole(node, "client")
        return cls(
            partition if client is None else client,
            partition,
            _whole(node, "num-partitions"),
            str(node.get("data", "")),
            str(node.get("memory", "")),
            str(node.get("device", "auto")),
            str(node.get("plan", "")),
            str(node.get("keys", "")),
        )


def with_data(plan: Plan, place: str, classes: int = 0) -> Plan:
    """The plan with the examples of one machine: a folder, an .npz file or `module:function`."""
    settings = plan_settings(plan)
    data = settings["data"]
    for option in plan.data.load.options:
        data.pop(option, None)
    name, key = _loader(place)
    if name == plan.data.load.name:
        data |= plan.data.load.options  # the size of images, the share for tests
    found = make_plan(settings, {"data.name": name} | ({key: place} if key else {}))
    # Not every machine has examples of every class.
    if classes and found.data.load.options.get("classes") == 0:
        return make_plan(plan_settings(found), {"data.classes": classes})
    return found


def _loader(place: str) -> tuple[str, str]:
    """The data set that reads a place, and the setting that says where it is."""
    path = Path(place).expanduser()
    if path.is_dir():
        return "imagefolder", "data.root"
    if path.suffix == ".npz":
        return "npz", "data.path"
    if ":" in place:
        return place, ""
    raise ConfigError(f"data is {place!r}, must be a folder, an .npz file or module:function")


def write_format(form: ExampleFormat, names: Sequence[str] = ()) -> str:
    """What an example looks like, and the names of the classes, if they have any."""
    return json.dumps({**form._asdict(), "names": list(names)})


def read_format(text: str) -> ExampleFormat:
    """What an example looks like, as the server says it."""
    try:
        found = json.loads(text)
        return ExampleFormat(
            int(found["classes"]),
            tuple(int(size) for size in found["shape"]),
            tuple(float(value) for value in found["mean"]),
            tuple(float(value) for value in found["std"]),
            bool(found["augment"]),
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise ConfigError(f"no format of examples: {text[:80]!r}") from None


def read_names(text: str) -> tuple[str, ...]:
    """The names of the classes, in the order of their numbers; none where nobody knows."""
    names = json.loads(text).get("names", ())
    return tuple(str(name) for name in names)


def names_of_config(run: Config) -> tuple[str, ...]:
    """The names of the classes that a run config spells out, in the order of their numbers."""
    said = str(run.get("class-names") or "")
    names = tuple(filter(None, (name.strip() for name in said.split(","))))
    if len(set(names)) < len(names):
        raise ConfigError(f"class-names is {said!r}, which names a class twice")
    return names


def format_of_config(run: Config) -> ExampleFormat:
    """The format that a run config spells out, for a server without data."""
    names = names_of_config(run)
    classes = run.get("classes") or len(names)
    if names and classes != len(names):
        raise ConfigError(f"classes is {classes}, but class-names has {len(names)} names")
    sizes = str(run.get("shape") or "").split("x")
    known = type(classes) is int and classes > 0
    if not known or not all(size.isdigit() for size in sizes):
        raise ConfigError(
            "the server has no data, so it must be told what an example looks like: "
            "classes=10 shape='3x32x32', or test-data=PLACE to test on examples of its own"
        )
    return ExampleFormat(int(classes), tuple(int(size) for size in sizes))


def _whole(node: Config, key: str) -> int | None:
    value = node.get(key)
    if value is None:
        return None
    if type(value) is not int or value < 0:
        raise ConfigError(f"{key} is {value!r} in the node config, must be a whole number from 0")
    return value
