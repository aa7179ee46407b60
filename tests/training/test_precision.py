"""`auto` follows from the hardware alone: never from a clock, never from the load."""

import os
import subprocess
import sys
import time

import pytest
import torch

from fedwsq.core.errors import ConfigError
from fedwsq.training import precision
from fedwsq.training.precision import multiplies_bfloat16, resolve_precision

CPU = torch.device("cpu")
DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"


@pytest.fixture(autouse=True)
def untried():
    """Every test tries for itself."""
    precision._trial_survives.cache_clear()
    yield
    precision._trial_survives.cache_clear()


@pytest.fixture
def offers_amx(monkeypatch):
    """A processor that says it has AMX, and nobody who told oneDNN to leave it alone."""
    monkeypatch.delenv(precision.ISA, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)


@pytest.mark.parametrize(
    ("avx512_bf16", "amx", "expected"),
    [
        (False, False, "float32"),
        (True, False, "bfloat16"),
        (False, True, "bfloat16"),
        (True, True, "bfloat16"),
    ],
)
def test_auto_is_bfloat16_where_the_processor_multiplies_it(
    monkeypatch, avx512_bf16, amx, expected
):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512_bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(precision, "TRIAL", "pass")
    assert resolve_precision("auto", CPU) == expected


def test_a_torch_that_cannot_tell_means_float32(monkeypatch):
    monkeypatch.delattr(torch.cpu, "_is_avx512_bf16_supported")
    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported")
    assert resolve_precision("auto", CPU) == "float32"


def test_what_is_asked_for_is_taken_as_it_is():
    assert resolve_precision("float32", CPU) == "float32"
    assert resolve_precision("bfloat16", CPU) == "bfloat16"


def test_without_the_library_that_multiplies_it_there_is_no_bfloat16(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not multiplies_bfloat16(CPU)


def test_no_clock_is_read(monkeypatch):
    for clock in ("time", "perf_counter", "monotonic", "process_time"):
        monkeypatch.setattr(time, clock, lambda: pytest.fail("timed"))
    answers = {resolve_precision("auto", CPU) for _ in range(20)}
    assert len(answers) == 1


def test_a_gpu_is_asked_for_what_it_does_not_emulate(monkeypatch):
    asked = []

    def supported(including_emulation: bool = True) -> bool:
        asked.append(including_emulation)
        return True

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    assert resolve_precision("auto", torch.device("cuda")) == "bfloat16"
    assert asked == [False]


def test_auto_is_float32_where_amx_ends_the_process(monkeypatch, offers_amx):
    monkeypatch.setattr(precision, "TRIAL", DIES)
    assert resolve_precision("auto", CPU) == "float32"


def test_bfloat16_is_refused_where_amx_ends_the_process(monkeypatch, offers_amx):
    monkeypatch.setattr(precision, "TRIAL", DIES)
    with pytest.raises(ConfigError, match="ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"):
        resolve_precision("bfloat16", CPU)
    monkeypatch.setenv(precision.ISA, "AVX512_CORE_BF16")
    assert resolve_precision("bfloat16", CPU) == "bfloat16"


def test_amx_that_works_is_used_and_tried_once(monkeypatch, offers_amx):
    monkeypatch.setattr(precision, "TRIAL", "pass")
    assert resolve_precision("auto", CPU) == "bfloat16"
    monkeypatch.setattr(precision, "TRIAL", DIES)
    assert resolve_precision("bfloat16", CPU) == "bfloat16"


@pytest.mark.parametrize(
    ("trial", "why"),
    [
        ("import time; time.sleep(60)", "timed out"),
        ("raise MemoryError('none left')", "its exit code is 1, MemoryError: none left"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "its exit code is -9, it said"),
    ],
    ids=["slow", "no memory", "killed"],
)
def test_a_trial_that_says_nothing_of_the_processor_decides_nothing(
    monkeypatch, offers_amx, trial, why
):
    """A busy machine may not get float32 where an idle one gets bfloat16."""
    monkeypatch.setattr(precision, "TRIAL", trial)
    if "sleep" in trial:
        monkeypatch.setattr(precision, "TRIAL_SECONDS", 0.2)
    with pytest.raises(ConfigError, match=f"could not be tried: .*{why}.*precision=float32"):
        resolve_precision("auto", CPU)
    assert resolve_precision("float32", CPU) == "float32"


def test_the_trial_multiplies_bfloat16():
    """As it is, where AMX is out of the way: it has no other reason to fail."""
    environment = {**os.environ, precision.ISA: "AVX512_CORE_BF16"}
    command = [sys.executable, "-c", precision.TRIAL]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
