"""Config files from elsewhere: refused in one line whatever they hold, and code is named first."""

import sys

import pytest

from fedwsq.core.errors import ConfigError
from fedwsq.plan import code_named, importing_only, load_plan, make_plan

HOSTILE = {
    "brackets": "x = " + "[" * 100_000,
    "braces": "x = " + "{a=" * 1_000 + "1" + "}" * 1_000,
    "dots": "a" + ".a" * 10_000 + " = 1",
    "tables": "".join(f"[{'.'.join(['a'] * depth)}]\n" for depth in range(1, 50)),
    "digits": "rounds = " + "9" * 5_000,
    "fewer digits": "rounds = " + "9" * 4_000,
    "digits for a float": "training.lr = 1" + "0" * 400,
    "a number without end": "training.lr = inf",
    "terminal codes": '"\\u001b[2J" = 1',
    "terminal codes as a name": 'model = "\\u001b[2J"',
    "terminal codes as a module": 'model = { name = "\\u001b[2J:x" }',
    "a long word": f'model = "{"x" * 100_000}"',
    "bytes": "x = \udcff",
    "too long": "#" * (2**18 + 1),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_config(tmp_path, case):
    path = tmp_path / "my.toml"
    path.write_bytes(HOSTILE[case].encode(errors="surrogateescape"))
    with pytest.raises(ConfigError) as caught:
        load_plan(path)
    assert str(caught.value).replace("\n", "").isprintable()
    assert len(str(caught.value)) < 5_000


@pytest.mark.parametrize("word", ["x=" + "[" * 100_000, "rounds=" + "9" * 5_000])
def test_a_hostile_override(word):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_plan("quickstart", [word])


def test_settings_nested_by_a_program():
    deep: dict[str, object] = {}
    for _ in range(10_000):
        deep = {"a": deep}
    with pytest.raises(ConfigError, match="nested too deep"):
        make_plan(deep)


# Code that settings name.


def test_code_is_found_wherever_it_is_named():
    settings = {
        "model": "a:B",
        "data": {"name": "my_lab.data:load", "root": "C:/data", "url": "https://a.org"},
        "uplink": {"codec": {"inner": [{"name": "c:d"}, "a:B"]}},
        "training": {"part": "(?:head)", "time": "12:30"},
    }
    assert code_named(settings) == ["a:B", "my_lab.data:load", "c:d"]


def test_only_what_is_vouched_for_is_imported(in_empty_folder):
    (in_empty_folder / "never_imported.py").write_text("raise SystemExit")
    for name in ("never_imported:f", "never-imported:f", ".never_imported:f"):
        with importing_only(["user_code:failing_cnn"]), pytest.raises(ConfigError, match="--trust"):
            make_plan({"model": {"name": name}})
    with importing_only(["user_code:failing_cnn"]):
        make_plan({"model": {"name": "user_code:failing_cnn"}})
    assert "never_imported" not in sys.modules


@pytest.mark.parametrize(
    ("table", "name", "text"),
    [
        ("data", "os:system", "'os:system', of Python's own library"),
        ("model", "subprocess:Popen", "of Python's own library"),
        ("data", "builtins:exec", "of Python's own library"),
        ("data", "antigravity:webbrowser", "of Python's own library"),
        ("model", "user_code:remove", "of Python's own library"),
        ("model", "user_code:not_a_model", "gives str, not a Module"),
        ("data", "user_code:failing_cnn", "gives Module, not a Dataset"),
        ("data", "torch.nn:Linear", "gives Linear, not a Dataset"),
    ],
)
def test_what_cannot_give_it_is_not_called(table, name, text):
    with pytest.raises(ConfigError, match=text):
        make_plan({table: {"name": name}})
    assert "antigravity" not in sys.modules


def test_a_split_that_is_none_is_said():
    from fedwsq.federation.simulation import simulate

    plan = make_plan({"data": {"partition": "user_code:no_split"}})
    with pytest.raises(ConfigError, match="gave 1 lists of indices"):
        simulate(plan)
