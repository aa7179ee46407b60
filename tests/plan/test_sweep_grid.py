"""Grids: which cells there are, what they are called, and what a grid may not say."""

import pytest

from fedwsq.core.errors import ConfigError
from fedwsq.plan.grid import Cell, parse_values, read_grid
from fedwsq.plan.published import published_table, published_tables
from fedwsq.plan.read import shipped
from harness import tiny


def names(*words: str) -> list[str]:
    return [cell.name for cell in read_grid(words).cells()]


def test_every_combination_is_a_cell_and_the_first_axis_varies_slowest():
    assert names("quickstart", "seed=0,1", "training.lr=0.1,0.2", "rounds=7") == [
        "seed-0_lr-0.1",
        "seed-0_lr-0.2",
        "seed-1_lr-0.1",
        "seed-1_lr-0.2",
    ]
    cells = read_grid(["seed=0,1", "rounds=7"]).cells()
    assert [(cell.plan.seed, cell.plan.rounds) for cell in cells] == [(0, 7), (1, 7)]


def test_bits_are_for_codecs_that_have_a_choice():
    words = ["method=fedavg,fedws,fedwsq", "uplink.bits=1,4", "seed=0,1,2"]
    cells = read_grid(words).cells()
    assert len(cells) == 3 + 3 + 6
    assert cells[0].name == "fedavg_seed-0"
    assert [cell.name for cell in cells[-6:-3]] == [
        f"fedwsq_bits-1_seed-{seed}" for seed in (0, 1, 2)
    ]


def test_bits_that_a_cell_needs_are_not_left_out_to_see_what_applies():
    """Counted sums have even steps: one bit, and not the four that a codec usually has."""
    words = ["method=fedwsq", "aggregation=uniform", "uplink.counts=false,true", "uplink.bits=1"]
    cells = read_grid(words).cells()
    assert [cell.plan.uplink.counts for cell in cells] == [False, True]
    with pytest.raises(ConfigError, match="even steps"):
        read_grid([*words, "uplink.bits=4"]).cells()


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("a.b=1,4", [1, 4]),
        ("a.b=fedavg,fedws", ["fedavg", "fedws"]),
        ("a.b=[1,2],[4]", [[1, 2], [4]]),
        ('a.b={name="iid"},"shards"', [{"name": "iid"}, "shards"]),
        ("a.b=1,two", [1, "two"]),
    ],
)
def test_values_are_toml_or_plain_words(word, values):
    assert parse_values(word) == ("a.b", values)


@pytest.mark.parametrize("word", ["seed", "=1", "seed=", "method=fedavg,"])
def test_a_word_without_values_is_refused(word):
    with pytest.raises(ConfigError, match="names no values"):
        read_grid(["quickstart", word]).cells()


def test_a_mistake_in_one_cell_is_said_before_anything_runs():
    with pytest.raises(
        ConfigError, match=r"^fedwqs_seed-0: method is 'fedwqs'.*did you mean fedwsq"
    ):
        names("method=fedavg,fedwqs", "seed=0,1")


def test_cells_that_differ_only_in_rounds_are_refused():
    with pytest.raises(ConfigError, match="rounds-3 and rounds-5 differ only in rounds, 3 and 5"):
        names("rounds=3,5")


def test_a_grid_in_a_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        """
        config = "quickstart"
        settings = { rounds = 2 }
        [each]
        seed = [0, 1]
        [[cases]]
        method = "fedavg"
        [[cases]]
        method = "fedwsq"
        "uplink.bits" = 1
        [[cases]]
        label = "by channel"
        "uplink.codec.scale_per" = "channel"
        """
    )
    cells = read_grid([str(path), "seed=5"]).cells()
    assert [cell.name for cell in cells] == ["fedavg", "fedwsq-bits-1", "by-channel"]
    assert {(cell.plan.seed, cell.plan.rounds) for cell in cells} == {(5, 2)}
    assert len(read_grid([str(path)]).cells()) == 6
    path.write_text("eech = 1\ncases = []")
    with pytest.raises(ConfigError, match=r"unknown key eech.*did you mean each"):
        read_grid([str(path)])


def test_a_config_in_a_file_is_no_grid(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("rounds = 2")
    assert names(str(path), "seed=0,1") == ["seed-0", "seed-1"]


def test_a_run_belongs_to_a_cell_whatever_its_length_and_wherever_its_files():
    cell = Cell("mine", tiny(**{"training.precision": "auto"}))
    assert cell.is_run_of(tiny(rounds=9, **{"training.precision": "bfloat16"}))
    assert not cell.is_run_of(tiny(seed=1))
    exact = Cell("mine", tiny(**{"training.precision": "float32"}))
    assert not exact.is_run_of(tiny(**{"training.precision": "bfloat16"}))


CELLS = {  # rows x columns x seeds
    "paper-table-1": 22 * 12 * 3,
    "paper-table-2": 18 * 8 * 3,
    "paper-table-3": 8 * 6 * 3,
    "paper-table-4": 5 * 3 * 3,
    "paper-table-5": 2 * 4 * 3,
    "paper-table-1-small": 22 * 4,
    "paper-table-2-small": 6 * 8,
    "paper-table-3-small": 8 * 3,
    "paper-table-4-small": 5 * 3,
    "paper-table-5-small": 2 * 4,
}


def test_every_shipped_grid_is_listed():
    assert set(shipped("grids")) == set(CELLS)


@pytest.mark.parametrize("name", [name for name in CELLS if CELLS[name] < 100])
def test_a_shipped_grid_has_a_cell_for_each_number(name):
    cells = read_grid([name]).cells()
    assert len(cells) == CELLS[name]
    assert len({cell.name for cell in cells}) == len(cells)
    assert {cell.plan.aggregation for cell in cells} <= {"uniform", "error"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CELLS if CELLS[name] >= 100])
def test_a_shipped_grid_at_full_scale_has_a_cell_for_each_number(name):
    cells = read_grid([name]).cells()
    assert len(cells) == CELLS[name]
    assert {cell.plan.rounds for cell in cells} == {1000}


# The numbers themselves: the paper says many of them twice, in other tables and in its text.


def value(table: str, row: str, column: str) -> float:
    found = published_table(table)
    rows = [" ".join(heading.label) for heading in found.rows]
    columns = [" ".join(heading.label) for heading in found.columns]
    return found.values[rows.index(row)][columns.index(column)]


SPLITS = ("0.1", "0.3", "0.6", "i.i.d.")
DATA = ("CIFAR-10", "CIFAR-100", "Tiny-ImageNet")


def test_all_tables_are_there():
    assert published_tables() == [f"paper-table-{number}" for number in (1, 2, 3, 4, 5)]


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("bits", ["1", "4"])
def test_table_2_repeats_fedpaq_and_fedwsq_of_table_1(data, split, bits):
    plain = value("paper-table-2", f"{data} no {bits}", f"{split} UQ")
    assert plain == value("paper-table-1", f"FedPAQ {bits}", f"{data} {split}")
    whole = value("paper-table-2", f"{data} yes {bits}", f"{split} DANUQ")
    assert whole == value("paper-table-1", f"FedWSQ {bits}", f"{data} {split}")


@pytest.mark.parametrize("data", DATA[:2])
@pytest.mark.parametrize("split", SPLITS[:3])
@pytest.mark.parametrize("bits", ["1", "2", "4"])
def test_table_3_rounds_table_2(data, split, bits):
    exact = value("paper-table-2", f"{data} yes {bits}", f"{split} DANUQ")
    rounded = value("paper-table-3", f"{bits} DANUQ", f"{data} {split}")
    assert abs(rounded - exact) <= 0.0501


def test_table_4_repeats_resnet18_of_table_1():
    pairs = {
        "Vanilla": "FedAvg 32",
        "FedWS": "FedWSQ FedWS (32)",
        "FedWSQ (DBA)": "FedWSQ DBA (2.33)",
    }
    for column, row in pairs.items():
        repeated = value("paper-table-4", "ResNet-18", column)
        assert repeated == value("paper-table-1", row, "CIFAR-100 0.3")


@pytest.mark.parametrize(
    ("data", "other", "gain"),
    [
        ("CIFAR-100", "FedRCL", 3.79),
        ("CIFAR-100", "FedACG", 3.91),
        ("Tiny-ImageNet", "FedRCL", 7.25),
        ("Tiny-ImageNet", "FedACG", 5.36),
    ],
)
def test_the_gains_that_the_text_names_are_those_of_table_1(data, other, gain):
    ours = value("paper-table-1", "FedWSQ 1", f"{data} 0.1")
    theirs = value("paper-table-1", f"{other} 32", f"{data} 0.1")
    assert round(ours - theirs, 2) == gain


@pytest.mark.parametrize("name", published_tables())
def test_every_number_is_a_percentage(name):
    table = published_table(name)
    assert all(0 < x < 100 for row in table.values for x in row)
    assert len(table.head) == len(table.rows[0].label)


FORGED = {
    "settings = 3\neach = {}": "settings is 3, must be a table of settings",
    "each = [1, 2]": r"each is \[1, 2\], must be a table of lists",
    "each = { seed = 3 }": "each.seed is 3, must be a list of values",
    "cases = 3": "cases is 3, must be a list of tables",
    "cases = ['a']": r"cases is \['a'\], must be a list of tables",
    "cases = []": "cases has none of them",
    "table = 3": "table is 3, must be a file or a name",
    "configs = 3\neach = { seed = [0] }": "configs is 3, must be a table of files or names",
    "configs = { quickstart = 3 }\neach = { seed = [0] }": "must be a table of files or names",
    "config = 3\neach = { seed = [0] }": "config is 3, must be a file or a name",
    "each = { config = [5, 6] }": "config is 5, must be a file or a name",
    "settings = { config = [] }\neach = { seed = [0] }": r"config is \[\], must be a file or a",
    "each = { seed = [0, 1], a = [" + "1," * 6_000 + "] }": "the grid has 12,000 cells, at most",
}


@pytest.mark.parametrize("text", FORGED, ids=range(len(FORGED)))
def test_a_grid_that_is_none_is_refused_in_one_line(tmp_path, text):
    (tmp_path / "grid.toml").write_text(text)
    with pytest.raises(ConfigError, match=FORGED[text]):
        read_grid([str(tmp_path / "grid.toml")]).cells()


def test_the_label_of_a_case_may_be_a_number(tmp_path):
    (tmp_path / "grid.toml").write_text("[[cases]]\nlabel = 3\nrounds = 2\n")
    assert names(str(tmp_path / "grid.toml")) == ["3"]


GOOD = {
    "title": "'t'",
    "source": "'s'",
    "head": "['row']",
    "settings": "{ config = 'quickstart' }",
    "columns": "[{ label = ['a'] }]",
    "rows": "[{ label = ['b'], values = [1.0] }]",
}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, "3") for key in GOOD),
        ("head", "[3]"),
        ("head", "['a', 'b']"),
        ("match", "3"),
        ("settings", "{}"),
        ("settings", "{ config = 3 }"),
        ("columns", "[3]"),
        ("columns", "[{ label = 3 }]"),
        ("columns", "[{}]"),
        ("rows", "[3]"),
        ("rows", "[{ label = ['b'] }]"),
        ("rows", "[{ label = ['b'], values = 3 }]"),
        ("rows", "[{ label = ['b'], values = ['x'] }]"),
        ("rows", "[{ label = ['b'], values = [nan] }]"),
        ("rows", "[{ label = ['b'], values = [1.0, 2.0] }]"),
    ],
)
def test_a_table_that_is_none_is_refused_in_one_line(tmp_path, key, value):
    path = tmp_path / "table.toml"
    path.write_text("\n".join(f"{name} = {text}" for name, text in GOOD.items()))
    assert published_table(str(path)).values == ((1.0,),)
    forged = {**GOOD, key: value}
    path.write_text("\n".join(f"{name} = {text}" for name, text in forged.items()))
    with pytest.raises(ConfigError, match=r"table .*table\.toml"):
        published_table(str(path))
