import pytest
import torch

from fedwsq.training import precision
from fedwsq.training.precision import bfloat16_speedup, resolve_precision

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("speedup", "expected"),
    [(2.0, "bfloat16"), (1.11, "bfloat16"), (1.1, "float32"), (0.5, "float32")],
)
def test_auto_is_bfloat16_only_where_that_is_faster(monkeypatch, speedup, expected):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    monkeypatch.setattr(precision, "bfloat16_speedup", lambda: speedup)
    assert resolve_precision("auto", CPU) == expected


def test_nothing_is_timed_where_the_answer_is_known(monkeypatch):
    monkeypatch.setattr(precision, "bfloat16_speedup", lambda: pytest.fail("timed"))
    assert resolve_precision("float32", CPU) == "float32"
    assert resolve_precision("bfloat16", CPU) == "bfloat16"
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    assert resolve_precision("auto", CPU) == "float32"


def test_timing_leaves_no_trace():
    state = torch.get_rng_state()
    threads = torch.get_num_threads()
    assert 0.01 < bfloat16_speedup(repeats=2) < 100
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
