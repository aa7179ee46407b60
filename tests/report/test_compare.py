"""Comparisons, with numbers worked out by hand."""

import csv
import io
import shutil

import pytest
from stories import rewrite, tell

from fedwsq.cli import main
from fedwsq.core.errors import ConfigError
from fedwsq.report.compare import bytes_to, compare, flags
from fedwsq.report.estimate import difference, estimate
from fedwsq.report.groups import group_runs
from fedwsq.report.layout import laid_out
from fedwsq.runs.reading import read_run, read_runs


def test_an_interval_over_seeds_is_students():
    found = estimate([1.0, 2.0, 3.0])
    assert found is not None
    assert found.half is not None
    # t(2 degrees) = 4.30265, s = 1, so 4.30265 / sqrt(3).
    assert (found.mean, found.half) == (2.0, pytest.approx(2.48414, abs=1e-5))
    assert estimate([]) is None
    one = estimate([5.0])
    assert one is not None
    assert (one.mean, one.half) == (5.0, None)


def test_a_difference_is_clear_beyond_welchs_interval():
    found = difference([1.0, 2.0, 3.0], [5.0, 6.0, 7.0])
    assert found is not None
    # t(4 degrees) = 2.77645, standard error sqrt(1/3 + 1/3).
    assert (found.mean, found.half) == (-4.0, pytest.approx(2.26696, abs=1e-5))
    assert found.clear
    near = difference([1.0, 2.0, 3.0], [2.0, 3.0, 4.0])
    assert near is not None
    assert not near.clear
    alone = difference([1.0], [9.0, 8.0])
    assert alone is not None
    assert not alone.clear


def test_a_target_counts_from_where_it_is_held(tmp_path):
    run = read_run(tell(tmp_path / "run", [0.1, 0.5, 0.4, 0.5, 0.6]))
    assert bytes_to(run, 0.5) == 4 * 40  # reached in round 2, lost in 3, held from 4 on
    assert bytes_to(run, 0.05) == 40
    assert bytes_to(run, 0.7) is None


@pytest.fixture
def sweep(tmp_path):
    """FedAvg and FedWS with two seeds each, FedDyn with one."""
    tell(tmp_path / "avg-0", [0.2, 0.40], seed=0)
    tell(tmp_path / "avg-1", [0.2, 0.42], seed=1)
    tell(tmp_path / "ws-0", [0.5, 0.60], seed=0, method="fedws")
    tell(tmp_path / "ws-1", [0.5, 0.62], seed=1, method="fedws")
    tell(tmp_path / "dyn-0", [0.1, 0.59], seed=0, method="feddyn")
    return tmp_path


def test_groups_are_compared_by_their_means(sweep):
    found = compare(read_runs([sweep]))
    assert [line.group.label for line in found.lines] == ["fedws", "feddyn", "fedavg"]
    best, single, plain = found.lines
    assert best.smoothed is not None
    assert best.smoothed.mean == pytest.approx(0.61)
    assert best.behind is None
    assert single.behind is not None
    assert single.behind.half is None
    assert plain.behind is not None
    assert plain.behind.mean == pytest.approx(-0.2)
    assert plain.behind.clear
    assert (plain.uplink_bytes, plain.downlink_bytes, plain.total_bytes) == (20, 60, 80)
    # FedAvg came to least: the mean of its evaluations is (0.2 + 0.4 + 0.2 + 0.42) / 4.
    assert found.target.accuracy == pytest.approx(0.305)
    assert best.reached.bytes is not None
    assert best.reached.bytes.mean == 40
    assert best.times_fewer == 2.0  # 80 bytes of FedAvg's whole run against 40
    assert plain.times_fewer == 1.0


def test_what_sends_more_is_not_called_times_fewer(tmp_path, capsys):
    """FedWS reaches FedAvg's 0.15 for good in its third round only, and has then sent more."""
    tell(tmp_path / "avg", [0.15, 0.15], method="fedavg")
    tell(tmp_path / "ws", [0.1, 0.1, 0.5], method="fedws")
    assert main(["compare", str(tmp_path), "--target", "fedavg", "--format", "md"]) == 0
    table = capsys.readouterr().out.partition("times fewer")[2]
    (line,) = [line for line in table.splitlines() if line.startswith("| fedws")]
    assert "| 120 B | 50 % more |" in line


def test_the_target_is_a_number_or_a_group(sweep):
    found = compare(read_runs([sweep]), "0.61")
    assert [line.reached.runs for line in found.lines] == [1, 0, 0]
    assert [line.times_fewer for line in found.lines] == [None, None, None]
    assert compare(read_runs([sweep]), "fedws").target.accuracy == pytest.approx(0.555)
    with pytest.raises(ConfigError, match="did you mean fedws"):
        compare(read_runs([sweep]), "fedwsx")
    for percent in ("60", "-1", "nan"):
        with pytest.raises(ConfigError, match=r"accuracies are from 0 to 1, such as 0\.6"):
            compare(read_runs([sweep]), percent)
    for rounds in (-3, 0):
        with pytest.raises(ConfigError, match=f"--rounds is {rounds}, must be at least 1"):
            compare(read_runs([sweep]), rounds=rounds)
    assert main(["compare", str(sweep), "--rounds", "0"]) == 2


def test_unlike_runs_are_flagged(sweep):
    rewrite(sweep / "ws-1", precision="bfloat16", commit="def-dirty", data="other")
    said = compare(read_runs([sweep])).flags
    assert "precision differs: float32 (avg-0, avg-1, dyn-0 and 1 more), bfloat16 (ws-1)" in said
    assert any(flag.startswith("commit differs") for flag in said)
    assert "made from a checkout with changes that no commit has: ws-1" in said
    assert "the set of seeds differs: 0, 1 (fedavg, fedws), 0 (feddyn)" in said
    assert "the data itself differs: d (avg-1), other (ws-1)" in said


def test_other_data_and_lost_rows_are_flagged(tmp_path):
    tell(tmp_path / "a", [0.1, 0.2])
    folder = tell(tmp_path / "b", [0.1, 0.2], **{"data.partition.alpha": 0.6})
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text("".join(["?\n", lines[1]]))
    said = compare(read_runs([tmp_path])).flags
    assert "data.partition.alpha differs: 0.3 (fedavg, alpha=0.3), 0.6 (fedavg, alpha=0.6)" in said
    assert "b lacks 1 row, so its bytes and seconds are too low" in said


def test_a_run_that_is_there_twice_is_one_seed(sweep):
    once = compare(read_runs([sweep]))
    shutil.copytree(sweep / "ws-1", sweep / "ws-1-again")
    found = compare(read_runs([sweep, sweep / "ws-0"]))  # one by its folder, too
    assert found.lines == once.lines
    assert found.left_out == (
        "ws-1-again repeats ws-1, with the same settings and seed, and is left out",
    )


def test_of_a_run_without_settings_no_setting_is_said_to_differ(sweep):
    (sweep / "ws-1" / "config.toml").write_text("=")
    assert not any("None" in flag for flag in flags(group_runs(read_runs([sweep]))))


def test_runs_that_are_not_finished_are_left_out_and_said(sweep):
    (sweep / "dyn-0" / "summary.json").unlink()
    (sweep / "ws-1" / "config.toml").write_text("=")
    found = compare(read_runs([sweep]))
    assert [line.group.label for line in found.lines] == ["fedws", "fedavg"]
    assert found.left_out[0] == "dyn-0 is partial: 2 of 2 rounds"
    assert found.left_out[1].startswith("ws-1 is damaged: config.toml cannot be read")


def test_with_rounds_all_that_got_so_far_are_compared_as_they_were(sweep):
    (sweep / "dyn-0" / "summary.json").unlink()
    found = compare(read_runs([sweep]), rounds=1)
    assert [line.group.label for line in found.lines] == ["fedws", "fedavg", "feddyn"]
    assert found.lines[0].total_bytes == 40
    why = "--rounds is 3, and none of 5 runs got so far; the longest has 2 rounds"
    with pytest.raises(ConfigError, match=why):
        compare(read_runs([sweep]), rounds=3)
    tell(sweep / "long", [0.1, 0.2, 0.3])
    found = compare(read_runs([sweep]), rounds=3)
    assert "avg-0 is finished: 2 of 2 rounds, and 3 were asked for" in found.left_out


def test_the_command_prints_means_intervals_and_noise(sweep, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["compare", str(sweep)]) == 0
    out = capsys.readouterr().out
    # 0.60 and 0.62: t(1 degree) = 12.7062, s / sqrt(2) = 0.01.
    assert "61.00 ± 12.71" in out
    assert "-2.00, one seed" in out
    # Variances 0.0001 each: t(2 degrees) = 4.30265, standard error sqrt(0.0002).
    assert "-20.00 ± 6.08" in out
    assert "to 30.50 (fedavg)" in out


def test_the_command_gives_exact_numbers_as_csv(sweep, capsys):
    assert main(["compare", str(sweep), "--format", "csv"]) == 0
    out, err = capsys.readouterr()
    first = next(csv.DictReader(io.StringIO(out)))
    assert (first["runs"], first["seeds"], first["bytes_to_target"]) == ("fedws", "2", "40.0")
    assert "the set of seeds differs" in err


def test_cells_stay_text_in_every_layout():
    head = ["a|b", "50%_x"]
    rows = [["=1+1", "<b>*"], ["-1.5", "x\ny"]]
    assert laid_out(head, rows, "md") == (
        "| a\\|b | 50%\\_x |\n| --- | --- |\n| =1+1 | \\<b\\>\\* |\n| -1.5 | x y |\n"
    )
    assert laid_out(head, rows, "csv") == 'a|b,50%_x\n\'=1+1,<b>*\n-1.5,"x\ny"\n'
    latex = laid_out(head, rows, "latex")
    assert r"a|b & 50\%\_x \\" in latex
    assert latex.startswith("\\begin{tabular}{ll}\n")
