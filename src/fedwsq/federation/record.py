"""Results are rows: one `RoundRecord` a round, one line of `rounds.jsonl` each."""

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class RoundRecord:
    """One round. Bytes are lengths of real messages; `*_float32` is the same traffic with every tensor in float32."""

    round: int
    test_accuracy: float | None = (
        None  # 0 to 1; None when the round was not evaluated, or on other data or otherwise
    )
    test_accuracy_ema: float | None = None  # e <- 0.9 e + 0.1 accuracy, seeded with the first
    test_loss: float | None = None
    validation_accuracy: float | None = None
    validation_accuracy_ema: float | None = None
    validation_loss: float | None = None
    test_metric: float | None = (
        None  # in place of accuracy when the plan names another metric; higher is better
    )
    test_metric_ema: float | None = None
    validation_metric: float | None = None
    validation_metric_ema: float | None = None
    class_accuracy: list[float] | None = None
    client_accuracy: float | None = (
        None  # mean over clients, each on its own test examples or mix of classes
    )
    client_accuracy_worst_decile: float | None = None
    train_loss: float | None = None
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    uplink_bytes_float32: int = 0
    downlink_bytes_float32: int = 0
    sampled: int = 0
    replied: int = 0
    failed: int = 0
    failures: dict[str, str] = field(default_factory=dict)  # client -> why
    sat_out: int = 0  # sampled, but granted no bits: their channel was too slow
    bits: float | None = None  # mean bits granted per coded parameter
    scale_ratio: float | None = (
        None  # median over coded tensors of (mean local scale / shared scale)
    )
    scale_ratios: dict[str, float] = field(default_factory=dict)  # the same of each coded tensor
    quantization_error: float | None = (
        None  # mean over clients of |decoded - update|^2 / |update|^2
    )
    seconds: float = 0.0
    train_seconds: float = 0.0  # summed over clients, so above `seconds` when they run side by side
    codec_seconds: float = 0.0  # encoding, summed over clients, and decoding on the server
    eval_seconds: float = 0.0
    simulated_seconds: float | None = None  # on the plan's channels: until the last reply is in
    download_seconds: float | None = None  # of the client whose reply came last, as the next two
    compute_seconds: float | None = None
    upload_seconds: float | None = None
    channels: dict[str, list[float]] = field(
        default_factory=dict
    )  # client -> bytes/s up, down, latency, s/step
    seed: int = 0
    config: str = ""  # digest of the plan

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

    def line(self) -> str:
        """The record as one line of JSON."""
        return json.dumps(asdict(self), allow_nan=False) + "\n"

    @classmethod
    def parse(cls, line: str) -> "RoundRecord":
        """A record from its line; keys of other versions are left out. A line that is no record is a ValueError."""
        found: Any = json.loads(line)
        if not isinstance(found, dict) or not isinstance(found.get("round"), int):
            raise ValueError(f"not a record: {line!r}")
        known = {f.name for f in fields(cls)}
        return cls(**{key: value for key, value in found.items() if key in known})
