"""From vectors to bytes and back: `link` decides how each tensor is coded, `message` is the format on the wire."""

from fedwsq.wire.downlink import Downlink, Public
from fedwsq.wire.link import SELECTS, Link, Sent
from fedwsq.wire.message import Kind, Message, Packets, Schema, Shared, decode, encode

__all__ = [
    "SELECTS",
    "Downlink",
    "Kind",
    "Link",
    "Message",
    "Packets",
    "Public",
    "Schema",
    "Sent",
    "Shared",
    "decode",
    "encode",
]
