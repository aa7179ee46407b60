"""Results are rows: one `RoundRecord` a round, one line of `rounds.jsonl` each."""

import json
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from fedwsq.core.checked import LARGEST_FLOAT, checked
from fedwsq.core.types import Channel
from fedwsq.evaluation import Scores, worst_decile
from fedwsq.federation.clock import Times
from fedwsq.federation.fold import Assignment, Folded
from fedwsq.wire import Line, Shared, SideValues
from fedwsq.wire.digest import round_digest

T = TypeVar("T")


@dataclass(frozen=True)
class RoundRecord:
    """One round. Bytes are lengths of real messages; `*_float32` is the same traffic with every
    tensor in float32. None is what was not measured, or cannot be known.
    """

    round: int
    test_accuracy: float | None = None  # 0 to 1; None too when measured on other data or otherwise
    test_accuracy_ema: float | None = None  # e <- 0.9 e + 0.1 accuracy, seeded with the first
    test_loss: float | None = None
    validation_accuracy: float | None = None
    validation_accuracy_ema: float | None = None
    validation_loss: float | None = None
    test_metric: float | None = None  # where a plan names another metric; higher is better
    test_metric_ema: float | None = None
    validation_metric: float | None = None
    validation_metric_ema: float | None = None
    class_accuracy: list[float] | None = None
    client_accuracy: float | None = None  # mean over clients with any, on own test data or mix
    client_accuracy_worst_decile: float | None = None
    train_loss: float | None = None
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    uplink_bytes_float32: int = 0
    downlink_bytes_float32: int = 0
    evaluation_bytes: int = 0  # both ways, to have clients score the model on their own data
    sampled: int = 0
    replied: int = 0
    failed: int = 0
    failures: dict[str, str] = field(default_factory=dict)  # client -> why
    clipped: int = 0  # updates far longer than usual, which count for less
    late: int = 0  # of those failed: not done by the deadline
    missing: int = 0  # of those failed: no answer of any kind
    asked_again: dict[str, str] = field(default_factory=dict)  # client -> why its work was lost
    duplicates: dict[str, int] = field(default_factory=dict)  # client -> answers after its first
    # "round 3, client 7" -> answers to nothing that this round asked
    foreign: dict[str, int] = field(default_factory=dict)
    # Of a round that counts: the share of coded elements on which all agree, and so are known.
    unanimous: float | None = None
    sat_out: int = 0  # sampled, but granted no bits: their channel was too slow
    bits: float | None = None  # mean bits granted per coded parameter
    client_bits: dict[str, float] = field(default_factory=dict)  # of each, where they differ
    scale_ratio: float | None = None  # median over coded tensors of mean local / shared scale
    scale_ratios: dict[str, float] = field(default_factory=dict)  # the same of each coded tensor
    quantization_error: float | None = None  # mean over clients: |decoded - update|^2 / |update|^2
    seconds: float = 0.0
    train_seconds: float = 0.0  # summed over clients, so above `seconds` when side by side
    codec_seconds: float = 0.0  # encoding, summed over clients, and decoding on the server
    eval_seconds: float = 0.0
    simulated_seconds: float | None = None  # on the plan's channels: until the last reply is in
    download_seconds: float | None = None  # of the client whose reply came last, as the next two
    compute_seconds: float | None = None
    upload_seconds: float | None = None
    channels: dict[str, list[float]] = field(default_factory=dict)  # bytes/s up, down, s, s/step
    seed: int = 0
    config: str = ""  # digest of the plan
    packets: str = ""  # digest of the replies that were let in; "" when there was none
    weights: str = ""  # digest of the model after the round

    @property
    def accuracy(self) -> float | None:
        """Whichever accuracy or metric this run measures."""
        values = (
            self.test_accuracy,
            self.validation_accuracy,
            self.test_metric,
            self.validation_metric,
        )
        return next((value for value in values if value is not None), None)

    @property
    def accuracy_ema(self) -> float | None:
        """Its moving average."""
        values = (
            self.test_accuracy_ema,
            self.validation_accuracy_ema,
            self.test_metric_ema,
            self.validation_metric_ema,
        )
        return next((value for value in values if value is not None), None)

    def line(self) -> str:
        """The record as one line of JSON."""
        return json.dumps(asdict(self), allow_nan=False) + "\n"

    @classmethod
    def parse(cls, line: str) -> "RoundRecord":
        """A record from its line; keys of other versions are left out.

        A line that is no record is a ValueError.
        """
        return checked(cls, json.loads(line))


@dataclass(frozen=True)
class Verdict:
    """What evaluation said of the model after a round."""

    on: Literal["test", "validation"] = "test"
    metric: str = "accuracy"
    scores: Scores | None = None  # None: not evaluated
    ema: float | None = None
    clients: Tensor | None = None  # each client's accuracy
    client_bytes: int = 0
    seconds: float = 0.0

    @property
    def value(self) -> float | None:
        return None if self.scores is None else _finite(self.scores.value)

    def accuracy(self, on: str) -> float | None:
        return self.value if self._is(on, accuracy=True) else None

    def accuracy_ema(self, on: str) -> float | None:
        return self.ema if self._is(on, accuracy=True) else None

    def other(self, on: str) -> float | None:
        """The value of a metric that is not accuracy."""
        return self.value if self._is(on, accuracy=False) else None

    def other_ema(self, on: str) -> float | None:
        return self.ema if self._is(on, accuracy=False) else None

    def loss(self, on: str) -> float | None:
        if self.scores is None or self.on != on:
            return None
        return _finite(self.scores.loss)

    @property
    def class_accuracy(self) -> list[float] | None:
        """None too where the data has no classes."""
        if self.scores is None:
            return None
        return self.scores.per_class or None

    @property
    def client_accuracy(self) -> float | None:
        return None if self.clients is None else float(self.clients.mean())

    @property
    def client_accuracy_worst_decile(self) -> float | None:
        return None if self.clients is None else worst_decile(self.clients)

    def _is(self, on: str, accuracy: bool) -> bool:
        evaluated = self.scores is not None and self.on == on
        return evaluated and (self.metric == "accuracy") == accuracy


class Round(NamedTuple):
    """Everything that a row is made of."""

    number: int
    seed: int
    channels: Mapping[int, Channel | None]  # of everyone sampled; None: nothing is simulated
    assignments: Mapping[int, Assignment]  # of those who did not sit out
    folded: Folded
    verdict: Verdict
    times: Times | None
    shared: Shared  # before the round
    weights: str  # digest of the model after it
    seconds: float


def record(done: Round, uplink: Line) -> RoundRecord:
    """The row of a round."""
    row = RoundRecord(
        done.number,
        seed=done.seed,
        packets=round_digest(done.folded.digests),
        weights=done.weights,
    )
    row = _with_scores(row, done)
    row = _with_traffic(row, done)
    row = _with_answers(row, done)
    row = _with_codes(row, done, uplink)
    return _with_times(row, done)


def _with_scores(row: RoundRecord, done: Round) -> RoundRecord:
    """How good the model is."""
    verdict = done.verdict
    return replace(
        row,
        test_accuracy=verdict.accuracy("test"),
        test_accuracy_ema=verdict.accuracy_ema("test"),
        test_loss=verdict.loss("test"),
        validation_accuracy=verdict.accuracy("validation"),
        validation_accuracy_ema=verdict.accuracy_ema("validation"),
        validation_loss=verdict.loss("validation"),
        test_metric=verdict.other("test"),
        test_metric_ema=verdict.other_ema("test"),
        validation_metric=verdict.other("validation"),
        validation_metric_ema=verdict.other_ema("validation"),
        class_accuracy=verdict.class_accuracy,
        client_accuracy=verdict.client_accuracy,
        client_accuracy_worst_decile=verdict.client_accuracy_worst_decile,
        train_loss=_mean(done.folded.metric("loss")),
    )


def _with_traffic(row: RoundRecord, done: Round) -> RoundRecord:
    """What went up and down."""
    folded = done.folded
    assignments = done.assignments.values()
    return replace(
        row,
        uplink_bytes=sum(folded.lengths.values()),
        downlink_bytes=sum(each.down_bytes for each in assignments) + folded.more_down_bytes,
        uplink_bytes_float32=folded.float32_bytes,
        downlink_bytes_float32=sum(each.float32_bytes for each in assignments),
        evaluation_bytes=done.verdict.client_bytes,
    )


def _with_answers(row: RoundRecord, done: Round) -> RoundRecord:
    """Who was asked, and what became of it."""
    folded = done.folded
    asked = len(done.assignments)
    replied = len(folded.replies)
    return replace(
        row,
        sampled=len(done.channels),
        sat_out=len(done.channels) - asked,
        replied=replied,
        failed=asked - replied,
        failures=_by_client(folded.failures),
        clipped=folded.clipped,
        late=len(folded.late),
        missing=len(folded.missing),
        asked_again=_by_client(folded.asked_again),
        duplicates=_by_client(folded.duplicates),
        foreign=dict(folded.foreign),
    )


def _with_codes(row: RoundRecord, done: Round, uplink: Line) -> RoundRecord:
    """What the uplink's code had to spend, and what it lost."""
    folded = done.folded
    bits = {c: uplink.mean_bits(each.message.rates) for c, each in done.assignments.items()}
    differ = len(set(bits.values())) > 1
    ratios = scale_ratios(done.shared, folded.sides)
    return replace(
        row,
        unanimous=folded.unanimous,
        bits=_mean([bits[client] for client in folded.clients]),
        client_bits={str(client): each for client, each in bits.items() if differ},
        scale_ratio=statistics.median(ratios.values()) if ratios else None,
        scale_ratios=ratios,
        quantization_error=_mean([message.error for message in folded.replies]),
    )


def _with_times(row: RoundRecord, done: Round) -> RoundRecord:
    """How long it took here, and would have taken on the plan's channels."""
    folded = done.folded
    row = replace(
        row,
        seconds=done.seconds,
        train_seconds=sum(folded.metric("train_seconds")),
        codec_seconds=sum(folded.metric("codec_seconds")) + folded.seconds,
        eval_seconds=done.verdict.seconds,
        channels={
            str(client): list(channel)
            for client, channel in done.channels.items()
            if channel is not None
        },
    )
    times = done.times
    if times is None:
        return row
    return replace(
        row,
        simulated_seconds=times.total,
        download_seconds=times.download,
        compute_seconds=times.compute,
        upload_seconds=times.upload,
    )


def scale_ratios(shared: Shared, sides: SideValues) -> dict[str, float]:
    """How far local scales are from the shared ones: mean local / shared of each tensor."""
    ratios: dict[str, float] = {}
    for vector, states in shared.items():
        for name, state in states.items():
            # A zero update has no scale of its own.
            local = [side for side in sides.get(vector, {}).get(name, []) if any(side)]
            comparable = local and state.numel() == len(local[0])
            if not comparable or not (state > 0).all():
                continue
            mean = torch.tensor(local, dtype=torch.float64).mean(0) / state
            label = name if vector == "delta" else f"{vector}/{name}"
            ratios[label] = float(mean.mean())
    return ratios


def _by_client(found: Mapping[int, T]) -> dict[str, T]:
    """As JSON has it, whose names are strings; in ascending order."""
    return {str(client): each for client, each in sorted(found.items())}


def _mean(values: list[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _finite(value: float) -> float | None:
    """JSON has no number for a model that diverged, and readers of rows want none near it."""
    return value if abs(value) <= LARGEST_FLOAT else None
