"""Before the first round: who is there, what they hold, and whether both ends mean the same."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from fedwsq.core.errors import MessageError
from fedwsq.core.types import Key
from fedwsq.federation.charter import Charter
from fedwsq.transports import Reply
from fedwsq.wire import Kind, Message, decode, encode
from fedwsq.wire.message import MAX_WEIGHT
from fedwsq.wire.parse import require_scale


@dataclass(frozen=True)
class Introduction:
    """What a client says of itself; only its sizes count for anything."""

    examples: int
    labels: Sequence[int]
    precision: str
    device: str


def encode_hello(charter: Charter, client: int, run: bytes) -> bytes:
    """The settings go out whole, so that an end that differs can say in what."""
    key = Key(charter.plan.seed, 0, client)
    text = json.dumps(charter.settings)
    hello = Message(Kind.HELLO, key, run, agreement=charter.digest, text=text)
    return encode(hello, charter.schema)


def read_introduction(charter: Charter, reply: Reply, run: bytes) -> Introduction:
    """A client's welcome, or `MessageError`."""
    message = decode(reply.payload, charter.schema, Kind.WELCOME, run)
    charter.require(message)
    if message.key != reply.key:
        raise MessageError(f"welcome to another hello: {message.key}, expected {reply.key}")
    try:
        about = json.loads(message.text)
        labels = [int(count) for count in about["labels"]]
        introduction = Introduction(
            int(about["examples"]), labels, str(about["precision"]), str(about["device"])
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise MessageError(f"a welcome that says nothing: {message.text[:80]!r}") from None
    # Examples are weights: what no weight may be, their number may not be either.
    for count in (introduction.examples, *labels):
        require_scale("number of examples in a welcome", count, MAX_WEIGHT)
    return introduction
