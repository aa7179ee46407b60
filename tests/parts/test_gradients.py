"""Data-parallel training with compressed gradients: two real processes over loopback."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

import fedwsq
from fedwsq.core.errors import ConfigError

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "ddp.py"
CODECS = ("danuq 4", "danuq 1", "ecq 0.5")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two processes found."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    files = [folder / "0.json", folder / "1.json"]
    started = []
    for rank, file in enumerate(files):
        command = [sys.executable, HERE / "two_ranks.py", str(rank), port, file]
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
    try:
        for process in started:
            _, errors = process.communicate(timeout=600)
            assert process.returncode == 0, errors
    finally:
        for process in started:
            process.kill()
    return [json.loads(file.read_text()) for file in files]


@pytest.mark.parametrize("training", ["plain", *CODECS])
def test_both_ranks_end_with_the_same_bits(ranks, training):
    one, other = ranks
    assert one[training]["weights"] == other[training]["weights"]


@pytest.mark.parametrize("codec", CODECS)
def test_they_learn_as_they_do_without(ranks, codec):
    plain = ranks[0]["plain"]["accuracy"]
    assert plain > 0.93
    assert ranks[0][codec]["accuracy"] > plain - 0.03
    assert ranks[0][codec]["weights"] != ranks[0]["plain"]["weights"]


@pytest.mark.parametrize(("codec", "bits"), [("danuq 4", 4), ("danuq 1", 1), ("ecq 0.5", 0.5)])
def test_the_bytes_are_those_of_the_rate(ranks, codec, bits):
    for found in ranks:
        share = found[codec]["sent"] / found[codec]["float32"]
        # Labels and tiny tensors come on top; this network has 29,066 parameters.
        assert bits / 32 < share < bits / 32 + 0.02


def test_messages_may_differ_in_length_and_are_counted_as_they_travel(ranks):
    one, other = (found["ecq 0.5"] for found in ranks)
    assert one["lengths"] != other["lengths"]
    pairs = zip(one["lengths"], other["lengths"], strict=True)
    expected = sum(max(pair) + 8 for pair in pairs)
    assert one["sent"] == other["sent"] == expected


def test_each_parameter_has_a_memory_by_its_name(ranks):
    """Whichever bucket it is in; the classifier's bias of ten elements travels exact."""
    expected = ["0.bias", "0.weight", "2.bias", "2.weight", "5.weight"]
    assert ranks[0]["danuq 4"]["remembered"] == expected


def test_float32_messages_are_plain_training(ranks):
    assert [found["exact"] for found in ranks] == [True, True]


def test_gradients_of_another_type_are_exchanged(ranks):
    for found in ranks:
        assert 0 < found["close"] < 0.2 * found["size"]


def test_a_gradient_that_is_not_finite_reaches_every_rank(ranks):
    assert [found["astray"] for found in ranks] == [True, True]
    assert [found["after"] for found in ranks] == [True, True]


def test_the_example_runs_as_its_first_lines_say(tmp_path):
    text = EXAMPLE.read_text()
    assert len(text.splitlines()) < 90
    assert "python examples/ddp.py [BITS] [EPOCHS]" in text
    command = [sys.executable, EXAMPLE, "2", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    plain, compressed, bytes_line = done.stdout.splitlines()
    assert plain.startswith("plain: test accuracy 0.")
    assert compressed.startswith("compressed: test accuracy 0.")
    assert bytes_line.startswith("each rank sent ")


def test_a_model_that_is_not_data_parallel_is_refused():
    with pytest.raises(ConfigError, match=r"wrap the model first: model = DistributedData"):
        fedwsq.compress_gradients(nn.Linear(2, 2))
