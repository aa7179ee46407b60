"""Numbers as people read them, and text from anywhere made short."""

from collections.abc import Sequence

from fedwsq.core.text import printable

NOTHING = "–"  # noqa: RUF001 - a dash where there is no number
MOST_TEXT = 300  # characters of a value or a reason: a page is no log


def score(value: float | None, metric: str) -> str:
    """`93.4 %` of accuracy; other metrics have scales of their own."""
    if value is None:
        return NOTHING
    if metric == "accuracy":
        return f"{100 * value:.1f} %"
    return f"{value:.4g}"


def score_range(values: Sequence[float], metric: str) -> str:
    """`92.9 to 93.8 %`; nothing of a single one."""
    if len(values) < 2:
        return ""
    low = score(min(values), metric).removesuffix(" %")
    return f"{low} to {score(max(values), metric)}"


def seconds(value: float) -> str:
    """`12 s`, `3.4 min`, `2.1 h`."""
    if value < 120:
        return f"{value:.0f} s"
    if value < 7200:
        return f"{value / 60:.1f} min"
    return f"{value / 3600:.1f} h"


def count(number: int, what: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def text(value: object) -> str:
    """Anything that a file says, of bounded length and without what steers a terminal."""
    whole = printable(str(value))
    if len(whole) <= MOST_TEXT:
        return whole
    return f"{whole[:MOST_TEXT]} ... ({len(whole):,} characters)"
