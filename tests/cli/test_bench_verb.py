"""`fedwsq bench`: the table, the file that grows group by group, and the picture."""

import json

import pytest

from fedwsq.bench import population
from fedwsq.bench.figure import Figure
from fedwsq.cli import main
from fedwsq.cli.work import bench

SLOW = Figure("copy / memcpy", 0.5, 0.25, 0.75, must=0.7, note="3 GB/s")
FAST = Figure("round", 80.0, 75.0, 90.0, "ms", 100, "lower")


def interrupted():
    raise KeyboardInterrupt


@pytest.fixture
def groups(monkeypatch):
    monkeypatch.setattr(bench, "GROUPS", {"codec": lambda: [SLOW], "round": lambda: [FAST]})


def test_figures_and_bars_are_lines_of_a_table(capsys, groups):
    assert main(["bench"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[1:] == [
        "figure median spread must reach",
        "copy / memcpy 0.5 x 0.25 to 0.75 >= 0.7 x NO 3 GB/s",
        "round 80 ms 75 to 90 <= 100 ms yes",
    ]


def test_the_file_says_what_was_measured_where_and_when(groups, tmp_path):
    assert main(["bench", "codec", "--json", str(tmp_path / "b.json")]) == 0
    found = json.loads((tmp_path / "b.json").read_text())
    assert found["machine"].keys() >= {"cpu", "cores", "torch", "date"}
    assert [(each["name"], each["value"], each["reached"]) for each in found["figures"]] == [
        ("copy / memcpy", 0.5, False)
    ]


def test_interrupted_it_keeps_what_there_is(capsys, groups, monkeypatch, tmp_path):
    monkeypatch.setitem(bench.GROUPS, "round", interrupted)
    assert main(["bench", "all", "--json", str(tmp_path / "b.json")]) == 130
    assert "copy / memcpy" in capsys.readouterr().out
    found = json.loads((tmp_path / "b.json").read_text())["figures"]
    assert [each["name"] for each in found] == ["copy / memcpy"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--json", "no/such/b.json"], "there is no folder no/such"),
        (["--plot", "no/such/b.png"], "there is no folder no/such"),
        (["--plot", "b.tiger"], "must end in .png"),
        (["codec", "--plot", "b.png"], "use population or all"),
    ],
)
def test_what_cannot_be_written_is_said_before_anything_is_measured(
    capsys, monkeypatch, tmp_path, words, why
):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "GROUPS", dict.fromkeys(("codec", "population"), interrupted))
    assert main(["bench", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert why in err


def test_the_picture_has_a_mark_for_every_point(monkeypatch, tmp_path):
    """Two rows over four populations and four cohorts; the middle ones of both are one point."""
    pytest.importorskip("matplotlib")
    made = [
        Figure(point.name(what), sum(point), 0, 10**6)
        for what in ("round", "memory")
        for point in population.POINTS
    ]
    monkeypatch.setattr(bench, "GROUPS", {"population": lambda: made})
    assert main(["bench", "population", "--plot", str(tmp_path / "b.svg")]) == 0
    text = (tmp_path / "b.svg").read_text()
    assert text.count('id="LineCollection_') == 4  # error bars, one set a panel
    for panel in text.split('id="axes_')[1:]:
        bars = panel.partition('id="LineCollection_1"')[2].partition("</g>")[0]
        assert bars.count("<path") in (0, 4)
    from matplotlib.figure import Figure as Picture

    picture = Picture()
    population.draw(picture, made)
    x = [sorted(axes.lines[0].get_xdata().tolist()) for axes in picture.axes]
    assert x == [[100, 1000, 10_000, 100_000], [10, 50, 200, 1000]] * 2
    y = picture.axes[1].lines[0].get_ydata().tolist()
    assert y == [1010, 1050, 1200, 2000]
