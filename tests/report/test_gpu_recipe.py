"""The commands of table 1 that people with GPUs are given, against the plans of the sweep."""

import sys

from fedwsq.plan import load_plan, parse_overrides
from fedwsq.plan.grid import read_grid
from fedwsq.plan.published import published_table
from harness import TESTS

sys.path.append(str(TESTS.parent / "benchmarks"))

import gpu


def test_the_page_is_up_to_date():
    text = gpu.document(published_table("paper-table-1"))
    assert (TESTS.parent / "benchmarks" / "GPU.md").read_text() == text


def test_every_command_is_a_cell_of_the_sweep():
    swept = {repr(cell.plan) for cell in read_grid(["paper-table-1", "seed=0"]).cells()}
    commands = list(gpu.cells(published_table("paper-table-1")))
    assert len({" ".join(each) for each in commands}) == len(swept) == 264
    found = set()
    for _, _, config, *rest in commands:
        words = rest[: rest.index("--out")]
        found.add(repr(load_plan(config, parse_overrides(words))))
    assert found == swept


def test_the_words_of_a_column_and_of_a_row_are_a_cell_of_the_sweep():
    swept = {repr(cell.plan) for cell in read_grid(["paper-table-1", "seed=0"]).cells()}
    table = published_table("paper-table-1")
    found = set()
    for column in table.columns:
        config, *words = gpu.column_words(column)
        for row in table.rows:
            overrides = parse_overrides([*words, *gpu.row_words(table, row)])
            found.add(repr(load_plan(config, overrides)))
    assert found == swept


def test_a_round_is_the_multiplications_that_were_counted():
    # 26,400 billion multiply-adds a round of CIFAR: two operations each, a thousand rounds.
    assert abs(gpu.operations("cifar10") / (2 * 1000 * 26.4e12) - 1) < 0.01
