"""`fedwsq inspect`: what is in a message."""

import argparse
import mmap
import stat
from pathlib import Path

from fedwsq.codecs import CODECS
from fedwsq.core.errors import MessageError
from fedwsq.wire import decode
from fedwsq.wire.message import EVERYONE


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "inspect",
        help="print what is in a message",
        description="Check a message and print its fields. Runs keep theirs with --keep-messages.",
        epilog="example:\n  fedwsq run rounds=1 --keep-messages --out runs/look\n"
        "  fedwsq inspect runs/look/messages/round-1-client-1.fwsq\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("message", type=Path, metavar="MESSAGE", help="a file with one message")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Print it."""
    data = _map(args.message)
    message = decode(data, None)
    names = {codec.wire_id: name for name, codec in CODECS.items()}
    client = "everyone" if message.key.client == EVERYONE else f"client {message.key.client}"
    print(
        f"{message.kind.name.lower()}, {len(data)} bytes, round {message.key.round}, {client}, seed {message.key.seed}"
    )
    print(
        f"run {message.run.hex()}, nonce {message.nonce.hex()}, last accepted round {message.accepted}"
    )
    print(
        f"weight {message.weight:g}, quantization error {message.error:.6g}, rates {list(message.rates)}"
    )
    for name, value in message.metrics.items():
        print(f"metric {name!r} = {value:g}")
    for vector, states in message.states.items():
        for name, state in states.items():
            print(f"state {vector!r} {name}: {state.tolist()}")
    for vector, packets in message.packets.items():
        for name, packet in packets.items():
            scale = "own scale" if packet.own_scale else "shared scale"
            side = f", {scale}, side {list(packet.side)}" if packet.side else ""
            codec = names.get(packet.codec, f"codec {packet.codec}")
            print(
                f"tensor {vector!r} {name}: {codec}, {packet.rate:g} bits, {len(packet.code)} bytes{side}"
            )
    return 0


def _map(path: Path) -> memoryview:
    """The file, read where it is looked at: a header that is wrong is refused before the rest comes into memory."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # a pipe might never end, nor a device
            raise MessageError(
                f"cannot read {path}: it is not a regular file; name a file that holds one message"
            )
        with path.open("rb") as file:
            # An empty file cannot be mapped.
            return memoryview(
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if found.st_size else b""
            )
    except OSError as error:
        raise MessageError(f"cannot read {path}: {error.strerror}") from None
