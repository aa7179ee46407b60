"""The README's picture: which runs it shows, and how far apart it says they are."""

import sys
from itertools import product

import pytest
from stories import tell

from fedwsq.core.errors import RunError
from fedwsq.runs.reading import read_run, read_runs
from harness import TESTS

sys.path.append(str(TESTS.parent / "benchmarks"))

import claims
import evidence
import kept
import lean
import picture
import readme
from verdicts import Verdict

README = TESTS.parent / "README.md"


@pytest.fixture
def told(tmp_path):
    """FedAvg comes to 0.5 in forty rounds of 40 bytes, from the 20th on; ours from its tenth."""
    stories = {
        "avg": ([0.1] * 19 + [0.5] * 21, {}),
        "ws": ([0.1] * 20 + [0.7] * 20, {"method": "fedws"}),
        "prox": ([0.1] * 40, {"method": "fedprox"}),
        "lean": ([0.1] * 9 + [0.7] * 31, {"method": "fedwsq-lean"}),
    }

    def made(seeds):
        for seed in seeds:
            for name, (accuracies, settings) in stories.items():
                folder = tmp_path / f"{name}-{seed}"
                yield read_run(tell(folder, accuracies, seed=seed, **settings))

    return lambda *seeds: lean.scenes(list(made(seeds)))


def test_it_shows_fedavg_what_is_near_to_ours_and_ours(told):
    scene = picture.headline(told(0, 1))
    assert list(picture.lines(scene)) == ["FedAvg", "FedWS", "fedwsq-lean"]
    times = picture.times_fewer(scene)
    assert times.middle == pytest.approx(2.0)  # 800 bytes over 400
    assert (times.low, times.high) == (pytest.approx(2.0), pytest.approx(2.0))


def test_one_seed_has_no_interval(told):
    times = picture.times_fewer(picture.headline(told(0)))
    assert (times.low, times.high, times.count) == (None, None, 1)


def test_seeds_that_only_fedavg_has_are_not_passed_over_in_silence(told, tmp_path):
    (scene,) = told(0)
    (other,) = told(1)
    alone = lean.Scene(
        scene.words, 40, {**scene.reference, **other.reference}, {}, [], dict(scene.sides)
    )
    assert picture.headline([alone]) is None


def test_it_is_drawn(told, tmp_path):
    path = tmp_path / "picture.png"
    picture.draw(picture.headline(told(0, 1)), path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_block_has_a_line_for_what_ours_takes(told):
    (line,) = [line for line in readme.block(told(0, 1), {}, {}).splitlines() if "rounds" in line]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[0].endswith("40 rounds: 50.0 %")
    assert cells[3:] == ["2.0 (2.0 to 2.0, 2 seeds)", ""]  # FedACG with WS was not run


METHODS = ("fedavg", "fedws", "fedwsq-4", "fedwsq-1")


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (0.9, "but ends 40.00 ± 0.00 (2 seeds) points below"),
        # FedAvg falls in its last round: what it came to is 0.83 all the same.
        (0.2, "and ends 30.00 ± 0.00 (2 seeds) points above"),
    ],
)
def test_a_block_says_so_where_ours_does_not_get_there(tmp_path, end, said):
    for seed in (0, 1):
        tell(tmp_path / f"avg-{seed}", [0.1] * 20 + [0.9] * 19 + [end], seed=seed)
        tell(tmp_path / f"lean-{seed}", [0.1] * 20 + [0.5] * 20, seed=seed, method="fedwsq-lean")
    (scene,) = lean.scenes(read_runs(sorted(tmp_path.iterdir())))
    (line,) = [line for line in readme.block([scene], {}, {}).splitlines() if "rounds" in line]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[2].endswith(", whole")
    assert cells[3] == f"1.0 (1.0 to 1.0, 2 seeds), {said}"
    assert cells[4] == ""


def by_split(folder, left_out=()):
    """Every method on two splits, 10 points better for each of ten parts of alpha and of a seed."""
    for alpha, seed, name in product((0.1, 0.3), (0, 1), METHODS):
        method, _, bits = name.partition("-")
        settings = {"data.partition.alpha": alpha, "seed": seed, "method": method}
        if bits:
            settings["uplink.bits"] = int(bits)
        if (alpha, seed, name) not in left_out:
            tell(folder / f"{alpha}-{seed}-{name}", [0.5 + alpha + seed / 10], **settings)
    return kept.by_setting(read_runs(sorted(folder.iterdir())))


def test_a_block_has_accuracies_by_split_where_all_methods_were_run(tmp_path):
    left_out = [(0.1, 0, "fedws"), (0.1, 1, "fedws"), (0.1, 1, "fedavg")]
    lines = readme.block([], by_split(tmp_path, left_out), {}).splitlines()
    assert "digits, 5 of 10 clients, cnn, after 1 rounds:" in lines[3]
    assert lines[5] == "| method | alpha 0.1 | alpha 0.3 |"
    assert lines[7].startswith("| fedavg | 60.00 (one seed) | 85.00 ± ")
    assert lines[8].startswith("| fedws |  | 85.00 ± ")
    assert len(lines) == 11


def test_methods_stand_side_by_side_on_the_seeds_that_all_have(tmp_path):
    lines = readme.block([], by_split(tmp_path, [(0.3, 0, "fedwsq-1")]), {}).splitlines()
    for line in lines[7:]:
        assert line.endswith("| 90.00 (one seed) |"), line


def test_a_block_has_the_claims_by_answer():
    verdicts = {
        "One": Verdict.HOLDS,
        "Two": Verdict.IN_PART,
        "Three": Verdict.HOLDS,
        "Four": Verdict.NOT_HERE,
    }
    lines = readme.block([], {}, verdicts).splitlines()
    assert lines[-5].startswith("The paper's 4 claims")
    assert readme.GLANCE in lines[-5]
    assert lines[-3:] == [
        "- **holds** (2): One; Three",
        "- **holds in part** (1): Two",
        "- **does not hold here** (1): Four",
    ]


def test_a_block_takes_the_place_of_the_one_that_is_there(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"above\n{readme.START}\nold\n{readme.END}below\n")
    readme.put("new\n", page)
    assert page.read_text() == f"above\n{readme.START}\nnew\n\n{readme.END}below\n"
    page.write_text("no marks\n")
    with pytest.raises(RunError, match="once, and"):
        readme.put("new\n", page)
    assert page.read_text() == "no marks\n"


def test_the_readme_has_what_the_kept_runs_say(tmp_path):
    with evidence.unpacked() as runs:
        found = claims.results(claims.read_claims(), runs)
    copy = tmp_path / "README.md"
    copy.write_text(README.read_text())
    readme.put(found.block, copy)
    assert copy.read_text() == README.read_text()


def test_the_readme_has_the_factor_of_the_kept_runs():
    with evidence.unpacked() as runs:
        found = claims.results(claims.read_claims(), runs)
        times = picture.times_fewer(picture.headline(found.scenes))
    promise = " ".join(README.read_text().split("## Two commands")[0].split())
    assert f"{times.middle:.0f} times" in promise
    assert f"{times.low:.0f} to {times.high:.0f}" in promise
