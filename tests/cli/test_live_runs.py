"""`fedwsq run` and `resume` as real processes: what they print, and how they stop."""

import errno
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import user_code
from fedwsq.cli import main
from fedwsq.runs import Run, run
from fedwsq.runs.checkpoint import load_snapshot
from fedwsq.runs.directory import append_row
from harness import (
    PATIENCE_SECONDS,
    TINY_WORDS,
    all_shown,
    gone,
    rows,
    start,
    timeless,
    tiny,
    tiny_words,
    who_is_stuck,
)

ONE_WORKER = ["--workers", "1"]
RUN = sys.modules[Run.__module__]  # `fedwsq.runs.run` is a function, too


def test_piped_output_is_one_plain_line_a_round_and_a_summary(capsys, tmp_path, finished):
    assert main(["run", *TINY_WORDS, *ONE_WORKER, "--out", str(tmp_path / "run")]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert err == ""
    assert "\x1b" not in out
    assert lines[0].startswith(f"{tmp_path / 'run'}: digits, 10 clients, 5 a round; cnn")
    assert lines[0].endswith("; 1 worker, cpu, float32")
    for line, row in zip(lines[1:4], rows(finished.folder), strict=True):
        assert re.fullmatch(
            rf"round {row['round']}/3: accuracy {row['test_accuracy']:.4f}, "
            rf"up 80\.\d kB, down 48\d\.\d kB, train loss {row['train_loss']:.4f}, "
            rf"code error {row['quantization_error']:.3g}, \d+\.\d\d s",
            line,
        )
    summary = finished.summary
    assert f"{tmp_path / 'run'} after 3 rounds" in lines[4]
    for count, factor in (
        (summary.uplink_bytes, summary.uplink_factor),
        (summary.total_bytes, summary.total_factor),
    ):
        assert f"{count:,} bytes, {factor:.2f} times less than float32" in out
    assert summary.weights in out


def test_the_lean_method_codes_both_ways_and_says_so(capsys, tmp_path):
    folder = tmp_path / "lean"
    words = [*tiny_words(rounds=1), "method=fedwsq-lean", *ONE_WORKER, "--out", str(folder)]
    assert main(["run", *words]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert "fedacg; uplink ecq, growing, downlink ecq, growing;" in first
    (row,) = rows(folder)
    assert row["uplink_bytes_float32"] > 25 * row["uplink_bytes"]
    assert row["downlink_bytes_float32"] > 10 * row["downlink_bytes"]


def test_names_that_look_like_markup_are_printed_as_they_are(capsys, tmp_path):
    folder = tmp_path / "[red]a [/] :smile: b"
    assert main(["run", *tiny_words(rounds=1), *ONE_WORKER, "--out", str(folder)]) == 0
    assert capsys.readouterr().out.count(str(folder)) == 2


def test_failures_are_told_with_their_reasons(capsys, tmp_path):
    words = [
        *tiny_words(rounds=1),
        "data.partition=user_code:first_is_empty",
        "data.clients=3",
        "clients_per_round=3",
    ]
    assert main(["run", *words, *ONE_WORKER, "--out", str(tmp_path / "run")]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("round 1/1")]
    assert ", 1 failed, " in line
    assert line.endswith("; client 0: UpdateError: client 0 has no examples")


def test_without_out_runs_are_numbered(capsys, in_empty_folder):
    for _ in range(2):
        assert main(["run", *tiny_words(rounds=1), *ONE_WORKER]) == 0
    assert sorted(str(path) for path in Path("runs").iterdir()) == [
        "runs/quickstart-1",
        "runs/quickstart-2",
    ]


def test_a_config_file_and_overrides_meet(capsys, in_empty_folder):
    Path("my.toml").write_text(
        'rounds = 2\n[training]\nepochs = 1\nbatches_per_epoch = 2\nprecision = "float32"\n'
    )
    assert main(["run", "my.toml", "rounds=1", "uplink.codec=float32", *ONE_WORKER]) == 0
    assert len(rows(Path("runs/my-1"))) == 1


def test_resume_with_more_rounds_goes_on(capsys, tmp_path):
    folder = str(tmp_path / "run")
    assert main(["run", *tiny_words(rounds=1), *ONE_WORKER, "--out", folder]) == 0
    assert main(["resume", folder, "rounds=2", *ONE_WORKER]) == 0
    out = capsys.readouterr().out
    assert "round 2/2: " in out
    assert out.count("round 1/") == 1
    assert run(tiny(rounds=2), out=tmp_path / "long", workers=1).weights in out


def test_kept_messages_and_tensorboard_are_beside_the_run(capsys, tmp_path):
    folder = tmp_path / "run"
    extras = ["--keep-messages", "--tensorboard"]
    assert main(["run", *tiny_words(rounds=1), *ONE_WORKER, *extras, "--out", str(folder)]) == 0
    assert len(list((folder / "messages").iterdir())) == 1 + 5 + 5
    assert any(path.name.startswith("events") for path in (folder / "tensorboard").iterdir())


@pytest.mark.slow
def test_a_run_outlives_its_reader(finished, tmp_path):
    """`fedwsq run | head -1`: it says so, once, and comes to its end."""
    process = start("run", *TINY_WORDS, *ONE_WORKER, "--out", "run", cwd=tmp_path)
    process.stdout.close()  # long before the first line
    assert process.wait(timeout=PATIENCE_SECONDS) == 0
    err = process.stderr.read()
    assert err.startswith("fedwsq: nobody reads the output any more; the run goes on")
    assert err.count("\n") == 1
    assert list(map(timeless, rows(tmp_path / "run"))) == list(map(timeless, rows(finished.folder)))
    assert (tmp_path / "run" / "model.safetensors").is_file()


def assert_goes_on(folder: Path, out: str, weights: str) -> None:
    """The run in `folder` was stopped on purpose: it says how to go on.

    Doing so gives the undisturbed weights.
    """
    done = len(rows(folder))
    assert 1 <= done < 3
    assert f"stopped; {done} complete rounds are saved. Go on with: fedwsq resume '{folder}'" in out
    assert load_snapshot(folder / "checkpoints")[0].round == done
    with Run.resume(folder, workers=1) as opened:
        assert opened.warnings == []
        assert opened.go().weights == weights


@pytest.mark.slow
def test_ctrl_c_saves_says_how_to_go_on_and_leaves_no_worker(finished, tmp_path):
    folder = tmp_path / "my run"
    words = [*TINY_WORDS, "algorithm.name=user_code:Stuck", "--out", folder, "--workers", "2"]
    process = start("run", *words, cwd=tmp_path, stuck=tmp_path / "stuck", start_new_session=True)
    stuck = who_is_stuck(tmp_path / "stuck", process)
    children = psutil.Process(process.pid).children()
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the whole group
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, err) == (130, "")
    assert stuck in children
    assert len(children) == 2
    assert all(map(gone, children))
    assert_goes_on(folder, out, finished.summary.weights)


def test_a_polite_kill_stops_like_ctrl_c(finished, tmp_path, capsys):
    """SIGTERM in the 13th of 30 training steps, to this very process."""
    folder = tmp_path / "my run"
    user_code.STEPS_BEFORE_SIGTERM = 13
    words = [*TINY_WORDS, "model.name=user_code:terminating_cnn"]
    assert main(["run", *words, *ONE_WORKER, "--out", str(folder)]) == 130
    out, err = capsys.readouterr()
    assert err == ""
    assert len(rows(folder)) == 1
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert_goes_on(folder, out, finished.summary.weights)


@pytest.mark.slow
def test_ctrl_c_while_the_workers_start_is_as_quiet(tmp_path):
    folder = tmp_path / "run"
    data = "data.name=user_code:digits_stuck_in_a_worker"
    words = [*TINY_WORDS, data, "--out", folder, "--workers", "2"]
    process = start("run", *words, cwd=tmp_path, stuck=tmp_path / "stuck", start_new_session=True)
    assert who_is_stuck(tmp_path / "stuck", process).pid != process.pid
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, err) == (130, "")
    assert "0 complete rounds are saved" in out
    assert main(["resume", str(folder), *ONE_WORKER, "--trust"]) == 0


def test_ctrl_c_while_the_data_is_loading_leaves_nothing(capsys, in_empty_folder):
    words = [*TINY_WORDS, "data.name=user_code:digits_and_ctrl_c"]
    assert main(["run", *words, *ONE_WORKER]) == 130
    out, err = capsys.readouterr()
    assert (out, err) == ("", "fedwsq: interrupted\n")
    assert list(in_empty_folder.iterdir()) == []


def test_a_terminal_shows_live_progress(tmp_path):
    controller, terminal = pty.openpty()
    words = ["run", *TINY_WORDS, *ONE_WORKER, "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedwsq.cli", *words],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"},
    )
    os.close(terminal)
    text = all_shown(controller)
    assert process.wait(timeout=PATIENCE_SECONDS) == 0
    assert "\x1b[" in text
    assert re.search(r"3/3", text)
    assert re.search(r"accuracy 0\.\d{4}, up 80\.\d kB", text)
    assert "client 5/5" in text
    assert "times less than float32" in text
    assert "Traceback" not in text


@pytest.mark.slow
def test_a_module_in_the_working_directory_does_not_stand_in_for_a_library(tmp_path, finished):
    """The command's own path has no working directory on it, nor has that of its workers."""
    (tmp_path / "queue.py").write_text("raise RuntimeError('not the queue you wanted')\n")
    command = Path(sys.executable).with_name("fedwsq")
    if not command.exists():
        pytest.skip("the fedwsq command is not installed beside this Python")
    done = subprocess.run(
        [command, "run", *TINY_WORDS, "--out", "run", "--workers", "2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert finished.summary.weights in done.stdout


def test_a_full_disk_says_how_to_go_on(capsys, tmp_path, monkeypatch, finished):
    """Space runs out under the second row; with room again, the run comes to the same end."""
    written = []

    def append(rows, record):
        written.append(record)
        if len(written) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append_row(rows, record)

    folder = tmp_path / "my run"
    monkeypatch.setattr(RUN, "append_row", append)
    assert main(["run", *TINY_WORDS, *ONE_WORKER, "--out", str(folder)]) == 2
    assert capsys.readouterr().err == (
        f"fedwsq: no space left for {folder}: what it has saved is whole; make room, "
        f"then go on with: fedwsq resume '{folder}'\n"
    )
    assert main(["resume", str(folder), *ONE_WORKER]) == 0
    assert finished.summary.weights in capsys.readouterr().out


def test_a_disk_that_is_full_from_the_start(capsys, tmp_path, monkeypatch):
    def write(path, data):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(RUN, "write_atomically", write)
    assert main(["run", *TINY_WORDS, *ONE_WORKER, "--out", str(tmp_path / "run")]) == 2
    says = f"no space left for {tmp_path / 'run'}; make room and give the command again"
    assert capsys.readouterr().err == f"fedwsq: {says}\n"
