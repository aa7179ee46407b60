"""docs/analysis.md says what the committed results say."""

import json
import sys

import pytest

from harness import TESTS

sys.path.append(str(TESTS.parent / "benchmarks"))

import figure3

ROOT = TESTS.parent
PAGE = (ROOT / "docs" / "analysis.md").read_text()
RESULTS = ROOT / "benchmarks" / "results"


@pytest.fixture(scope="module")
def five_methods():
    return json.loads((RESULTS / "figure3.json").read_text())


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def test_the_table_of_five_methods_is_that_of_the_results(five_methods):
    assert figure3.table(five_methods) in PAGE


def test_the_table_of_codecs_is_that_of_the_results(five_methods):
    """Each cell is the committed number to as many digits as it has."""
    columns = [
        ("fedavg", "1", "4"),
        ("fedavg", "40", "4"),
        ("fedwsq", "1", "4"),
        ("fedwsq", "40", "4"),
        ("fedavg", "40", "1"),
        ("fedwsq", "40", "1"),
    ]
    table = PAGE[PAGE.index("| codec | 4 bits: fedavg, round 1 |") :].split("\n\n")[0]
    rows = [cells(line) for line in table.splitlines()[2:]]
    assert len(rows) == 9
    for codec, *found in rows:
        for said, (method, number, bits) in zip(found, columns, strict=True):
            errors = five_methods[method]["equal_bytes"][number][bits]["errors"]
            if not said:
                assert codec not in errors
                continue
            # Half a unit of its last digit, and what the results were rounded by.
            digits = len(said.partition(".")[2])
            assert float(said) == pytest.approx(errors[codec], abs=0.51 * 10**-digits), codec


def test_the_table_of_digits_is_that_of_the_results():
    runs = json.loads((RESULTS / "analysis.json").read_text())["runs"]
    table = PAGE[PAGE.index("| method | accuracy | top eigenvalue, raw |") :].split("\n\n")[0]
    rows = [cells(line) for line in table.splitlines()[2:]]
    assert [row[0] for row in rows] == ["fedavg", "fedsmoo", "fedacg", "fedwon", "fedwsq"]
    for name, accuracy, *tops in rows:
        assert float(accuracy) == pytest.approx(runs[name]["test_accuracy"], abs=0.0006)
        known = runs[name]["top_eigenvalue"].values()
        assert [float(top) for top in tops] == pytest.approx(list(known), rel=0.02)
