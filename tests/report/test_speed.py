"""Tables of size and speed are what was measured last, in both pages that have one."""

import sys

import pytest

from harness import TESTS

sys.path.append(str(TESTS.parent / "benchmarks"))

import readme
import speed
from measured import errors_at


def test_both_pages_have_what_was_measured(tmp_path):
    found = speed.measured()
    tables = {speed.README: speed.readme_table(found), speed.PAGE: speed.speed_table(found)}
    for page, table in tables.items():
        copy = tmp_path / "page.md"
        copy.write_text(page.read_text())
        readme.put(table, copy, speed.MARK)
        assert copy.read_text() == page.read_text(), f"{page}: python benchmarks/speed.py --write"


def test_errors_are_those_of_so_many_bits_in_the_last_column():
    table = "| bits | codec | off | on |\n|---|---|---|---|\n| 4 | ecq | 0.1 | 0.2 |\n"
    table += "| 14 | ecq | 0.3 | 0.4 |\n| 4 | eden | 0.5 | 0.6 |\n"
    assert errors_at(4, table) == {"ecq": 0.2, "eden": 0.6}


@pytest.mark.parametrize(
    ("better", "must", "reached", "said"),
    [
        ("higher", 0.22, True, "at least 0.22 x"),
        ("lower", 100, False, "at most 100 x (missed)"),
        ("higher", None, None, ""),
    ],
)
def test_a_bar_that_is_missed_says_so(better, must, reached, said):
    each = {"better": better, "must": must, "reached": reached, "unit": "x"}
    assert speed.bar(each) == said


def test_every_figure_of_the_table_is_measured():
    known = set(speed.measured().bench)
    assert set(speed.FIGURES) <= known
