"""`fedwsq inspect`: what is in a message."""

import argparse

from fedwsq.codecs import CODECS, Packet
from fedwsq.core.errors import MessageError
from fedwsq.core.files import mapped
from fedwsq.wire import decode
from fedwsq.wire.message import EVERYONE

CODEC_NAMES = {codec.wire_id: name for name, codec in CODECS.items()}


def main(args: argparse.Namespace) -> int:
    try:
        data = mapped(args.message)  # what the header rules out never comes into memory
    except OSError as error:
        why = f"{error.strerror}; name a file that holds one message"
        raise MessageError(f"cannot read {args.message}: {why}") from None
    message = decode(data, None)
    key = message.key
    who = "everyone" if key.client == EVERYONE else f"client {key.client}"
    kind = message.kind.name.lower()
    print(f"{kind}, {len(data)} bytes, round {key.round}, {who}, seed {key.seed}")
    accepted = f"last accepted round {message.accepted}"
    print(f"run {message.run.hex()}, nonce {message.nonce.hex()}, {accepted}")
    print(f"agreement {message.agreement.hex()}")
    rates = f"rates {list(message.rates)}"
    print(f"weight {message.weight:g}, quantization error {message.error:.6g}, {rates}")
    for name, value in message.metrics.items():
        print(f"metric {name!r} = {value:g}")
    for vector, states in message.states.items():
        for name, state in states.items():
            print(f"state {vector!r} {name}: {state.tolist()}")
    for vector, packets in message.packets.items():
        for name, packet in packets.items():
            print(f"tensor {vector!r} {name}: {_describe(packet)}")
    if message.text:
        print(f"text {message.text!r}")  # escaped: it may be anything, and this is a terminal
    return 0


def _describe(packet: Packet) -> str:
    codec = CODEC_NAMES.get(packet.codec, f"codec {packet.codec}")
    described = f"{codec}, {packet.rate:g} bits, {len(packet.code)} bytes"
    if not packet.side:
        return described
    scale = "own scale" if packet.own_scale else "shared scale"
    return f"{described}, {scale}, side {list(packet.side)}"
