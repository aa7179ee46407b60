"""Until when: a deadline is a time of `time.monotonic()`."""

import math
import time

from fedwsq.core.types import Key
from fedwsq.transports.base import Answer, Failure

NOT_BEGUN = "its turn had not come by the deadline"
AT_WORK = "it was still at work at the deadline, and was ended"
LATE = "it answered after the deadline"


def deadline_in(seconds: float) -> float | None:
    """The time that is so many seconds from now; 0 is without a limit."""
    return time.monotonic() + seconds if seconds else None


def seconds_left(deadline: float | None) -> float:
    """Until a deadline, 0 once it is over; infinite without one."""
    if deadline is None:
        return math.inf
    return max(0.0, deadline - time.monotonic())


def is_over(deadline: float | None) -> bool:
    return seconds_left(deadline) == 0


def in_time(answer: Answer, deadline: float | None) -> Answer:
    """An answer that is there now; past the deadline it is a failure, whatever it says."""
    if not is_over(deadline):
        return answer
    return too_late(answer.key, LATE)


def too_late(key: Key, reason: str) -> Failure:
    # A plan's `deadline`; a round in which all are late ends the run with this reason.
    return Failure(key, f"{reason}; raise deadline to wait longer", late=True)
