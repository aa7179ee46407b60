"""`fedwsq deploy certs` and `fedwsq deploy node`: what other machines need, without torch."""

import argparse
import os
import shlex
import sys
import zipfile
from pathlib import Path

from fedwsq.cli.outputs import writing
from fedwsq.core.errors import ConfigError
from fedwsq.flower.certificates import write_certificates, write_node_key
from fedwsq.flower.local import SETTINGS, config_text
from fedwsq.flower.reach import what_is_wrong
from fedwsq.plan.read import CODE
from fedwsq.secure.session import MIN_COHORT


def certs(args: argparse.Namespace) -> int:
    with writing(args.folder, "choose another folder"):
        written = write_certificates(args.folder, args.host, args.days)
    for path in written:
        print(path)
    return 0


def keys(args: argparse.Namespace) -> int:
    if args.clients < MIN_COHORT:
        raise ConfigError(f"--clients is {args.clients}; secure sums need at least {MIN_COHORT}")
    from fedwsq.secure.keys import write_keys  # which loads torch

    for folder in write_keys(args.folder, args.clients):
        print(folder)
    return 0


def node(args: argparse.Namespace) -> int:
    """Become Flower's SuperNode."""
    words = node_command(args)
    if why := what_is_wrong(args.superlink, args.ca):
        print(why)
    if args.key and not args.key.exists():
        _, public = write_node_key(args.key)
        print(f"made {args.key}; whoever runs the SuperLink lets this node in with")
        print(f"  flwr supernode register {shlex.quote(str(public))}")
    for name in sorted(SETTINGS.keys() - os.environ.keys()):
        print(f"export {name}={SETTINGS[name]}")
    print(shlex.join(words), flush=True)
    environment = {**SETTINGS, **os.environ}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    os.execvpe(words[0], words, environment)


def node_command(args: argparse.Namespace) -> list[str]:
    if args.insecure == bool(args.ca):
        raise ConfigError(
            "a node needs --ca FILE, to know its SuperLink, or --insecure: one of the two"
        )
    if args.client < 0:
        raise ConfigError(f"--client is {args.client}, must be a whole number from 0")
    config: dict[str, str | int] = {"client": args.client, "data": data_place(args.data)}
    if args.keys:
        config["keys"] = str(args.keys.absolute())
    if args.memory:
        config["memory"] = str(args.memory.absolute())

    words = ["flower-supernode", "--superlink", args.superlink]
    words += ["--root-certificates", str(args.ca)] if args.ca else ["--insecure"]
    if args.key:
        words += ["--auth-supernode-private-key", str(args.key)]
    if args.port:
        words += ["--port", str(args.port)]
    return [*words, "--node-config", config_text(config)]


def data_place(given: str) -> str:
    """Where a node's examples are, as the node will read it; what it could not is refused here."""
    path = Path(given).expanduser()
    if path.is_dir():
        return str(path.absolute())
    if CODE.fullmatch(given):
        return given
    if not path.exists():
        raise ConfigError(f"--data is {given}, which is not there")
    if path.suffix != ".npz":
        raise ConfigError(
            f"--data is {given}, must be an .npz file, a folder of images or module:function"
        )
    if not zipfile.is_zipfile(path):
        raise ConfigError(f"--data is {given}, which is no .npz file: numpy.savez writes such")
    return str(path.absolute())
