"""`auto` follows from the hardware alone: never from a clock, never from the load."""

import time

import pytest
import torch

from fedwsq.training.precision import multiplies_bfloat16, resolve_precision

CPU = torch.device("cpu")


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
