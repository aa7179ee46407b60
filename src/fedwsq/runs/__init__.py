"""A run in a directory: manifest, checkpoints, rows and a summary; resumed to the same weights."""

from fedwsq.runs.backend import Backend, BackendFactory, Machine, Opened
from fedwsq.runs.checkpoint import load_snapshot, save_snapshot
from fedwsq.runs.program import run
from fedwsq.runs.result import Result
from fedwsq.runs.run import Run, forecast
from fedwsq.runs.summary import Summary

__all__ = [
    "Backend",
    "BackendFactory",
    "Machine",
    "Opened",
    "Result",
    "Run",
    "Summary",
    "forecast",
    "load_snapshot",
    "run",
    "save_snapshot",
]
