"""`fedwsq partition`: a split shown, saved, drawn and imported."""

import json
import sys

import pytest
import torch

from fedwsq.cli import main
from fedwsq.cli.work.partition import NAMED_CLASSES, Found, draw, picture
from fedwsq.data.digits import digits
from fedwsq.data.partition import dirichlet, iid, shards
from fedwsq.data.split_files import load_split

pytestmark = pytest.mark.usefixtures("in_empty_folder")


def fedwsq(capsys, *words: str) -> tuple[int, str, str]:
    code = main(["partition", *words])
    out, err = capsys.readouterr()
    return code, out, err


def shown(out: str) -> dict[str, list[float]]:
    """The table: name -> min, mean, max."""
    rows = [line.rsplit(maxsplit=3) for line in out.splitlines()[2:6]]
    return {name.strip(): [float(number) for number in numbers] for name, *numbers in rows}


def test_the_table_is_that_of_the_plans_split(capsys):
    code, out, err = fedwsq(capsys, "data.partition.alpha=0.1", "data.clients=4", "seed=3")
    labels = digits().train.labels
    found = dirichlet(labels, 4, 3, 0.1).statistics(labels, 10)
    assert (code, err) == (0, "")
    held = 4 * (len(labels) // 4)
    assert out.startswith(
        f"digits, dirichlet: {held} examples over 4 clients, 2 unused; 10 classes\n"
    )
    names = ("examples", "classes", "largest share", "effective classes")
    for name, values in zip(names, found, strict=True):
        expected = [float(values.min()), float(values.double().mean()), float(values.max())]
        assert shown(out)[name] == pytest.approx(expected, rel=1e-4)
    assert len(out.splitlines()) == 2 + 4 + 1 + 4


def test_the_picture_by_hand():
    # 9 shades above blank: 90 -> 9, 10 -> 1, 11 -> 2, 1 -> 1, 0 -> blank.
    lines = picture(torch.tensor([[90, 10, 0], [11, 1, 45]]))
    assert lines == ["clients down, classes across; @ is 90", "     0 |@. |", "     1 |:.+|"]


def test_the_picture_of_many_is_of_the_first_and_columns_are_merged():
    counts = torch.zeros(30, 250, dtype=torch.int64)
    counts[:, 249] = 5
    lines = picture(counts)
    assert lines[0] == "first 20 clients down, classes across (3 a column); @ is 5"
    assert len(lines) == 21
    assert lines[1] == "     0 |" + " " * 83 + "@|"
    assert picture(torch.zeros(1, 2, dtype=torch.int64))[1] == "     0 |  |"


def test_a_saved_split_is_the_split_of_a_run(capsys, in_empty_folder):
    code, out, _ = fedwsq(capsys, "data.partition=shards", "data.clients=30", "--out", "split.json")
    assert code == 0
    assert out.endswith(
        "use it with data.partition=file data.partition.path=split.json data.clients=30\n"
    )
    split, examples = load_split(in_empty_folder / "split.json")
    labels = digits().train.labels
    assert examples == len(labels)
    assert torch.equal(split.indices, shards(labels, 30, 0).indices)
    code, again, _ = fedwsq(capsys, *out.splitlines()[-1].removeprefix("use it with ").split())
    assert code == 0
    assert again.splitlines()[1:] == out.splitlines()[1:-1]
    words = [
        "run",
        "rounds=1",
        "training.epochs=1",
        "data.partition=file",
        "data.partition.path=split.json",
    ]
    assert main([*words, "data.clients=30", "--workers", "1"]) == 0


def test_client_test_does_not_change_what_is_shown(capsys):
    assert fedwsq(capsys, "data.client_test=0.5") == fedwsq(capsys)


def test_a_plot_is_drawn(capsys, in_empty_folder):
    pytest.importorskip("matplotlib")
    code, _, err = fedwsq(capsys, "--plot", "split.png")
    assert (code, err) == (0, "")
    assert (in_empty_folder / "split.png").read_bytes().startswith(b"\x89PNG")
    code, out, err = fedwsq(capsys, "--plot", "split.pigment")
    assert (code, out) == (2, "")
    assert "pigment" in err
    assert err.count("\n") == 1


def test_the_plot_counts_in_whole_clients_and_names_classes():
    picture = pytest.importorskip("matplotlib.figure").Figure()
    labels = torch.arange(40) % 3
    split = iid(labels, 3, 0)
    found = Found("pets, iid", split, 40, labels, 3, ("cat", "dog", "eel"))
    draw(picture, found)
    axes = picture.axes[0]
    assert axes.get_title() == f"pets, iid: {len(split.indices)} examples over 3 clients"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["cat", "dog", "eel"]
    assert all(mark == round(mark) for mark in axes.get_yticks())


def test_more_classes_than_an_axis_has_room_for_are_numbered():
    picture = pytest.importorskip("matplotlib.figure").Figure()
    count = NAMED_CLASSES + 1
    labels = torch.arange(count)
    split = iid(labels, 2, 0)
    names = tuple(f"class {label}" for label in range(count))
    draw(picture, Found("many, iid", split, count, labels, count, names))
    assert not any("class" in label.get_text() for label in picture.axes[0].get_xticklabels())


def test_classes_without_names_are_counted_in_whole_numbers():
    picture = pytest.importorskip("matplotlib.figure").Figure()
    labels = torch.arange(40) % 3
    split = iid(labels, 2, 0)
    draw(picture, Found("npz, iid", split, 40, labels, 3))
    for marks in (picture.axes[0].get_xticks(), picture.axes[0].get_yticks()):
        assert all(mark == round(mark) for mark in marks)


@pytest.mark.parametrize(
    ("out", "why"),
    [("no/such/split.json", "there is no folder no/such"), (".", "it is a folder")],
)
def test_a_split_that_cannot_be_saved_is_refused_at_once(capsys, in_empty_folder, out, why):
    code, printed, err = fedwsq(capsys, "data.root=absent", "--out", out)
    assert (code, printed, err.count("\n")) == (2, "", 1)
    assert f"cannot write {out}: {why}" in err
    assert list(in_empty_folder.iterdir()) == []


def test_a_key_given_twice_is_refused(capsys):
    code, out, err = fedwsq(capsys, "data.clients=4", "data.clients=5")
    assert (code, out) == (2, "")
    assert "data.clients is given twice" in err
    assert fedwsq(capsys, "clients_per_round=2", "data.clients=2")[0] == 0


def test_without_matplotlib_there_is_a_hint_and_all_else_works(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, out, err = fedwsq(capsys, "--plot", "split.png")
    assert (code, out) == (2, "")
    assert "pip install 'fedwsq[report]'" in err
    assert fedwsq(capsys)[0] == 0


@pytest.fixture
def published(in_empty_folder):
    """A file as published repositories have them: the first 60 digits, the last given out twice."""
    path = in_empty_folder / "published.txt"
    path.write_text(str({0: list(range(30)), 1: [*range(30, 60), 59]}) + "\n")
    return path


def test_a_published_split_is_imported(capsys, published):
    code, out, err = fedwsq(capsys, "--import", "published.txt", "--out", "split.json")
    assert (code, out) == (2, "")
    assert "gives 1 of its 61 indices out again" in err
    assert not published.with_name("split.json").exists()
    code, out, err = fedwsq(
        capsys, "--import", "published.txt", "--drop-repeats", "--out", "split.json"
    )
    assert (code, err) == (0, "")
    assert out.startswith("published.txt: 60 examples over 2 clients\n")
    saved = json.loads(published.with_name("split.json").read_text())
    assert (saved["examples"], saved["repeats"]) == (None, False)
    assert saved["clients"] == [list(range(30)), list(range(30, 60))]
    code, out, err = fedwsq(
        capsys, "--import", "published.txt", "--keep-repeats", "--out", "split.json"
    )
    assert (code, err) == (0, "")
    assert out.startswith("published.txt: 60 examples over 2 clients, 1 given out again\n")
    assert json.loads(published.with_name("split.json").read_text())["repeats"] is True


def test_an_import_is_held_against_the_data_of_a_config(capsys, published):
    words = ["--import", "published.txt", "--drop-repeats", "--out", "split.json"]
    code, out, _ = fedwsq(capsys, "quickstart", *words)
    assert code == 0
    assert out.startswith(
        "digits, published.txt: 60 examples over 2 clients, 1378 unused; 10 classes\n"
    )
    assert json.loads(published.with_name("split.json").read_text())["examples"] == 1438
    published.write_text("{0: [1, 1438]}")
    code, out, err = fedwsq(capsys, "quickstart", *words)
    assert (code, out) == (2, "")
    assert "index 1438, and there are 1438 examples" in err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--import", "absent.txt"], "cannot read absent.txt"),
        (["--drop-repeats"], "--drop-repeats needs --import"),
        (["--import", "published.txt", "--keep-repeats", "--plot", "x.png"], "give its config too"),
        (["data.partition=file"], "needs data.partition.path"),
        (["data.partition=group"], "no groups"),
        (["data.partition=shard"], "did you mean shards?"),
        (["data.clients=9999"], "9999 clients cannot share"),
        (["nowhere"], "no config 'nowhere'"),
        (["--out", "absent/split.json"], "absent"),
    ],
)
@pytest.mark.usefixtures("published")
def test_what_cannot_be_is_one_line(capsys, words, why):
    code, out, err = fedwsq(capsys, *words)
    assert (code, out) == (2, "")
    assert why in err
    assert err.startswith("fedwsq: ")
    assert err.count("\n") == 1


def test_data_without_classes_has_sizes_only(capsys, in_empty_folder):
    (in_empty_folder / "houses.py").write_text(
        "import torch\n"
        "from fedwsq.data import Dataset, Examples\n"
        "def load():\n"
        "    half = Examples([torch.zeros(50, 3)], torch.rand(50))\n"
        "    return Dataset(half, half, 1)\n"
    )
    code, out, err = fedwsq(capsys, "data.name=houses:load", "data.partition=iid")
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()[1:]] == [
        ["each", "client", "min", "mean", "max"],
        ["examples", "5", "5", "5"],
    ]
