"""Tables like the paper's: every run in its cell, beside the published number."""

import csv
import io
import shutil

import pytest
from stories import rewrite, tell

from fedwsq.cli import main
from fedwsq.core.errors import ConfigError
from fedwsq.plan.published import published_table
from fedwsq.report.table import fill
from fedwsq.runs.reading import read_runs

RHO = {"data.name": "cifar10", "method": "fedws", "aggregation": "uniform"}
TABLE = published_table("paper-table-5")


@pytest.fixture
def runs(tmp_path):
    """rho = 1e-3, i.i.d., two seeds; rho = 1e-2, alpha = 0.3, one; and one that belongs nowhere."""
    one = {**RHO, "data.partition": "iid", "model.standardize.rho": 1e-3}
    tell(tmp_path / "a", [0.5, 0.90], seed=0, **one)
    tell(tmp_path / "b", [0.5, 0.92], seed=1, **one)
    tell(tmp_path / "c", [0.8], **RHO, **{"model.standardize.rho": 1e-2})
    tell(tmp_path / "d", [0.8], **RHO, **{"model.standardize.rho": 0.5})
    return tmp_path


def test_each_run_is_in_its_cell_with_the_difference(runs):
    filled = fill(TABLE, read_runs([runs]))
    texts = [[cell.text for cell in row] for row in filled.cells]
    assert texts == [
        ["(87.15)", "(89.71)", "80.00 (89.62, -9.62)", "(89.46)"],
        # 90 and 92: t(1 degree) = 12.7062 times 1.
        ["(90.64)", "91.00 ± 12.71 (92.48, -1.48)", "(91.97)", "(92.11)"],
    ]


def test_what_differs_from_the_published_settings_is_named(runs):
    notes = fill(TABLE, read_runs([runs])).notes
    assert notes[0] == "2 of 8 cells were run"
    assert "  rounds: 1 (1000), 2 (1000)" in notes
    assert "  model.name: cnn (resnet18)" in notes
    assert "  data.clients: 10 (100)" in notes
    assert not any(note.startswith(("  aggregation", "  seed")) for note in notes)
    assert any("fits no cell of paper-table-5" in note for note in notes)


def test_runs_of_other_seeds_precision_commit_or_data_are_flagged(runs):
    rewrite(runs / "b", precision="bfloat16", commit="def", data="other")
    notes = fill(TABLE, read_runs([runs])).notes
    assert "flag: precision differs: float32 (c, a), bfloat16 (b)" in notes
    assert any(note.startswith("flag: commit differs: ") for note in notes)
    assert any(note.startswith("flag: the set of seeds differs: ") for note in notes)
    assert not any(note.startswith(("flag: the number", "flag: data.")) for note in notes)


def test_of_several_groups_the_longest_is_shown(runs):
    tell(runs / "e", [0.1, 0.2, 0.3], **RHO, **{"model.standardize.rho": 1e-2})
    filled = fill(TABLE, read_runs([runs]))
    assert filled.cells[0][2].text == "30.00 (89.62, -59.62)"
    assert any("2 groups of runs fit; shown is the longest" in note for note in filled.notes)


def test_runs_that_are_not_finished_are_in_no_cell(runs):
    (runs / "c" / "summary.json").unlink()
    filled = fill(TABLE, read_runs([runs]))
    assert filled.cells[0][2].text == "(89.62)"
    assert "c is partial, and left out" in filled.notes


def test_a_run_that_is_there_twice_is_one_seed(runs):
    shutil.copytree(runs / "b", runs / "b-again")
    filled = fill(TABLE, read_runs([runs, runs / "a"]))
    assert filled.cells[1][1].text == "91.00 ± 12.71 (92.48, -1.48)"
    assert "b-again repeats b, with the same settings and seed, and is left out" in filled.left_out


def test_methods_and_bits_find_their_rows(tmp_path):
    base = {"data.name": "cifar10", "data.partition.alpha": 0.6}
    tell(tmp_path / "a", [0.5], method="fedwsq", **base, **{"uplink.bits": 1})
    tell(tmp_path / "b", [0.6], method="fedwsq", **base, **{"uplink.bits": "per_round"})
    tell(tmp_path / "c", [0.7], method="fedhq+", **base)
    tell(tmp_path / "d", [0.4], method="fedadam", **base)
    filled = fill(published_table("paper-table-1"), read_runs([tmp_path]))
    found = {
        " ".join(cell.row.label): cell.text
        for row in filled.cells
        for cell in row
        if cell.result is not None
    }
    assert found == {
        "FedADAM 32": "40.00 (85.97, -45.97)",
        "FedHQ+ 4": "70.00 (81.42, -11.42)",
        "FedWSQ 1": "50.00 (89.49, -39.49)",
        "FedWSQ DBA (2.33)": "60.00 (90.26, -30.26)",
    }


def test_the_command_writes_the_table_and_keeps_the_notes_out_of_it(runs, capsys):
    assert main(["table", str(runs), "--like", "paper-table-5"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "| rho | 1e-4 | 1e-3 | 1e-2 | 1e-1 |"
    assert out.splitlines()[3].startswith("| i.i.d. | (90.64) | 91.00 ± 12.71 (92.48, -1.48) |")
    assert "2 of 8 cells were run" in err
    assert main(["table", str(runs), "--like", "paper-table-5", "--format", "latex"]) == 0
    assert r"91.00 $\pm$ 12.71 (92.48, -1.48)" in capsys.readouterr().out


def test_csv_has_a_line_for_each_cell(runs, capsys):
    assert main(["table", str(runs), "--like", "paper-table-5", "--format", "csv"]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(lines) == 8
    assert lines[0] | {"mean": "", "seeds": ""} == lines[0]
    assert (lines[2]["column"], float(lines[2]["mean"]), lines[2]["seeds"]) == ("1e-2", 80.0, "1")


def test_a_table_that_is_not_there_is_refused(runs, tmp_path):
    with pytest.raises(ConfigError, match=r"no table 'paper-table-6'.*did you mean paper-table-"):
        published_table("paper-table-6")
    (tmp_path / "mine.toml").write_text("title = 'x'")
    with pytest.raises(ConfigError, match="lacks 'rows'"):
        published_table(str(tmp_path / "mine.toml"))
