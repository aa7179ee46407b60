"""`fedwsq deploy`: from one machine to many, through Flower."""

import argparse
from importlib import import_module, util
from pathlib import Path

from fedwsq.cli.start import loading
from fedwsq.cli.trust import add_trust_option
from fedwsq.core.errors import ConfigError

CERTS = """\
Makes a certificate authority in DIR, unless it is there, and a server's certificate that nodes with
a copy of DIR/ca.crt will trust. ca.key and server.key are secrets: ca.key need not leave DIR,
server.key belongs where the SuperLink runs. 127.0.0.1 and localhost are always among the hosts.

examples:
  fedwsq deploy certs certs --host fl.example.org --host 203.0.113.7
  fedwsq deploy certs certs --days 90             a new certificate, by the same authority
"""
KEYS = """\
Makes an identity for each client, for sums that the server cannot take apart (uplink.secure). Copy
DIR/client-N to the machine of client N by a way that the server does not control, and start its
node with --keys. Whoever runs this command could speak for every client: afterwards delete what is
not needed here.

example:
  fedwsq deploy keys keys --clients 5
"""
LOCAL = """\
CONFIG and KEY=VALUE are as for `fedwsq run`; without CONFIG it is the quick start with 10 rounds.
A CONFIG file can name code outside the package, module:name; --trust runs it unasked.
The data set is split over as many clients as there are nodes, and each node gets its own examples
as a file. Then a SuperLink and the nodes start as processes of this machine, and the run goes
through them; whatever was started is ended with it. Every command is printed as it is given, so
that it can be repeated on other hosts. The same --out again goes on where the run stopped.

examples:
  fedwsq deploy local --nodes 3
  fedwsq deploy local --nodes 3 --tls                  encrypted, and only known nodes are let in
  fedwsq deploy local --nodes 2 --out runs/mine method=fedavg rounds=5
  fedwsq deploy local --nodes 50 --simulation          Flower's own simulation, on Ray
"""
NODE = """\
Starts Flower's SuperNode for one client whose examples are on this machine, and stay there. PATH is
an .npz file, a folder of images, or module:function. With --key the node proves who it is; if there
is no such file, a pair of keys is made, and FILE.pub is what the SuperLink's owner has to register.

examples:
  fedwsq deploy node --data mine.npz --client 0 --superlink fl.example.org:8000 --ca ca.crt
  fedwsq deploy node --data photos/ --client 1 --superlink 127.0.0.1:8000 --insecure
"""


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = verbs.add_parser(
        "deploy",
        help="run on many machines, or on one as if it were many, through Flower",
        description="Certificates, a federation of processes on this machine, a node of many.",
        epilog="docs/deployment.md goes from a laptop to many hosts.",
    )
    parser.set_defaults(main=lambda args: _show_help(parser))
    kinds = parser.add_subparsers(title="commands", metavar="COMMAND")

    certs = _add(kinds, "certs", "make certificates for a SuperLink", CERTS)
    certs.add_argument("folder", type=Path, metavar="DIR", help="where they are written")
    certs.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name or address of the SuperLink's machine; give it once for each",
    )
    certs.add_argument(
        "--days", type=int, default=365, metavar="N", help="how long it is valid (default: 365)"
    )

    keys = _add(kinds, "keys", "make the keys of clients for secure sums", KEYS)
    keys.add_argument("folder", type=Path, metavar="DIR", help="where they are written")
    keys.add_argument(
        "--clients", type=int, required=True, metavar="N", help="how many clients there are"
    )

    local = _add(kinds, "local", "start everything here, run, and end everything", LOCAL)
    local.add_argument(
        "words", nargs="*", metavar="[CONFIG] KEY=VALUE", help="a config, then overrides"
    )
    local.add_argument(
        "--nodes", type=int, default=3, metavar="N", help="how many clients (default: 3)"
    )
    local.add_argument("--tls", action="store_true", help="encrypt, and let only known nodes in")
    local.add_argument(
        "--simulation", action="store_true", help="nodes of Flower's simulation, no processes"
    )
    local.add_argument(
        "--out", type=Path, metavar="DIR", help="where it all is (default: runs/deploy-N)"
    )
    add_trust_option(local)

    node = _add(kinds, "node", "a node with the data of this machine", NODE)
    node.add_argument("--data", required=True, metavar="PATH", help="this machine's examples")
    node.add_argument(
        "--client", required=True, type=int, metavar="N", help="which client it is, from 0"
    )
    node.add_argument(
        "--superlink", required=True, metavar="HOST:PORT", help="where the SuperLink listens"
    )
    node.add_argument(
        "--ca", type=Path, metavar="FILE", help="ca.crt of whoever runs the SuperLink"
    )
    node.add_argument("--key", type=Path, metavar="FILE", help="this node's private key")
    node.add_argument("--insecure", action="store_true", help="without TLS: anybody can read along")
    node.add_argument(
        "--keys", type=Path, metavar="DIR", help="this client's keys, for uplink.secure"
    )
    node.add_argument(
        "--port", type=int, metavar="N", help="of its own, on loopback, if 9094 is another node's"
    )
    node.add_argument(
        "--memory", type=Path, metavar="DIR", help="where the client keeps what it remembers"
    )


def _add(
    kinds: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, what: str, text: str
) -> argparse.ArgumentParser:
    parser = kinds.add_parser(
        name,
        help=what,
        description=f"{what[0].upper()}{what[1:]}.",
        epilog=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(main=lambda args: _run(name, args))
    return parser


def _show_help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return 0


def _run(name: str, args: argparse.Namespace) -> int:
    if util.find_spec("flwr") is None:
        raise ConfigError("fedwsq deploy needs Flower: pip install 'fedwsq[flower]'")
    if name == "local":
        with loading():
            from fedwsq.cli.work.deploy_local import local
        return local(args)
    work = import_module("fedwsq.cli.work.deploy")
    return int(getattr(work, name)(args))
