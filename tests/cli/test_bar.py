"""The live line: what fits of it, and that it says something before anything is done."""

import io

import pytest
from rich.console import Console
from rich.progress import Progress

from fedwsq.cli.bar import NARROW, columns, fitted, room
from fedwsq.cli.progress import beginning
from fedwsq.runs import Run
from harness import tiny

LAST = "accuracy 0.9123, up 80.1 kB, down 480.2 kB"


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (60, f"{LAST}, client 3/5"),
        (53, "accuracy 0.9123, up 80.1 kB, client 3/5"),
        (38, "accuracy 0.9123, client 3/5"),
        (26, "accuracy 0.9123, 3/5"),
    ],
)
def test_the_last_parts_go_first(width, shown):
    assert fitted(LAST, "3/5", width) == shown
    assert len(shown) <= width


def test_between_rounds_there_is_no_client():
    assert fitted(LAST, "", 60) == LAST
    assert fitted(LAST, "", 20) == "accuracy 0.9123"


@pytest.mark.parametrize("width", [40, NARROW, 80, 200])
@pytest.mark.parametrize("rounds", [4, 1000])
def test_the_line_is_whole_on_a_terminal_of_any_width(width, rounds):
    """Count of rounds, text and clock, none of them cut."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    bar = Progress(*columns(console), console=console, auto_refresh=False)
    text = fitted(LAST, "3/5", room(console, rounds))
    bar.add_task(text, total=rounds, completed=3)
    with console.capture() as captured:
        console.print(bar.get_renderable())
    line = captured.get()
    assert f"3/{rounds} " in line
    assert "accuracy 0.9123" in line
    assert "3/5" in line
    assert "0:00:00" in line
    assert "\u2026" not in line  # an ellipsis


def test_the_start_says_what_it_waits_for(tmp_path):
    with Run.create(tiny(), tmp_path / "run", workers=2) as run:
        whole = "starting 2 workers, each loads PyTorch and the data"
        assert beginning(run, 60) == whole
        assert beginning(run, 26) == "starting 2 workers"
    with Run.create(tiny(), tmp_path / "alone", workers=1) as run:
        assert beginning(run, 60) == "round 1, first client at work"
