"""Channels: how fast each client's link and machine are, drawn or read from a file.

A slow client shows in a round's simulated time and in the bits that a policy grants it; training
itself is not slowed.
"""

import bisect
import csv
import functools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fedwsq.core.errors import ConfigError
from fedwsq.core.files import file_digest
from fedwsq.core.seeds import numpy_rng
from fedwsq.core.text import open_file
from fedwsq.core.types import Channel, Key

# What any real link and machine keep within; a time computed from such numbers is finite.
RATE_BOUNDS = (1.0, 1e15)  # bytes a second
TIME_BOUNDS = (0.0, 1e6)  # seconds
MAX_TRACE_BYTES = 2**26
RATES = ("up_bytes_per_second", "down_bytes_per_second")
TIMES = ("latency_seconds", "seconds_per_step")


class Channels(Protocol):
    """The channel of a piece of work: the same answer for the same key, in any order."""

    def __call__(self, key: Key) -> Channel | None:
        """The client's channel in that round; None: nothing is simulated."""
        ...

    def digest(self) -> str:
        """A hash of the file that they are read from; "" where there is none."""
        ...


@dataclass(frozen=True)
class NoChannels:
    """Nothing is simulated: every client is as fast as this machine."""

    def __call__(self, key: Key) -> None:
        return None

    def digest(self) -> str:
        return ""


@dataclass(frozen=True)
class Lognormal:
    """Each client's values are drawn once, log-normal around these medians with `sigma`.

    With `fading`, both rates of a client also vary from round to round, by a log-normal factor with
    that sigma. The rates are a fixed broadband line by the FCC's benchmark of 2024 (20 Mbit/s up,
    100 down); the other defaults are round numbers.
    """

    up_bytes_per_second: float = 2.5e6
    down_bytes_per_second: float = 12.5e6
    latency_seconds: float = 0.05
    seconds_per_step: float = 0.01
    sigma: float = 0.5
    fading: float = 0.0

    def __post_init__(self) -> None:
        require(channel_of(self), "lognormal")
        for name in ("sigma", "fading"):
            if not 0 <= getattr(self, name) <= 3:
                raise ConfigError(
                    f"lognormal {name} is {getattr(self, name):g}, must be between 0 and 3"
                )

    def __call__(self, key: Key) -> Channel:
        """The client's own values, times this round's fading."""
        own = numpy_rng(key.seed, "channel", key.client).standard_normal(4)
        now = numpy_rng(key.seed, "fading", key.round, key.client).standard_normal(2)
        logs = (
            self.sigma * own[0] + self.fading * now[0],
            self.sigma * own[1] + self.fading * now[1],
            self.sigma * own[2],
            self.sigma * own[3],
        )
        return bounded(
            *(middle * math.exp(x) for middle, x in zip(channel_of(self), logs, strict=True))
        )

    def digest(self) -> str:
        return ""


@dataclass(frozen=True)
class Measured:
    """Measured as a run goes, where clients are on other machines; these are the first estimates.

    In a simulation there is nothing to measure, and they hold for every client in every round.
    """

    up_bytes_per_second: float = Lognormal.up_bytes_per_second
    down_bytes_per_second: float = Lognormal.down_bytes_per_second
    latency_seconds: float = Lognormal.latency_seconds
    seconds_per_step: float = Lognormal.seconds_per_step

    def __post_init__(self) -> None:
        require(channel_of(self), "measured")

    def __call__(self, key: Key) -> Channel:
        return channel_of(self)

    def digest(self) -> str:
        return ""


@dataclass(frozen=True)
class Trace:
    """Channels read from a file, to replay what was measured elsewhere.

    A CSV with a header: client, up_bytes_per_second, down_bytes_per_second and, where wanted,
    round, latency_seconds and seconds_per_step (0 without). A row holds from its round on, until
    the client's next row; its first row holds before that too. Or a run's rounds.jsonl, whose
    records keep the channels of their round. A client that the file does not name takes the place
    of another: client k of the n named ones stands in for every client with client mod n = k.
    """

    path: str = ""  # must be set

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigError(
                "trace needs a path: a CSV file of channels, or the rounds.jsonl of a run that had "
                "them"
            )

    def __call__(self, key: Key) -> Channel:
        """The row in force."""
        rows = read_trace(self.path).of(key.client)
        after = bisect.bisect_right(rows, key.round, key=lambda row: row.round)
        return rows[max(after - 1, 0)].channel

    def digest(self) -> str:
        """A hash of the file."""
        read_trace(self.path)  # is it there?
        return file_digest(Path(self.path).expanduser())


CHANNELS: dict[str, type[Channels]] = {
    "none": NoChannels,
    "lognormal": Lognormal,
    "measured": Measured,
    "trace": Trace,
}


def download_seconds(channel: Channel, count: float) -> float:
    """From the server's send to the client's last byte."""
    return channel.latency_seconds + count / channel.down_bytes_per_second


def compute_seconds(channel: Channel, steps: float) -> float:
    """Local training."""
    return steps * channel.seconds_per_step


def upload_seconds(channel: Channel, count: float) -> float:
    """From the client's send to the server's last byte."""
    return channel.latency_seconds + count / channel.up_bytes_per_second


def channel_of(settings: Lognormal | Measured) -> Channel:
    """The four numbers that both kinds of settings have."""
    return Channel(*(getattr(settings, name) for name in Channel._fields))


def bounded(*values: float) -> Channel:
    """The nearest channel within all reason."""
    limits = (RATE_BOUNDS, RATE_BOUNDS, TIME_BOUNDS, TIME_BOUNDS)
    return Channel(
        *(min(max(value, low), high) for value, (low, high) in zip(values, limits, strict=True))
    )


def require(channel: Channel, where: str) -> None:
    """Refuse numbers that are beyond all reason."""
    for name, value in channel._asdict().items():
        low, high = RATE_BOUNDS if name in RATES else TIME_BOUNDS
        if not low <= value <= high:  # NaN fails too
            raise ConfigError(f"{where} {name} is {value:g}, must be from {low:g} to {high:g}")


class Row(NamedTuple):
    """One client's channel from a round on."""

    line: int
    client: int
    round: int
    channel: Channel


class Rows(NamedTuple):
    """The rows of a file."""

    named: Mapping[int, list[Row]]  # by client; the rows of each by round
    clients: tuple[int, ...]  # the named ones, ascending

    def of(self, client: int) -> list[Row]:
        """The rows of a client, or of the one that stands in for it."""
        rows = self.named.get(client)
        if rows is not None:
            return rows
        return self.named[self.clients[client % len(self.clients)]]


def read_trace(path: str) -> Rows:
    """The rows of a trace file; parsed again only when the file has changed."""
    file = Path(path).expanduser()
    try:
        found = file.stat()
        if found.st_size > MAX_TRACE_BYTES:
            raise ConfigError(
                f"trace {path} has {found.st_size} bytes, at most {MAX_TRACE_BYTES} are read"
            )
        return _read_trace(file, found.st_mtime_ns, found.st_size)
    except OSError as error:
        raise ConfigError(f"cannot read trace {path}: {error.strerror}") from None


@functools.lru_cache(maxsize=4)
def _read_trace(file: Path, modified: int, size: int) -> Rows:
    with open_file(file) as opened:
        data = opened.read(MAX_TRACE_BYTES + 1)[:MAX_TRACE_BYTES]
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise ConfigError(
            f"trace {file} is not text: it must be a CSV file or a rounds.jsonl"
        ) from None
    try:
        rows = list(record_rows(lines) if file.suffix == ".jsonl" else csv_rows(lines))
        return by_client(rows)
    except (ConfigError, csv.Error) as error:
        raise ConfigError(f"trace {file}: {error}") from None


def csv_rows(lines: list[str]) -> Iterator[Row]:
    """The rows of a CSV file with a header."""
    reader = csv.reader(lines, strict=True)
    header = [name.strip() for name in next(reader, [])]
    needed, optional = ("client", *RATES), ("round", *TIMES)
    for name in needed:
        if name not in header:
            raise ConfigError(f"line 1 has no column {name}; a trace has {', '.join(needed)}")
    for name in header:
        if name not in (*needed, *optional) or header.count(name) > 1:
            raise ConfigError(
                f"line 1: column {name!r} is unknown or there twice; "
                f"more can be {', '.join(optional)}"
            )
    for fields in reader:
        if not fields:
            continue
        where = f"line {reader.line_num}"
        if len(fields) != len(header):
            raise ConfigError(f"{where} has {len(fields)} fields, the header has {len(header)}")
        row = dict(zip(header, fields, strict=True))
        channel = Channel(
            *(number(row.get(name, "0"), f"{where}: {name}") for name in Channel._fields)
        )
        client = whole(row["client"], f"{where}: client")
        yield Row(
            reader.line_num,
            client,
            whole(row.get("round", "1"), f"{where}: round", least=1),
            channel,
        )


def record_rows(lines: list[str]) -> Iterator[Row]:
    """The channels in the records of a run."""
    for line, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            record: Any = json.loads(text)
        except (ValueError, RecursionError):
            raise ConfigError(f"line {line} is not a round's record") from None
        channels = record.get("channels") if isinstance(record, dict) else None
        if not isinstance(record, dict) or not isinstance(channels, dict | None):
            raise ConfigError(f"line {line} is not a round's record")
        round = whole(str(record.get("round")), f"line {line}: round", least=1)
        for client, values in (channels or {}).items():
            where = f"line {line}: channel of client {client}"
            if not isinstance(values, list) or len(values) != len(Channel._fields):
                raise ConfigError(f"{where} must be [{', '.join(Channel._fields)}]")
            channel = Channel(*(number(str(value), f"{where}:") for value in values))
            yield Row(line, whole(client, where), round, channel)


def by_client(rows: list[Row]) -> Rows:
    """Rows sorted out; a client has one for each round."""
    found: dict[int, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row.client, row.round, row.line)):
        require(row.channel, f"line {row.line}:")
        before = found.setdefault(row.client, [])
        if before and before[-1].round == row.round:
            raise ConfigError(
                f"lines {before[-1].line} and {row.line} are both for client {row.client} "
                f"in round {row.round}"
            )
        before.append(row)
    if not found:
        raise ConfigError("holds no channels; it needs at least one client's")
    return Rows(found, tuple(found))


def whole(text: str, where: str, least: int = 0) -> int:
    """A whole number from a file."""
    if not (
        text.strip().isascii() and text.strip().isdigit() and len(text) <= 18 and int(text) >= least
    ):
        raise ConfigError(f"{where} is {text[:40]!r}, must be a whole number, {least} or more")
    return int(text)


def number(text: str, where: str) -> float:
    """A number from a file."""
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{where} is {text[:40]!r}, must be a number") from None
