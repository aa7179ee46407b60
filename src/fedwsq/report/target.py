"""Bytes to accuracy: what was sent, both ways, until a run was good enough and stayed so."""

import math
from collections.abc import Sequence

from fedwsq.federation.record import RoundRecord
from fedwsq.report.curves import total_bytes
from fedwsq.report.groups import Group

SHARE = 0.95  # of the best that any of them reached


def bytes_to(rows: Sequence[RoundRecord], target: float) -> int | None:
    """All bytes up to the round after which the moving average never falls below `target` again.

    None if it never stayed there.
    """
    sent = 0
    reached: int | None = None
    for row in rows:
        sent += total_bytes(row)
        average = row.accuracy_ema
        if average is None:
            continue
        if average < target:
            reached = None
        elif reached is None:
            reached = sent
    return reached


def usual_target(groups: Sequence[Group]) -> float | None:
    """A whole percentage that the best of them reached early enough for others to follow."""
    ends = []
    for group in groups:
        for run in group.runs:
            averages = [row.accuracy_ema for row in run.rows if row.accuracy_ema is not None]
            ends += averages[-1:]
    if not ends or max(ends) <= 0:
        return None
    return math.floor(100 * SHARE * max(ends)) / 100
