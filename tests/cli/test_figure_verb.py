"""`fedwsq figure`: what is drawn, from which runs, and what cannot be."""

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

import numpy as np
from matplotlib.figure import Figure

from fedwsq.cli import main
from fedwsq.report.figures import draw_bits, draw_curves, draw_levels, panels
from fedwsq.runs import Run
from fedwsq.runs.reading import read_runs
from harness import tiny
from report.made_up import make_run, make_runs

MAGIC = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    make_runs(folder, rounds=6, seeds=2)
    return folder


@pytest.mark.parametrize("kind", ["png", "pdf", "svg"])
def test_a_file_of_each_kind(runs, in_empty_folder, capsys, kind):
    assert main(["figure", "curves", str(runs), "--out", f"out.{kind}"]) == 0
    assert capsys.readouterr().out == f"out.{kind}\n"
    assert (in_empty_folder / f"out.{kind}").read_bytes().startswith(MAGIC[kind])


def test_curves_are_means_over_seeds_against_all_bytes(runs):
    figure = Figure()
    readings = read_runs([runs])
    draw_curves(figure, panels(readings), "bytes", average=False)
    (axes,) = figure.axes
    lines = {line.get_label(): line for line in axes.lines}
    assert len(lines) == 5
    first, second = [run.rows for run in readings if run.name.startswith("fedavg-")]
    mean = [50 * (a.test_accuracy + b.test_accuracy) for a, b in zip(first, second, strict=True)]
    assert lines["fedavg"].get_ydata() == pytest.approx(mean)
    sent = (first[0].uplink_bytes + first[0].downlink_bytes) / 1e6
    assert lines["fedavg"].get_xdata() == pytest.approx([sent * (k + 1) for k in range(6)])
    assert axes.get_xscale() == "log"


def test_other_splits_have_panels_of_their_own_and_lines_keep_their_colours(tmp_path):
    for alpha in (0.1, 0.6):
        for name in ("fedavg", "fedws"):
            folder = tmp_path / f"{name}-{alpha}"
            make_run(folder, name, rounds=3, seed=0)
            config = folder / "config.toml"
            config.write_text(config.read_text().replace("alpha = 0.3", f"alpha = {alpha}"))
    figure = Figure()
    draw_curves(figure, panels(read_runs([tmp_path])), "rounds", average=True)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == [
        "cifar10, dirichlet 0.1, 5 of 100 clients",
        "cifar10, dirichlet 0.6, 5 of 100 clients",
    ]
    colours = [{line.get_label(): line.get_color() for line in axes.lines} for axes in figure.axes]
    assert colours[0] == colours[1]
    assert set(colours[0]) == {"fedavg", "fedws"}


@pytest.mark.parametrize("inches", [9.0, 4.6, 3.0])
def test_the_legend_fits_its_figure(runs, inches):
    figure = Figure(figsize=(inches, 3.2), layout="constrained")
    draw_curves(figure, panels(read_runs([runs])), "bytes", average=False)
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 5
    assert legend.get_window_extent().width <= figure.bbox.width


def test_rounds_are_marked_at_whole_numbers(tmp_path):
    make_run(tmp_path / "short", "fedavg", rounds=3, seed=0)
    figure = Figure()
    draw_curves(figure, panels(read_runs([tmp_path])), "rounds", average=False)
    (axes,) = figure.axes
    marks = axes.xaxis.get_major_locator().tick_values(1, 3)
    assert all(float(mark).is_integer() for mark in marks)


def test_runs_that_should_not_be_in_one_picture_are_flagged(tmp_path, capsys):
    make_run(tmp_path / "a", "fedavg", rounds=2, seed=0)
    make_run(tmp_path / "b", "fedws", rounds=2, seed=0)
    manifest = tmp_path / "b" / "manifest.json"
    found = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**found, "precision": "bfloat16"}))
    assert main(["figure", "curves", str(tmp_path), "--out", str(tmp_path / "x.png")]) == 0
    assert "flag: precision differs: " in capsys.readouterr().err


def test_runs_that_are_damaged_or_there_twice_are_left_out(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copy = Path(shutil.copytree(runs, tmp_path / "runs"))
    whole = panels(read_runs([copy]))
    shutil.copytree(copy / "fedavg-0", copy / "fedavg-again")
    assert panels(read_runs([copy])) == whole
    (copy / "fedavg-again" / "config.toml").write_text("= broken")
    (copy / "fedws-0" / "summary.json").unlink()
    assert main(["figure", "curves", "runs", "--out", "out.svg"]) == 0
    assert "None" not in (tmp_path / "out.svg").read_text()
    said = capsys.readouterr().err
    assert "warning: fedavg-again is damaged, and left out" in said
    assert "warning: fedws-0 is partial, and drawn to round 6" in said


def test_bits_join_the_widths_of_one_method(runs):
    figure = Figure()
    draw_bits(figure, panels(read_runs([runs])))
    (axes,) = figure.axes
    points = {bars.get_label(): bars.lines[0].get_xdata().tolist() for bars in axes.containers}
    assert points["fedwsq"] == [1, 4]
    assert points["fedavg"] == [32]


def test_levels_lie_over_updates_that_were_sent(in_empty_folder, capsys):
    plan = tiny(rounds=1, method="fedws", **{"record.rounds": [1]})
    with Run.create(plan, in_empty_folder / "kept", workers=1) as run:
        run.go()
    assert main(["figure", "levels", "kept", "--codecs", "ecq", "--out", "out.png"]) == 2
    assert "ecq has no fixed levels" in capsys.readouterr().err
    assert main(["figure", "levels", "kept", "--out", "out.png"]) == 0
    assert (in_empty_folder / "out.png").read_bytes().startswith(MAGIC["png"])


def test_a_split_is_drawn_from_a_run_or_a_config(in_empty_folder, capsys):
    with Run.create(tiny(rounds=1), in_empty_folder / "run", workers=1):
        pass
    assert main(["figure", "split", "run", "--out", "split.svg"]) == 0
    drawn = (in_empty_folder / "split.svg").read_text()
    assert "digits, dirichlet: 1430 examples over 10 clients" in drawn
    words = ["quickstart", "data.clients=4", "data.partition=iid"]
    assert main(["figure", "split", *words, "--out", "split.svg"]) == 0
    drawn = (in_empty_folder / "split.svg").read_text()
    assert "digits, iid: 1436 examples over 4 clients" in drawn
    capsys.readouterr()


def test_levels_are_drawn_where_they_are():
    figure = Figure()
    values = np.random.default_rng(0).normal(0, 3, 1000).astype(np.float32)
    draw_levels(figure, {"conv": values}, {"one": [-0.5, 0.5]})
    (axes,) = figure.axes
    (marks,) = [each for each in axes.collections if each.get_label() == "one"]
    assert [segment[0][0] for segment in marks.get_segments()] == [-0.5, 0.5]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["curves", "nowhere", "--out", "x.png"], "nowhere is not a run directory"),
        (["curves", "RUNS", "--out", "x.pigment"], "pigment"),
        (["curves", "RUNS", "--out", "no/x.png"], "there is no folder no"),
        (["levels", "RUNS/fedavg-0", "--out", "x.png"], "record.rounds=[1], or with --keep"),
        (["levels", "RUNS/fedavg-0", "RUNS/fedavg-1", "--out", "x.png"], "of one run"),
        (["split", "nowhere", "--out", "x.png"], "nowhere"),
    ],
)
def test_what_cannot_be_is_one_line(runs, in_empty_folder, capsys, words, why):
    code = main(["figure", *(word.replace("RUNS", str(runs)) for word in words)])
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert why in err
    assert list(in_empty_folder.iterdir()) == []
