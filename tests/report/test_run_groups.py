"""Which runs belong together, and what they are called."""

import shutil
from pathlib import Path

from fedwsq.plan import make_plan, plan_settings
from fedwsq.plan.read import dotted
from fedwsq.report.groups import describe_method, group_runs
from fedwsq.runs.reading import read_runs


def with_settings(folder: Path, target: Path, **changes: tuple[str, str]) -> Path:
    """A copy of a run whose config says something else."""
    shutil.copytree(folder, target)
    text = (folder / "config.toml").read_text()
    for before, after in changes.values():
        assert before in text
        text = text.replace(before, after)
    (target / "config.toml").write_text(text)
    return target


def test_groups_are_runs_that_differ_in_their_seed(finished, tmp_path):
    folders = [
        with_settings(finished.folder, tmp_path / "one", x=("seed = 0", "seed = 1")),
        with_settings(finished.folder, tmp_path / "bits", x=("bits = 4", "bits = 1")),
        finished.folder,
    ]
    groups = group_runs(read_runs(folders))
    assert [(group.label, group.seeds) for group in groups] == [
        ("fedwsq 4 bits", (0, 1)),
        ("fedwsq 1 bits", (0,)),
    ]


def test_groups_of_one_method_are_told_apart_by_what_differs(finished, tmp_path):
    other = with_settings(
        finished.folder,
        tmp_path / "other",
        x=("alpha = 0.3", "alpha = 0.05"),
        y=("momentum = 0.1", "momentum = 0.2"),
    )
    groups = group_runs(read_runs([finished.folder, other]))
    assert [group.label for group in groups] == [
        "fedwsq 4 bits, alpha=0.3, momentum=0.1",
        "fedwsq 4 bits, alpha=0.05, momentum=0.2",
    ]


def test_a_run_without_settings_is_a_group_of_its_own(finished, tmp_path):
    copy = Path(shutil.copytree(finished.folder, tmp_path / "run"))
    (copy / "config.toml").write_text("=")
    groups = group_runs(read_runs([copy, finished.folder]))
    # Both folders are called run.
    assert [group.label for group in groups] == [str(copy), "fedwsq 4 bits"]


def test_what_has_no_name_is_described_by_its_parts():
    settings = {
        "algorithm.name": "fedacg",
        "model.standardize.name": "ws",
        "uplink.codec.name": "eden",
        "uplink.bits.name": "per_round",
    }
    assert describe_method(settings) == "fedacg + ws, eden per_round"


def test_a_method_that_codes_its_broadcasts_is_itself_only_where_they_are():
    lean = dotted(plan_settings(make_plan({"method": "fedwsq-lean"})))
    assert describe_method(lean) == "fedwsq-lean growing"
    up_alone = {**lean, "downlink.codec.name": "float32"}
    assert describe_method(up_alone) == "fedacg + ws, decay on server, ecq growing"
    # As it was before: clients took the decay themselves.
    before = {**lean, "training.decay_on": "clients"}
    assert describe_method(before) == "fedacg + ws, ecq growing"
    wsq = dotted(plan_settings(make_plan({"method": "fedwsq"})))
    assert describe_method({**wsq, "downlink.codec.name": "ecq"}) == "fedwsq 4 bits"
