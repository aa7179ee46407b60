"""The page: what it says, what it never does, and what is wrong with a run."""

import json
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("bokeh")

from fedwsq.cli import main
from fedwsq.report.page import render
from fedwsq.report.page.charts import bokeh
from fedwsq.report.page.library import library_parts
from fedwsq.runs.reading import read_runs
from report.made_up import make_findings, make_run, make_runs

EVIL = "</script><img src=x onerror=alert(1)>"
LIMIT_BYTES = 5_000_000


class Tags(HTMLParser):
    """The elements of a page, and its text outside scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._open = tag

    def handle_data(self, data: str) -> None:
        if self._open not in ("script", "style"):
            self.text += data


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    make_runs(folder, rounds=6, seeds=2, methods=("fedavg", "fedws", "ecq"))
    return folder


@pytest.fixture(scope="module")
def page(runs: Path) -> str:
    return page_of(runs)


@pytest.fixture
def copied(runs: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(runs, tmp_path / "copied"))


def page_of(folder: Path) -> str:
    return render(read_runs([folder]))


def test_everything_is_in_the_page_and_nothing_comes_from_elsewhere(page):
    assert len(page.encode()) < LIMIT_BYTES
    for tag, attributes in Tags(page).found:
        for name in ("src", "href", "action"):
            assert not re.match(r"https?:|//|file:", attributes.get(name) or ""), (tag, attributes)
    (policy,) = [found["content"] for _, found in Tags(page).found if "http-equiv" in found]
    assert "default-src 'none'" in policy
    assert "connect-src" not in policy
    assert "unsafe" not in policy.partition("style-src")[0]  # no script but ours


def test_groups_charts_and_commands_are_there(page):
    tags = Tags(page)
    charts = [
        attributes["data-chart"] for _, attributes in tags.found if "data-chart" in attributes
    ]
    assert charts[:3] == ["accuracy-bytes", "accuracy-round", "accuracy-seconds"]
    panels = {"loss-round", "bits-round", "quantization_error-round", "scale_ratio-round"}
    assert panels | {"client_accuracy-round"} <= set(charts)
    for label in ("fedavg", "fedws", "ecq 0.5 bits"):
        assert label in tags.text
    assert "fedwsq run cifar10-resnet8" in tags.text
    assert tags.text.count("2 seeds") == 3


def test_what_runs_say_is_text_and_never_markup(copied):
    evil = copied / "x<img src=x onerror=alert(1)>"
    (copied / "fedavg-0").rename(evil)
    config = (evil / "config.toml").read_text()
    config = config.replace('root = ""', f'root = "{EVIL}"').replace(
        'name = "resnet8"', f'name = "{EVIL}"'
    )
    assert EVIL in config
    (evil / "config.toml").write_text(config)
    lines = (evil / "rounds.jsonl").read_text().splitlines()
    row = json.loads(lines[0])
    row["failures"] = {EVIL: EVIL}
    (evil / "rounds.jsonl").write_text("\n".join([json.dumps(row), *lines[1:]]) + "\n")
    (evil / "error.txt").write_text(f"RunError: {EVIL}\n")
    (evil / "manifest.json").write_text(json.dumps({"commit": EVIL, "cpu": EVIL}))

    page = page_of(copied)
    tags = Tags(page)
    assert [tag for tag, _ in tags.found if tag == "img"] == []
    assert not [name for _, attributes in tags.found for name in attributes if name[:2] == "on"]
    scripts = [attributes for tag, attributes in tags.found if tag == "script"]
    charts = [attributes for _, attributes in tags.found if "data-chart" in attributes]
    assert len(scripts) == len(library_parts(bokeh())) + 1 + len(charts)
    assert tags.text.count(EVIL) >= 4  # label, failure, error, machine: as they are, but as text


def test_damage_is_counted_and_said(copied):
    rows = copied / "fedavg-0" / "rounds.jsonl"
    lines = rows.read_text().splitlines(keepends=True)
    lines[2] = "{nothing\n"
    rows.write_text("".join(lines))
    (copied / "fedws-0" / "config.toml").write_text("= broken")
    (copied / "fedws-1" / "error.txt").write_text("RunError: nobody replied\n")
    (copied / "ecq-0" / "summary.json").unlink()
    text = Tags(page_of(copied)).text
    assert "fedavg-0: 1 damaged row left out" in text
    assert "1 round without a row" in text
    assert "fedws-0: config.toml cannot be read" in text
    assert "gave up: RunError: nobody replied" in text
    assert "seed 0, damaged" in text
    assert "round 6, seed 0" in text  # of how many, only the config would know
    assert "fedavg-0 lacks 1 row," in text
    for state in ("damaged", "failed", "partial", "finished"):
        assert re.search(rf"\d {state}", text), state


def test_runs_that_have_not_begun_have_a_page_too(copied):
    for folder in copied.iterdir():
        (folder / "rounds.jsonl").unlink()
        (folder / "summary.json").unlink()
    page = page_of(copied)
    assert "No round of these runs has been scored yet." in Tags(page).text
    assert "data-chart" not in page.partition("<script>")[0].partition("</style>")[2]


def test_long_runs_are_thinned_and_the_page_says_so(tmp_path):
    make_run(tmp_path / "run", "fedavg", rounds=1000, seed=0)
    page = page_of(tmp_path)
    assert "about 400 rounds a line are drawn" in Tags(page).text
    assert len(page.encode()) < LIMIT_BYTES


def test_the_verb_writes_the_page(runs, in_empty_folder, capsys):
    assert main(["report", str(runs)]) == 0
    assert capsys.readouterr().out.startswith("report.html: 6 runs, 1.")
    assert (in_empty_folder / "report.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["nowhere"], "nowhere is not a run directory"),
        (["RUNS", "--out", "no/such.html"], "there is no folder no"),
        (["RUNS", "--watch", "--port", "99999"], "cannot serve on port 99999"),
    ],
)
def test_what_cannot_be_is_one_line(runs, in_empty_folder, capsys, words, why):
    code = main(["report", *(str(runs) if word == "RUNS" else word for word in words)])
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert why in err


def test_without_bokeh_there_is_a_hint(runs, in_empty_folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "bokeh.embed", None)
    assert main(["report", str(runs)]) == 2
    assert "pip install 'fedwsq[report]'" in capsys.readouterr().err
    assert not (in_empty_folder / "report.html").exists()


def test_what_was_analysed_is_on_the_page(page, copied):
    assert "h-insights" not in page  # nobody has looked
    make_findings(copied / "fedavg-0")
    make_findings(copied / "fedavg-1", shift=1.0)
    make_findings(copied / "fedws-0")
    tags = Tags(page_of(copied))
    charts = {attributes.get("data-chart") for _, attributes in tags.found}
    assert {"landscape-1", "landscape-2", "kurtosis-round", "scale_cost-round"} <= charts
    assert {"cosine-round", "norm-round"} <= charts
    words = " ".join(tags.text.split())
    assert "27.7527.2 to 28.2" in words  # the mean of two seeds, and both
    assert "3.0, 71.0" in words  # percent along the weight and along ones
    assert "danuq0.0430.043" in words  # two groups
    assert "stem.weight" in words


@pytest.mark.parametrize(
    ("name", "said", "why"),
    [
        ("hessian", "{", "Expecting property name"),
        ("hessian", "[1]", "list where a table was expected"),
        ("hessian", '{"examples": 5}', "NoneType where a table was expected"),
        ("landscape", '{"examples": 5, "data": "", "steps": [0, 1], "loss": [[1]]}', "2 rows of 2"),
        (
            "updates",
            '{"rounds": {"x": {"kurtosis": 1}}}',
            "&#39;x&#39; is not the number of a round",
        ),
        ("updates", '{"rounds": {"1": {"kurtosis": NaN}}}', "not a finite number"),
        ("drift", '{"rounds": {"1": {"all": {"cosine": [], "norm": []}}}}', "no clients"),
        ("gradients", '{"layers": 3}', "int where a table was expected"),
        ("scales", '{"rounds": {}, "right_scale_error": "much"}', "not a number"),
    ],
)
def test_an_analysis_that_cannot_be_read_is_said(copied, name, said, why):
    make_findings(copied / "fedavg-0")
    (copied / "fedavg-0" / "analysis" / f"{name}.json").write_text(said)
    page = page_of(copied)
    assert f"analysis/{name}.json cannot be read" in page
    assert why in page
    assert "h-insights" in page  # the others are there
    assert "damaged" not in Tags(page).text  # the run itself is as it was


def test_what_analyses_say_is_text_and_never_markup(copied):
    make_findings(copied / "fedavg-0")
    folder = copied / "fedavg-0" / "analysis"
    for path in folder.iterdir():
        text = path.read_text()
        for word in ("stem.weight", "ecq", '"test"', '"4"'):
            text = text.replace(word, json.dumps(EVIL) if word[0] == '"' else EVIL)
        path.write_text(text)
    page = page_of(copied)
    assert "onerror=alert(1)" in Tags(page).text
    assert [tag for tag, _ in Tags(page).found if tag == "img"] == []


def test_classes_have_names_where_runs_know_them(copied):
    assert "airplane" not in page_of(copied)
    names = ["airplane", EVIL, *(f"class {number}" for number in range(8))]
    for run in copied.iterdir():
        (run / "classes.json").write_text(json.dumps(names))
    tags = Tags(page_of(copied))
    assert "airplane" in tags.text
    assert [tag for tag, _ in tags.found if tag == "img"] == []
    (copied / "fedavg-0" / "classes.json").write_text('{"not": "a list"}')
    page = page_of(copied)
    assert "classes.json cannot be read: it is not a list of names" in page
    assert "airplane" not in page


def test_the_numbers_on_top_and_in_the_table_have_one_target(copied):
    """A group that is still going came to less than it will: it sets no target."""
    rows = copied / "fedavg-0" / "rounds.jsonl"
    rows.write_text("".join(rows.read_text().splitlines(keepends=True)[:2]))
    text = Tags(page_of(copied)).text
    (top,) = re.findall(r"Fewest bytes to ([\d.]+ %)", text)
    assert f"to {top}" in text.partition("Side by side")[2]
    assert set(re.findall(r"stayed at ([\d.]+ %)", text)) == {top}
    assert "2 seeds, 1 partial" in text
