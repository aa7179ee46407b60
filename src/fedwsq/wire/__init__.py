"""From vectors to bytes and back: `line` codes each tensor, `message` is the format on the wire."""

from fedwsq.wire.line import Line, Sent, SideValues, Sums
from fedwsq.wire.link import SELECTS, Downlink, Link, Uplink
from fedwsq.wire.message import Kind, Message, Packets, Shared, encode
from fedwsq.wire.parse import Opened, decode, kind_of, open_message
from fedwsq.wire.schema import Schema

__all__ = [
    "SELECTS",
    "Downlink",
    "Kind",
    "Line",
    "Link",
    "Message",
    "Opened",
    "Packets",
    "Schema",
    "Sent",
    "Shared",
    "SideValues",
    "Sums",
    "Uplink",
    "decode",
    "encode",
    "kind_of",
    "open_message",
]
