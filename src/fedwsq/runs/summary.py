"""What a run came to."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from fedwsq.core.tree import fingerprint
from fedwsq.federation.record import RoundRecord
from fedwsq.federation.server import Snapshot
from fedwsq.plan import Plan


@dataclass(frozen=True)
class Summary:
    """Accuracy, traffic, and how many times less than float32 that was."""

    rounds: int
    accuracy: float | None
    accuracy_ema: float | None
    best_accuracy: float | None
    best_round: int | None
    uplink_bytes: int
    downlink_bytes: int
    uplink_factor: float
    downlink_factor: float
    total_factor: float
    seconds: float
    precision: str
    seed: int
    weights: str

    def text(self) -> str:
        """As `summary.json` has it."""
        return json.dumps({**asdict(self), "total_bytes": self.total_bytes}, indent=2) + "\n"

    @property
    def total_bytes(self) -> int:
        """Both directions."""
        return self.uplink_bytes + self.downlink_bytes


def summarize(rows: Sequence[RoundRecord], snapshot: Snapshot, plan: Plan) -> Summary:
    """The totals of all rows so far."""
    scored = [row for row in rows if row.accuracy is not None]
    # Of equals the first: by accuracy, then by how early.
    best = max(scored, key=lambda row: (row.accuracy, -row.round), default=None)
    up = sum(row.uplink_bytes for row in rows)
    down = sum(row.downlink_bytes for row in rows)
    up_float32 = sum(row.uplink_bytes_float32 for row in rows)
    down_float32 = sum(row.downlink_bytes_float32 for row in rows)
    return Summary(
        rounds=snapshot.round,
        accuracy=scored[-1].accuracy if scored else None,
        accuracy_ema=snapshot.accuracy_ema,
        best_accuracy=best.accuracy if best else None,
        best_round=best.round if best else None,
        uplink_bytes=up,
        downlink_bytes=down,
        uplink_factor=up_float32 / max(1, up),
        downlink_factor=down_float32 / max(1, down),
        total_factor=(up_float32 + down_float32) / max(1, up + down),
        seconds=sum(row.seconds for row in rows),
        precision=plan.training.precision,
        seed=plan.seed,
        weights=fingerprint(snapshot.server["params"]),
    )
