"""Own code that fails shows where: in a line, in `failures.log`, or at once with `--debug`."""

import pytest
import torch

import user_code
from fedwsq.cli import main
from fedwsq.core.errors import RunError
from fedwsq.core.text import printable
from fedwsq.core.types import Key
from fedwsq.federation.record import RoundRecord
from fedwsq.runs import Run, failures, run
from fedwsq.runs.failures import ClientFailed, Log
from fedwsq.runs.lines import line
from fedwsq.transports import Failure
from fedwsq.transports.blame import MAX_TRACEBACK, in_one_line, whole
from harness import TINY_WORDS, rows, tiny

ALL = {"clients_per_round": 10}
FLAKY = {"algorithm.name": "user_code:Flaky", **ALL}
FLAKY_WORDS = [*TINY_WORDS, *(f"{key}={value}" for key, value in FLAKY.items())]
# Of the file, counted from the class: its decorator is the line before.
RAISED = user_code.Flaky.client_update.__code__.co_firstlineno + 4
REASON = f"RuntimeError: \x1b[31mred (user_code.py:{RAISED}, in client_update)"
SHOWN = REASON.replace("\x1b", r"\x1b")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failure_names_the_line_and_its_traceback_is_in_the_log(tmp_path, workers):
    run(tiny(**FLAKY), out=tmp_path / "run", workers=workers)
    assert [row["failures"] for row in rows(tmp_path / "run")] == [{}, {"1": REASON}, {}]
    head, *body = (tmp_path / "run" / "failures.log").read_text().splitlines()
    assert head == f"round 2, client 1: {SHOWN}"
    assert body[0] == "Traceback (most recent call last):"
    assert '    raise RuntimeError("\\x1b[31mred")' in body
    assert body[-2:] == [r"RuntimeError: \x1b[31mred", ""]


def test_no_failure_no_log(finished):
    assert not (finished.folder / "failures.log").exists()


def test_the_log_has_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr(failures, "MAX_LOG_BYTES", 1000)
    log = Log(tmp_path)
    for number in range(1, 100):
        log(f"round {number}, client 7", Failure(Key(0, number, 7), "why", traceback="x" * 300))
    text = (tmp_path / "failures.log").read_text()
    assert text.startswith("round 1, client 7: why\nxxx")
    assert text.endswith(failures.FULL)
    assert len(text) < 1500


def test_what_is_known_without_a_traceback_stays_in_the_rows(tmp_path):
    Log(tmp_path)("round 1, client 7", Failure(Key(0, 1, 7), "battery"))
    assert list(tmp_path.iterdir()) == []


def test_a_failed_evaluation_is_in_the_log_too(tmp_path):
    plan = tiny(**{"model.name": "user_code:cnn_that_cannot_be_scored"})
    with pytest.raises(RunError, match=r"evaluation failed: IndexError: .* in _fail_at_scoring\)"):
        run(plan, out=tmp_path / "run", workers=1)
    text = (tmp_path / "run" / "failures.log").read_text()
    assert text.startswith("round 1, evaluation: IndexError: no such class (user_code.py:")


def test_debug_stops_at_the_first_failure_and_can_be_resumed(tmp_path, capsys):
    folder = tmp_path / "run"
    assert main(["run", *FLAKY_WORDS, "--debug", "--out", str(folder)]) == 1
    out = capsys.readouterr().out
    assert "; 1 worker, cpu" in out
    assert "Traceback (most recent call last):\n" in out
    assert f"stopped at the first failure, round 2, client 1: {SHOWN}. Go on with: " in out
    assert len(rows(folder)) == 1

    assert main(["resume", str(folder), "--debug", "--trust"]) == 1
    assert main(["resume", str(folder), "--workers", "1", "--trust"]) == 0
    out = capsys.readouterr().out
    assert f"; client 1: {SHOWN}\n" in out
    assert out.endswith(f"their whole tracebacks are in {folder / 'failures.log'}\n")
    assert [row["failed"] for row in rows(folder)] == [0, 1, 0]


def test_debug_stops_at_a_failed_evaluation(tmp_path, capsys):
    words = [*TINY_WORDS, "model.name=user_code:cnn_that_cannot_be_scored"]
    assert main(["run", *words, "--debug", "--out", str(tmp_path / "run")]) == 1
    assert "stopped at the first failure, round 1, evaluation: IndexError" in (
        capsys.readouterr().out
    )


def test_debug_is_for_one_process(tmp_path, capsys):
    words = ["run", *TINY_WORDS, "--debug", "--workers", "2", "--out", str(tmp_path / "run")]
    assert main(words) == 2
    assert "--debug runs in one process, and --workers is 2" in capsys.readouterr().err


def test_in_a_program_the_traceback_is_a_note_of_the_error(tmp_path):
    with (
        Run.create(tiny(**FLAKY), tmp_path / "run", workers=1) as opened,
        pytest.raises(ClientFailed, match="round 2, client 1: RuntimeError") as caught,
    ):
        opened.go(debug=True)
    assert caught.value.__notes__[0].startswith("Traceback (most recent call last):\n")


def test_installed_code_is_not_the_users():
    with pytest.raises(RuntimeError) as caught:
        torch.nn.Linear(2, 3)(torch.zeros(1, 5))
    assert in_one_line(caught.value).endswith(", in test_installed_code_is_not_the_users)")
    assert ".py:" not in in_one_line(caught.value.with_traceback(None))


def test_an_endless_traceback_is_cut_and_its_end_is_kept():
    error = ValueError("x" * (2 * MAX_TRACEBACK) + "END")
    text = whole(error)
    assert text.startswith("... (cut short)\n")
    assert text.endswith("END\n")
    assert len(text) < MAX_TRACEBACK + 100


def test_printable_keeps_lines_and_letters():
    assert printable("ä\tb\n\x07\u202e") == "ä\tb\n" + r"\x07\u202e"


def test_clients_that_failed_alike_are_told_together():
    record = RoundRecord(1, failed=3, failures={"2": "no\x07", "4": "battery", "7": "no\x07"})
    assert line(record, 9).endswith(r"; clients 2, 7: no\x07; client 4: battery")
