"""How long a command takes to answer what needs no torch: help, a slip of the finger, lists."""

import subprocess
import sys
from functools import partial

from fedwsq.bench.figure import Figure, figure, in_turn

MOST_SECONDS = 0.3  # beyond that, people wait
COMMANDS = ("--help", "--version", "rnu", "ls methods", "levels 4")


def measure() -> list[Figure]:
    taken = in_turn([partial(answer, command) for command in COMMANDS])
    figures = []
    for command, seconds in zip(COMMANDS, taken, strict=True):
        name = f"fedwsq {command}"
        figures.append(figure(name, seconds, unit="s", must=MOST_SECONDS, better="lower"))
    return figures


def answer(command: str) -> None:
    """Type it, and wait until it has answered."""
    words = [sys.executable, "-m", "fedwsq", *command.split()]
    subprocess.run(words, capture_output=True, check=False)
