"""A run in a directory: manifest, checkpoints, rows and a summary; resumed to the same weights."""

from fedwsq.runs.backend import Backend, BackendFactory, Machine, Opened
from fedwsq.runs.checkpoint import load_snapshot, save_snapshot
from fedwsq.runs.run import Run, run
from fedwsq.runs.summary import Summary

__all__ = [
    "Backend",
    "BackendFactory",
    "Machine",
    "Opened",
    "Run",
    "Summary",
    "load_snapshot",
    "run",
    "save_snapshot",
]
