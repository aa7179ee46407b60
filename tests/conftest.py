"""Fixtures that several folders share. Helpers that are plain functions live in `harness.py`."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from fedwsq.runs import Run, Summary
from harness import tiny

# Some machines offer AMX and end a process that multiplies bfloat16 with it. oneDNN reads this when
# it is first used, here and in every process that a test starts.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# A shell starts background jobs with SIGINT ignored, and children inherit that; here Ctrl-C must
# mean Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Two busy cores: a slow example is not a failure.
settings.register_profile("fedwsq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fedwsq")


@dataclass(frozen=True)
class Finished:
    """A run that nothing disturbed."""

    folder: Path
    summary: Summary


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The tiny run in one process, with its messages; read it or copy it, but leave it as it is."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    with Run.create(tiny(), folder, workers=1) as run:
        return Finished(folder, run.go(keep_messages=True))


@pytest.fixture
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory is empty, and there is no data root in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDWSQ_DATA", raising=False)
    return tmp_path
