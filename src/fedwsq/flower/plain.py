"""What server and node say to each other, as plain bytes: neither Flower nor torch is needed here.

A request is some broadcasts and the heads of some orders, each on top of one of the broadcasts; a
response has an answer to each, in the same order.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

Config: TypeAlias = Mapping[str, bool | float | int | str]  # Flower's run config or node config


class Request(NamedTuple):
    """Work for one node."""

    bodies: Sequence[bytes]
    heads: Sequence[bytes]
    on: Sequence[int]  # which of the bodies each head builds on
    format: str  # what an example looks like, as the server has it


class Response(NamedTuple):
    """A node's answers: bytes, or the reason why there are none."""

    payloads: Sequence[bytes]  # b"" where there is none
    reasons: Sequence[str]  # "" where there is a payload
    clients: Sequence[int] = ()  # in answer to a hello: who lives there
    seconds: float = 0.0  # that the node worked for it


class Malformed(ValueError):
    """A message that is not one of ours."""


def refusal(request: Request, reason: str) -> Response:
    """The same reason in answer to every order."""
    count = len(request.heads)
    return Response([b""] * count, [reason] * count)
