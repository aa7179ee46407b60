"""The verbs that only look: ls, levels, inspect, and every --help."""

import json
import os
import re
import subprocess
import sys
import tomllib

import pytest

from fedwsq import __version__
from fedwsq.cli import main
from fedwsq.core.types import Key
from fedwsq.runs.lines import human_bytes
from fedwsq.wire import Kind, Message, Schema, encode
from harness import TESTS, TINY_WORDS

# Worked numbers
OPTIMAL_4 = [
    -2.6809, -2.0065, -1.5461, -1.1749, -0.8511, -0.5548, -0.2739, 0,
    0.243, 0.4909, 0.7493, 1.0256, 1.3309, 1.6844, 2.127, 2.7808,
]  # fmt: skip
PAPER_4 = [
    -2.6536, -1.9735, -1.508, -1.149, -0.8337, -0.5439, -0.2686, 0,
    0.2303, 0.4648, 0.7081, 0.9663, 1.2481, 1.5676, 1.9679, 2.6488,
]  # fmt: skip


def fedwsq(capsys, *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    out, err = capsys.readouterr()
    return code, out, err


def committed(name: str) -> bytes:
    """A message of `tests/golden`."""
    messages = json.loads((TESTS / "golden" / "messages.json").read_text())
    return bytes.fromhex("".join(messages[name]))


def printed_levels(text: str) -> tuple[list[float], dict[str, float]]:
    lines = text.splitlines()
    levels = [float(line) for line in lines if line.strip()[0] in "-0123456789"]
    facts = {line.split()[0]: float(line.split()[1]) for line in lines[len(levels) :]}
    return levels, facts


@pytest.mark.parametrize(
    ("words", "levels", "mse", "bias"),
    [
        (["4", "--kind", "optimal"], OPTIMAL_4, 0.009602074, 0.000789),
        (["4"], PAPER_4, 0.009718, None),
        (["4", "--kind", "paper"], PAPER_4, 0.009718, None),
        (["2"], [-1.224, 0, 0.7646, 1.7242], 0.1350576, 0.04),
        (["1"], [-0.7979, 0.7979], 0.3633802, 0),
        (
            ["3", "--kind", "optimal"],
            [-2.0334, -1.1881, -0.5606, 0, 0.4436, 0.9188, 1.4764, 2.2547],
            0.03592682,
            None,
        ),
    ],
)
def test_levels_are_those_of_the_paper(capsys, words, levels, mse, bias):
    code, out, _ = fedwsq(capsys, "levels", *words)
    found, facts = printed_levels(out)
    assert code == 0
    assert found == pytest.approx(levels, abs=6e-5)
    assert facts["mse"] == pytest.approx(mse, rel=5e-5)
    if bias is not None:
        assert facts["bias"] == pytest.approx(bias, rel=0.01, abs=1e-6)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["3"], "3"),
        (["0"], "0"),
        (["9", "--kind", "optimal"], "9"),
        (["4", "--kind", "best"], "best"),
    ],
)
def test_levels_that_do_not_exist_are_one_error(capsys, words, why):
    code, out, err = fedwsq(capsys, "levels", *words)
    assert (code, out) == (2, "")
    assert err.startswith("fedwsq: ")
    assert err.count("\n") == 1
    assert why in err


def test_ls_lists_everything_there_is(capsys):
    code, out, err = fedwsq(capsys, "ls")
    assert (code, err) == (0, "")
    names = (
        "fedavg danuq float32 resnet18 resnet8 cnn digits cifar10 dirichlet iid "
        "quickstart cifar10-resnet8"
    )
    assert set(names.split()) <= set(out.split())


@pytest.mark.parametrize(
    ("kind", "there", "elsewhere"),
    [
        ("codecs", "danuq", "resnet18"),
        ("algorithms", "fedavg", "danuq"),
        ("models", "resnet18", "danuq"),
        ("datasets", "cifar10", "danuq"),
        ("configs", "quickstart", "danuq"),
        ("partitions", "dirichlet", "danuq"),
    ],
)
def test_ls_of_one_kind_lists_only_that(capsys, kind, there, elsewhere):
    code, out, _ = fedwsq(capsys, "ls", kind)
    assert code == 0
    assert there in out.split()
    assert elsewhere not in out.split()


def test_ls_codecs_shows_the_settings_and_their_defaults(capsys):
    _, out, _ = fedwsq(capsys, "ls", "codecs")
    assert "momentum = 0.1" in " ".join(out.split())


def test_ls_datasets_says_what_each_needs(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    _, out, _ = fedwsq(capsys, "ls", "datasets")
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert "root = (needed), size = 0" in lines["imagefolder"]
    assert "repo = (needed), train = 'train'" in lines["hub"]
    assert "path = (needed)" in lines["npz"]
    assert "root = $FEDWSQ_DATA or ./data" in lines["cifar10"]
    assert "needed" not in lines["digits"] + lines["synthetic"]


def test_a_dry_run_says_who_holds_what_and_writes_nothing(capsys, in_empty_folder):
    code, out, err = fedwsq(capsys, "run", *TINY_WORDS, "--dry-run")
    assert (code, err) == (0, "")
    assert tomllib.loads(out)["data"]["name"] == "digits"  # what is no setting is a comment
    for text in (
        "#   digits, dirichlet: 1430 examples over 10 clients, 8 unused; 10 classes",
        "#   clients down, classes across; @ is ",
        "# bytes a round: ",
        "# time, a guess from one batch: ",
        "# memory, a guess: ",
    ):
        assert text in out
    assert list(in_empty_folder.iterdir()) == []


def test_a_dry_run_of_bits_that_vary_does_not_multiply_the_first_round(capsys, in_empty_folder):
    bits = "uplink.bits={ name = 'growing', every = 1 }"
    _, out, _ = fedwsq(capsys, "run", *TINY_WORDS, bits, "--dry-run")
    assert "# bytes of the first round: " in out
    assert "# bytes a round: " not in out


def test_inspect_prints_what_is_in_a_reply(capsys, finished):
    found = (finished.folder / "messages").glob("round-2-client-*.fwsq")
    path = next(path for path in found if "order" not in path.name)
    client = path.stem.rpartition("-")[2]
    code, out, err = fedwsq(capsys, "inspect", str(path))
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0] == f"reply, {path.stat().st_size} bytes, round 2, client {client}, seed 0"
    assert any(re.match("metric '?loss'? = ", line) for line in lines)
    tensors = [line for line in lines if line.startswith("tensor")]
    assert sum("danuq, 4 bits" in line for line in tensors) == 2
    assert sum("float32, 32 bits" in line for line in tensors) == len(tensors) - 2


def test_inspect_prints_orders_and_broadcasts(capsys, finished):
    order = next((finished.folder / "messages").glob("round-1-client-*-order.fwsq"))
    _, out, _ = fedwsq(capsys, "inspect", str(order))
    assert out.startswith("order, ")
    assert "rates [4.0]" in out
    broadcast = finished.folder / "messages" / "round-1-broadcast.fwsq"
    _, out, _ = fedwsq(capsys, "inspect", str(broadcast))
    assert "everyone" in out.splitlines()[0]
    assert sum(line.startswith("state ") for line in out.splitlines()) == 2


def test_inspect_prints_the_whole_of_a_reply(capsys, tmp_path):
    """That of the document, line by line."""
    path = tmp_path / "message"
    path.write_bytes(committed("reply"))
    code, out, err = fedwsq(capsys, "inspect", str(path))
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "reply, 260 bytes, round 3, client 12, seed 7",
        "run 000102030405060708090a0b0c0d0e0f, nonce f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff, "
        "last accepted round 0",
        "agreement 9ef0d781c8680ada346373fee23ffcc6",
        "weight 40, quantization error 0.00590318, rates []",
        "metric 'loss' = 1.5",
        "tensor 'delta' #0: float32, 32 bits, 8 bytes",
        "tensor 'delta' #1: danuq, 4 bits, 3 bytes, shared scale, side [0.0019416487775743008]",
        "tensor 'delta' #2: float32, 32 bits, 4 bytes",
    ]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("hello", """text '{"wire": 2, "seed": 7, "algorithm.name": "fedavg", """),
        ("welcome", """text '{"examples": 40, "labels": [22, 18], "precision": "float32", """),
        ("scores", "text '[40, 29.0, 31.25, [20, 9], [22, 18]]'"),
        ("evaluate", None),
        ("score", None),
        ("forgot", None),
    ],
)
def test_inspect_prints_every_kind(capsys, tmp_path, kind, text):
    path = tmp_path / "message"
    path.write_bytes(committed(kind))
    code, out, err = fedwsq(capsys, "inspect", str(path))
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0].startswith(f"{kind}, {path.stat().st_size} bytes, round ")
    assert lines[2] == "agreement 9ef0d781c8680ada346373fee23ffcc6"
    if text is None:
        assert len(lines) == 4
    else:
        assert lines[4].startswith(text)


def test_inspect_gives_text_no_hold_on_the_terminal(capsys, tmp_path):
    path = tmp_path / "message"
    message = Message(Kind.SCORES, Key(0, 1, 0), bytes(16), text="\x1b[2J\nreply, 7 bytes\r\u202e")
    path.write_bytes(encode(message, Schema({})))
    code, out, _ = fedwsq(capsys, "inspect", str(path))
    assert code == 0
    assert out.splitlines()[4:] == [r"text '\x1b[2J\nreply, 7 bytes\r\u202e'"]


def test_inspect_says_which_version_it_cannot_read(capsys, tmp_path):
    path = tmp_path / "message"
    path.write_bytes(committed("order of version 1"))
    code, out, err = fedwsq(capsys, "inspect", str(path))
    assert (code, out) == (2, "")
    assert err == "fedwsq: unknown version 1: this build reads version 2\n"


@pytest.mark.parametrize(
    "damage", ["garbage", "empty", "cut", "flipped", "longer", "a folder", "missing"]
)
def test_inspect_of_anything_else_is_one_error(capsys, finished, tmp_path, damage):
    whole = (finished.folder / "messages" / "round-1-broadcast.fwsq").read_bytes()
    path = tmp_path / "message"
    contents = {
        "garbage": b"not a message at all" * 20,
        "empty": b"",
        "cut": whole[:-7],
        "flipped": whole[:500] + bytes([whole[500] ^ 4]) + whole[501:],
        "longer": whole + b"x",
    }
    if damage in contents:
        path.write_bytes(contents[damage])
    elif damage == "a folder":
        path.mkdir()
    code, out, err = fedwsq(capsys, "inspect", str(path))
    assert (code, out) == (2, "")
    assert err.startswith("fedwsq: ")
    assert err.count("\n") == 1


def test_inspect_looks_at_a_huge_file_no_further_than_it_must(capsys, finished, tmp_path):
    """Holes, more than memory holds: refused by the first bytes, or by the length they announce."""
    whole = (finished.folder / "messages" / "round-1-broadcast.fwsq").read_bytes()
    path = tmp_path / "message"
    for first, why in (
        (b"", "wrong magic"),
        (whole, f"trailing bytes: {2**40} bytes, the header says {len(whole)}"),
    ):
        path.write_bytes(first)
        os.truncate(path, 2**40)
        code, out, err = fedwsq(capsys, "inspect", str(path))
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert why in err


def test_inspect_waits_for_no_pipe_and_reads_no_device(capsys, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (os.devnull, tmp_path / "pipe"):
        code, out, err = fedwsq(capsys, "inspect", str(path))
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"{path}: it is not a regular file" in err


def test_the_message_that_the_help_of_inspect_names_is_one_that_a_run_keeps(capsys, finished):
    with pytest.raises(SystemExit):
        main(["inspect", "--help"])
    (name,) = re.findall(r"inspect runs/look/(messages/\S+)", capsys.readouterr().out)
    assert (finished.folder / name).is_file()


@pytest.mark.parametrize("verb", ["run", "resume", "ls", "levels", "inspect"])
def test_help_of_every_verb_has_an_example_that_starts_like_it(capsys, verb):
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    out = capsys.readouterr().out
    assert ended.value.code == 0
    assert "example" in out
    assert f"fedwsq {verb}" in out.partition("example")[2]


def test_help_without_a_verb_lists_them_all(capsys):
    code, out, _ = fedwsq(capsys)
    assert code == 0
    assert all(verb in out for verb in ("run", "resume", "ls", "levels", "inspect"))


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"fedwsq {__version__}\n"


def test_a_reader_that_stops_early_is_no_error():
    """`fedwsq ls | head -1`: no traceback, no complaint at exit."""
    wait_and_list = (
        "import sys; from fedwsq.cli import main; sys.stdin.read(); sys.exit(main(['ls']))"
    )
    lister = subprocess.Popen(
        [sys.executable, "-c", wait_and_list],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    lister.stdout.close()
    lister.stdin.close()
    assert lister.stderr.read() == ""
    lister.wait()


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (12_345_678, "12.3 MB"), (5e12, "5.0 TB")],
)
def test_bytes_for_people(count, text):
    assert human_bytes(count) == text


def test_overrides_may_stand_after_options(capsys, tmp_path):
    code, _, err = fedwsq(capsys, "run", "rounds=1", "--out", str(tmp_path / "run"), "rouns=2")
    assert (code, err.count("\n")) == (2, 1)
    assert "unknown key rouns" in err
    with pytest.raises(SystemExit, match="2"):
        main(["run", "--no-such-option=3"])
    with pytest.raises(SystemExit, match="2"):
        main(["ls", "a=b"])
