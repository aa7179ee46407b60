"""Simulated time: how long a round would take on the plan's channels."""

from collections.abc import Mapping
from typing import NamedTuple

from fedwsq.federation.fold import Assignment, Folded
from fedwsq.wire.channels import compute_seconds, download_seconds, upload_seconds


class Times(NamedTuple):
    """What one client's part of a round takes; None is what the server cannot know."""

    download: float
    compute: float | None
    upload: float

    @property
    def total(self) -> float | None:
        if self.compute is None:
            return None
        return self.download + self.compute + self.upload


def slowest(assignments: Mapping[int, Assignment], folded: Folded) -> Times | None:
    """The client whose reply came last; None where nothing is simulated.

    Where some client's work is unknown, so is the round's: its parts are the longest known.
    """
    found = [
        times_of(assignments[client], folded.lengths[client])
        for client in folded.clients
        if assignments[client].channel is not None
    ]
    if not found:
        return None
    if any(times.compute is None for times in found):
        download = max(times.download for times in found)
        upload = max(times.upload for times in found)
        return Times(download, None, upload)
    return max(found, key=lambda times: times.total or 0.0)


def times_of(assignment: Assignment, reply_bytes: int) -> Times:
    """One client's part, from the lengths of its messages and its steps."""
    channel = assignment.channel
    assert channel is not None
    steps = assignment.steps
    compute = None if steps is None else compute_seconds(channel, steps)
    return Times(
        download_seconds(channel, assignment.down_bytes),
        compute,
        upload_seconds(channel, reply_bytes),
    )
