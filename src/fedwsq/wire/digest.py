"""A hash of what a reply says of the model: the same in any repetition of its round."""

import hashlib
import struct

import numpy as np

from fedwsq.wire.message import Message

SIZE = 16  # bytes
HEAD = struct.Struct("<BfQQ?Q")  # codec, rate, numel, rows, own scale, length of the code


def reply_digest(message: Message) -> bytes:
    """Of its packets and its weight; not of nonce, run and timings, which no two runs share."""
    digest = hashlib.blake2b(digest_size=SIZE)
    digest.update(struct.pack("<Qdd", message.key.client, message.weight, message.error))
    for vector, packets in message.packets.items():
        for name, packet in packets.items():
            digest.update(f"{vector}/{name}\0".encode())
            fields = (packet.rate, packet.numel, packet.rows, packet.own_scale, len(packet.code))
            digest.update(HEAD.pack(packet.codec, *fields))
            digest.update(np.asarray(packet.side, "<f8").tobytes())
            digest.update(packet.code)
    return digest.digest()


def round_digest(replies: list[bytes]) -> str:
    """Of all replies that a round let in, in client order; "" when there was none."""
    if not replies:
        return ""
    return hashlib.blake2b(b"".join(replies), digest_size=SIZE).hexdigest()
