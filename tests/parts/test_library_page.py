"""`docs/library.md`: its code runs as written, and its numbers are true."""

import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import fedwsq
from fedwsq.codecs.levels import levels, normal_error
from fedwsq.models import MODELS
from fedwsq.parts.dictionaries import MAX_ELEMENTS, SMALLEST_CODED
from fedwsq.parts.integers import Integers
from fedwsq.parts.parcel import ELEMENTS_PER_BYTE, FREE_ELEMENTS
from fedwsq.wire import Kind

PAGE = (Path(__file__).parents[2] / "docs" / "library.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def group_of_one():
    """A process group, as the blocks on gradients want it; two real ones are in test_gradients."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_every_block_runs_in_order(in_empty_folder, group_of_one, capsys):
    torch.manual_seed(0)
    assert len(BLOCKS) == 13
    names = {}
    for number, block in enumerate(BLOCKS):
        exec(compile(block, f"block {number} of library.md", "exec"), names)
    printed = capsys.readouterr().out
    # What comments on the page say is printed.
    assert "tensor '0.weight' is not there, expected (64, 3, 3, 3)" in printed
    assert "#0 4.0 32768\n#1 32.0 1024\n" in printed
    assert names["compression"].sent_bytes < names["compression"].float32_bytes / 4


def table():
    found = re.findall(r"^\| (\w+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", PAGE, re.MULTILINE)
    return [(codec, float(bits), size, times) for codec, bits, size, times in found]


def test_the_table_of_sizes():
    torch.manual_seed(0)
    state = MODELS["resnet18"](classes=10, channels=3).state_dict()
    float32_bytes = 4 * sum(x.numel() for x in state.values())
    assert f"{float32_bytes / 1e6:.2f} MB in float32" in PAGE
    assert len(table()) == 4
    for codec, bits, size, times in table():
        found = len(fedwsq.pack(state, codec, bits))
        assert f"{found / 1e6:.2f}" == size
        assert f"{float32_bytes / found:.1f}" == times


def test_the_other_numbers():
    errors = [normal_error(levels(4, kind)) for kind in ("paper", "optimal", "lloyd-max")]
    assert "at 4 bits {:.5f}, {:.5f} and {:.5f}".format(*errors) in " ".join(PAGE.split())
    assert f"kind {Kind.PACK:d}" in PAGE
    assert f"codec {Integers.wire_id}" in PAGE
    assert f"fewer than {SMALLEST_CODED} elements" in PAGE
    assert (FREE_ELEMENTS, ELEMENTS_PER_BYTE, MAX_ELEMENTS) == (2**22, 160, 2**31)
    assert "2^22 elements and 160 more" in PAGE
    assert "`max_elements`, 2^31" in PAGE
