"""The command on a page gives the run's own plan again."""

import shlex
from pathlib import Path

import pytest

from fedwsq.plan import dump_plan, load_plan, parse_overrides, plan_digest
from fedwsq.report.page.command import repeat_command
from fedwsq.runs.reading import read_run


def command_of(folder: Path, config: str, overrides: dict[str, object]) -> tuple[list[str], str]:
    """The words of the command, and the digest of the plan that they are to lead to."""
    plan = load_plan(config, overrides)
    folder.mkdir()
    (folder / "config.toml").write_text(dump_plan(plan))
    (folder / "manifest.json").write_text("{}")
    return shlex.split(repeat_command(read_run(folder))), plan_digest(plan)


@pytest.mark.parametrize(
    ("config", "overrides", "said"),
    [
        ("quickstart", {}, "quickstart"),
        ("quickstart", {"uplink.bits": 1, "seed": 3}, "quickstart uplink.bits=1.0 seed=3"),
        ("cifar10-resnet8", {"method": "fedadam", "data.root": "my data"}, "cifar10-resnet8"),
        ("cifar100", {"method": "fedacg", "downlink.codec": "ecq"}, "cifar100"),
        ("quickstart", {"uplink.bits": {"name": "bandwidth", "deadline_seconds": 2}}, "quickstart"),
        ("quickstart", {"data.name": "npz", "data.path": "2"}, "quickstart"),
    ],
)
def test_the_words_lead_to_the_same_plan(tmp_path, config, overrides, said):
    words, digest = command_of(tmp_path / "run", config, overrides)
    assert words[:3] == ["fedwsq", "run", config]
    assert set(said.split()) <= set(words)
    assert plan_digest(load_plan(config, parse_overrides(words[3:]))) == digest


def test_code_of_ones_own_is_repeated_from_its_file_and_never_imported(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    text = dump_plan(load_plan("quickstart")).replace('name = "cnn"', 'name = "evil:boom"')
    (folder / "config.toml").write_text(text)
    (folder / "manifest.json").write_text("{}")
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    words = shlex.split(repeat_command(read_run(folder)))
    assert words == ["fedwsq", "run", str(folder / "config.toml")]


def test_without_settings_there_is_no_command(tmp_path):
    (tmp_path / "config.toml").write_text("=")
    assert repeat_command(read_run(tmp_path)) == ""
