"""Bytes to accuracy from kept runs, with numbers worked out by hand."""

import math
import sys
from dataclasses import replace

import pytest
from stories import tell

from fedwsq.report.compare import bytes_to, held_from, smooth, smoothed
from fedwsq.runs.reading import read_run
from harness import TESTS

sys.path.append(str(TESTS.parent / "benchmarks"))

import kept
import lean

ECQ = {
    "downlink.codec": "ecq",
    "downlink.bits": 3,
    "downlink.select": "weights",
}


@pytest.fixture
def short(monkeypatch):
    """Runs of four rounds have an end, so that numbers can be worked out by hand."""
    monkeypatch.setattr(lean, "ENOUGH", 4)


def evaluated_every(run, step):
    """The same run with fewer evaluations."""
    rows = []
    for row in run.rows:
        if row.round % step:
            row = replace(row, test_accuracy=None, test_accuracy_ema=None)
        rows.append(row)
    return replace(run, rows=tuple(rows))


def test_a_moving_average_looks_back_as_many_rounds_however_few_are_evaluated(tmp_path):
    run = read_run(tell(tmp_path / "run", [0.0, 0.0, 0.2, 0.0, 0.0, 0.8]))
    third = evaluated_every(run, 3)
    # Seeded with 0.2; then 0.9^3 of it is kept.
    expected = 0.729 * 0.2 + 0.271 * 0.8
    assert smooth(third.rows) == [None, None, 0.2, None, None, pytest.approx(expected)]
    assert smoothed(third) == pytest.approx(expected)
    assert (held_from(third, 0.3), held_from(third, 0.1)) == (6, 3)
    assert bytes_to(third, 0.1) == 3 * 40  # with the rounds before it
    # Where every round is evaluated it is what the rows have.
    assert smooth(run.rows) == [row.accuracy_ema for row in run.rows]


@pytest.fixture
def runs(tmp_path, short):
    """FedAvg comes to 0.5 in 4 rounds; FedWS is there in 2, a coded one in 1, one never."""
    stories = {
        "avg": ([0.1, 0.3, 0.8, 0.8], {}),
        "ws": ([0.1, 0.6, 0.7, 0.7], {"method": "fedws"}),
        "coded": ([0.6, 0.6, 0.7, 0.7], {"method": "fedws", **ECQ}),
        "never": ([0.1, 0.1, 0.1, 0.1], {"method": "fedprox"}),
    }
    found = []
    for seed in (0, 1):
        for name, (accuracies, settings) in stories.items():
            folder = tell(tmp_path / f"{name}-{seed}", accuracies, seed=seed, **settings)
            found.append(read_run(folder))
    return found


def cells(text, name):
    (row,) = (line for line in text.splitlines() if line.startswith(f"| {name} |"))
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_bytes_to_where_fedavg_comes_to(runs):
    (scene,) = lean.scenes(runs)
    assert scene.target(0) == pytest.approx(0.5)  # the mean of its evaluations
    text = lean.section([scene])
    # 40 bytes a round: 4 rounds of FedAvg are 160, its own way there 120, FedWS's 80.
    coded = cells(text, "fedws, down ecq 3 bits")
    assert coded[1] == "1, 1"
    assert coded[3:5] == [f"{times} ({times} to {times}, 2 seeds)" for times in ("3.0", "2.0")]
    assert coded[5] == ""  # FedACG with WS was not run
    assert coded[6] == "4.0 (4.0 to 4.0, 2 seeds)"
    # It ends at 70 % where FedAvg ends at 80, above what that came to on the way.
    assert coded[7] == "-10.00 ± 0.00 (2 seeds)"
    assert cells(text, "fedavg")[1:2] == ["3, 3"]
    assert cells(text, "fedprox")[1] == "by 0 of 2 seeds"


@pytest.mark.parametrize(("rounds", "told"), [(39, 0), (40, 1)])
def test_what_a_short_run_comes_to_is_not_told(tmp_path, rounds, told):
    """Its last ten evaluations would be more of its way than of its end."""
    runs = []
    for name in ("fedavg", "fedws"):
        runs.append(read_run(tell(tmp_path / name, [0.5] * rounds, method=name)))
    assert len(lean.scenes(runs)) == told


def test_one_seed_is_said_and_longer_runs_are_taken_as_they_were(runs, tmp_path):
    longer = tell(tmp_path / "long", [0.6, 0.6, 0.7, 0.7, 0.1], seed=0, method="fedacg")
    found = [run for run in runs if run.seed == 0]
    (scene,) = lean.scenes([*found, read_run(longer)])
    assert scene.rounds == 4
    assert cells(lean.section([scene]), "fedacg")[3] == "3.0 (one seed)"


def test_fedavgs_best_learning_rate_is_the_reference(runs, tmp_path):
    better = tell(tmp_path / "rate", [0.1, 0.7, 0.8, 0.8], seed=0, **{"training.lr": 0.03})
    (scene,) = lean.scenes([*runs, read_run(better)])
    # Seed 1 has one rate: its own best is that.
    assert scene.target(0) == pytest.approx(0.6)
    assert scene.target(1) == pytest.approx(0.5)
    assert "50.0 at" in lean.section([scene])
    assert "60.0 at 0.03" in lean.section([scene])


def test_nothing_to_compare_is_said(runs):
    others = [run for run in runs if run.settings["algorithm.name"] != "fedavg"]
    assert "**not run yet**" in lean.section(lean.scenes(others))


def test_it_is_told_of_settings_where_something_codes_its_broadcasts(runs):
    assert len(lean.told(runs)) == 1
    plain = [run for run in runs if run.settings["downlink.codec.name"] == "float32"]
    assert len(lean.scenes(plain)) == 1
    assert lean.told(plain) == []


def test_the_figure_has_a_panel_for_each_setting(runs, tmp_path):
    path = tmp_path / lean.FIGURE
    lean.draw(lean.scenes(runs), path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_factors_are_averaged_as_ratios():
    assert kept.shown_factor([2.0, 8.0]).startswith("4.0 (")
    assert kept.shown_factor([math.e]) == "2.7 (one seed)"
    assert kept.shown_factor([]) == ""


def test_a_bound_that_no_update_met_makes_no_other_side(runs):
    bounded = [replace(run, settings={**run.settings, "bounds.norm": 4.0}) for run in runs[4:]]
    (scene,) = lean.scenes([*runs[:4], *bounded])
    assert set(scene.sides["fedws"]) == {0, 1}
    met = []
    for run in bounded:
        rows = tuple(replace(row, clipped=1) for row in run.rows)
        met.append(replace(run, rows=rows))
    (scene,) = lean.scenes([*runs[:4], *met])
    assert not any(len(found) == 2 for found in scene.sides.values())
