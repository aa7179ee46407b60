"""Claims answered from kept runs: what is kept is a run, and an answer follows from its numbers."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from stories import tell

from fedwsq.core.errors import RunError
from fedwsq.plan import plan_settings
from fedwsq.plan.grid import read_grid
from fedwsq.plan.read import dotted
from fedwsq.runs.reading import read_run, read_runs
from fedwsq.runs.receipt import read_receipt
from harness import TESTS

sys.path.append(str(TESTS.parent / "benchmarks"))

import claims
import evidence
import kept
import overview
import verdicts
from measured import MEASURES

CLAIM = {
    "name": "c",
    "sentence": "s",
    "where": "w",
    "bits": [4],
    "better": ["fedwsq {bits} bits"],
    "than": ["fedavg"],
}


def every_claim():
    return [claim for part in claims.read_claims().values() for claim in part]


def test_what_is_kept_is_the_run_without_its_weights(finished, tmp_path):
    path = evidence.keep(finished.folder, tmp_path / "kept")
    assert evidence.keep(finished.folder, tmp_path / "again").read_bytes() == path.read_bytes()
    with evidence.unpacked(tmp_path / "kept") as (found,):
        assert found.state == "finished"
        assert found.rows == read_run(finished.folder).rows
        assert found.summary == read_run(finished.folder).summary
        assert not list(found.folder.glob("*.safetensors"))


def test_a_name_that_another_run_has_is_refused(finished, tmp_path, capsys):
    other = Path(shutil.copytree(finished.folder, tmp_path / finished.folder.name))
    evidence.keep(finished.folder, tmp_path / "kept")
    receipt = read_receipt(other)
    settings = receipt.settings.replace("seed = 0", "seed = 1")
    (other / "receipt.json").write_text(replace(receipt, settings=settings).text())
    with pytest.raises(RunError, match="is another run's; give this one a --prefix"):
        evidence.keep(other, tmp_path / "kept")
    path = evidence.keep(other, tmp_path / "kept", prefix="other_")
    assert path.name == f"other_{other.name}.tar.xz"
    with evidence.unpacked(tmp_path / "kept") as found:
        assert len(found) == 2


def test_what_is_not_finished_is_named_and_left_out(finished, tmp_path, capsys):
    nothing = tmp_path / "nothing"
    assert evidence.keep_finished([nothing, finished.folder], tmp_path / "kept") == 0
    assert f"left out: {nothing} is not there" in capsys.readouterr().err
    assert evidence.keep_finished([nothing], tmp_path / "kept") == 1


def test_a_kept_run_is_repeated_from_its_receipt(finished, tmp_path, capfd):
    name = evidence.keep(finished.folder, tmp_path).name.removesuffix(".tar.xz")
    assert evidence.repeat(name, ["--rounds", "2", "--workers", "1"], tmp_path) == 0
    assert (
        "rounds 1 to 2 give the same accuracies, bytes, packets and weights"
        in capfd.readouterr().out
    )
    with pytest.raises(RunError, match=f"did you mean {name}"):
        evidence.repeat(f"{name}x", [], tmp_path)


@pytest.mark.slow
def test_a_committed_run_is_repeated_as_far_as_this_machine_is_like_the_one_it_is_from(capfd):
    name = "digits_seed-0_fedwsq-4"
    code = evidence.repeat(name, ["--rounds", "3", "--workers", "1"])
    said = " ".join(capfd.readouterr().out.split())
    if code == 0:
        assert "rounds 1 to 3 give the same accuracies, bytes, packets and weights" in said
    else:
        assert "weights may differ in their last bits here" in said
        assert "This need not be a fault" in said


def test_every_committed_run_has_a_receipt_of_its_own_rows():
    with evidence.unpacked() as found:
        assert found
        for run in found:
            receipt = read_receipt(run.folder)  # checks its digest
            assert receipt.weights == [row.weights for row in run.rows]
            assert receipt.packets == [row.packets for row in run.rows]
            assert receipt.settings == (run.folder / "config.toml").read_text()


@pytest.fixture
def runs(finished):
    """Three seeds a method with hand-made accuracies."""

    def made(accuracies, **settings):
        real = read_run(finished.folder)
        for seed, accuracy in enumerate(accuracies):
            last = replace(real.rows[-1], test_accuracy_ema=accuracy)
            said = real.settings | settings | {"seed": seed}
            yield replace(real, settings=said, rows=(*real.rows[:-1], last))

    plain = {
        "algorithm.name": "fedavg",
        "model.standardize.name": "none",
        "uplink.codec.name": "float32",
    }
    wsq = {
        "algorithm.name": "fedavg",
        "model.standardize.name": "ws",
        "uplink.codec.name": "danuq",
        "uplink.bits.name": "fixed",
        "uplink.bits.bits": 4,
    }
    return lambda ours, theirs: [*made(ours, **wsq), *made(theirs, **plain)]


def compared(claim, runs):
    settings = kept.by_setting(runs)
    return verdicts.comparisons(claim, settings, verdicts.noises(settings))


def answer(claim, runs):
    return str(verdicts.verdict(claim, compared(claim, runs)))


@pytest.mark.parametrize(
    ("ours", "theirs", "within", "expected"),
    [
        ([0.82, 0.73, 0.92], [0.80, 0.70, 0.90], 0, "holds (1 of 1"),  # seed by seed: 2, 3, 2
        ([0.80, 0.70, 0.90], [0.82, 0.73, 0.92], 0, "does not hold here (0 of 1"),
        ([0.80, 0.70, 0.90], [0.82, 0.73, 0.92], 5, "holds (1 of 1"),
        ([0.85, 0.70, 0.90], [0.80, 0.73, 0.89], 0, "undecided (0 of 1"),
        ([0.9], [0.1], 0, "undecided (0 of 1"),  # one seed, and nobody knows how seeds scatter
        ([0.9, 0.9], [], 0, "not run yet"),
    ],
)
def test_an_answer_follows_from_the_differences_of_seeds(runs, ours, theirs, within, expected):
    assert answer(CLAIM | {"within": within}, list(runs(ours, theirs))).startswith(expected)


def told(folder, accuracies, **settings):
    """A run of one round for each seed."""
    for seed, accuracy in enumerate(accuracies):
        name = f"{len(list(folder.glob('*')))}-{seed}"
        yield read_run(tell(folder / name, [accuracy], seed=seed, **settings))


def test_one_seed_has_the_scatter_of_those_that_have_several(tmp_path):
    """Sides by seeds: 50, 52, 50 and 40, 40, 43. Means of seeds 45, 46, 46.5, of sides 50.7 and
    41; what is left is 0.17, 1.17, -1.33 and its opposite: 2 (0.03 + 1.36 + 1.78) = 6.33 with 2
    degrees of freedom, so a difference has a std of 2.52 and an interval of 4.30 times that."""
    runs = [
        *told(tmp_path, [0.50, 0.52, 0.50], method="fedws"),
        *told(tmp_path, [0.40, 0.40, 0.43]),
        *told(tmp_path, [0.70], method="fedprox"),
        *told(tmp_path, [0.49], method="fedacg"),
    ]
    (noise,) = verdicts.noises(kept.by_setting(runs)).values()
    assert noise.freedom == 2
    assert noise.squares == pytest.approx(6.333, abs=1e-3)
    assert noise.half == pytest.approx(10.83, abs=0.01)
    clear, unclear = ({"better": [name], "than": ["fedavg"]} for name in ("fedprox", "fedacg"))
    assert answer(clear, runs) == (
        "holds as far as run (1 of 1 comparisons for it, 0 against it; 1 of one seed)"
    )
    assert answer(unclear, runs).startswith("undecided")


def test_codes_of_one_method_scatter_by_themselves(tmp_path):
    runs = [
        *told(tmp_path, [0.50, 0.60], method="fedwsq", **{"uplink.bits": 4}),
        *told(tmp_path, [0.49, 0.59], method="fedwsq", **{"uplink.bits": 1}),
        *told(tmp_path, [0.40, 0.70]),
    ]
    found = {kind.codes: each for kind, each in verdicts.noises(kept.by_setting(runs)).items()}
    assert found[True].half == pytest.approx(0.0, abs=1e-9)
    assert found[False].half > 10


def test_a_claim_holds_only_where_all_that_it_asks_for_was_run(tmp_path):
    runs = [
        *told(tmp_path, [0.50, 0.61, 0.70], method="fedws"),
        *told(tmp_path, [0.40, 0.50, 0.60]),
    ]
    claim = {"better": ["fedws"], "than": ["fedavg", "fedprox"]}
    assert answer(claim, runs) == (
        "holds as far as run (1 of 1 comparisons for it, 0 against it; 1 of 2 pairs not run)"
    )


def test_a_pair_counts_once_in_a_setting(tmp_path):
    """Two rounds of three seeds, four of one, which has the same run in."""
    for seed, rounds in enumerate((4, 2, 2)):
        tell(tmp_path / f"ws-{seed}", [0.5] * rounds, seed=seed, method="fedws")
        tell(tmp_path / f"avg-{seed}", [0.4] * rounds, seed=seed)
    found = compared({"better": ["fedws"], "than": ["fedavg"]}, read_runs(tmp_path.iterdir()))
    assert [(each.rounds, each.counts) for each in found] == [(2, True), (4, False)]


def test_runs_that_were_evaluated_in_other_rounds_are_not_held_against_each_other(tmp_path):
    often = tell(tmp_path / "often", [0.5] * 6, method="fedws", eval_every=1)
    rarely = tell(tmp_path / "rarely", [0.4] * 6, eval_every=3)
    assert not compared({"better": ["fedws"], "than": ["fedavg"]}, read_runs([often, rarely]))


def test_runs_of_one_name_with_other_settings_are_sides_of_their_own(tmp_path):
    runs = [
        *told(tmp_path, [0.5, 0.5], method="fedprox"),
        *told(tmp_path, [0.9], method="fedprox", **{"algorithm.mu": 1.0}),
    ]
    (sides,) = kept.by_setting(runs).values()
    assert list(sides) == ["fedprox", "fedprox, algorithm.mu 1.0"]
    assert sorted(sides["fedprox"].runs) == [0, 1]


def test_longer_runs_are_compared_as_they_were(tmp_path):
    """Three rounds of one against two of the other: after two."""
    long = tell(tmp_path / "long", [0.1, 0.5, 0.9], method="fedws")
    short = tell(tmp_path / "short", [0.1, 0.4])
    (found,) = compared({"better": ["fedws"], "than": ["fedavg"]}, read_runs([long, short]))
    assert found.rounds == 2
    assert found.difference.mean == pytest.approx(10)


@pytest.mark.parametrize(("rounds", "expected"), [(3, [2]), (4, [2, 4])])
def test_a_few_more_rounds_of_fewer_seeds_are_no_comparison_of_their_own(
    tmp_path, rounds, expected
):
    """Two rounds of two seeds, and a few more of one."""
    for name, settings in {"ws": {"method": "fedws"}, "avg": {}}.items():
        tell(tmp_path / f"{name}-0", [0.5] * rounds, **settings)
        tell(tmp_path / f"{name}-1", [0.5] * 2, seed=1, **settings)
    found = compared({"better": ["fedws"], "than": ["fedavg"]}, read_runs(tmp_path.iterdir()))
    assert [len(each.left.by_seed) for each in found] == [2, 1][: len(expected)]
    assert [each.rounds for each in found] == expected


def test_a_claim_may_be_about_some_settings_alone(tmp_path):
    for name, settings in {"ws": {"method": "fedws"}, "avg": {}}.items():
        tell(tmp_path / name, [0.5], **settings)
    runs = read_runs(tmp_path.iterdir())
    claim = {"better": ["fedws"], "than": ["fedavg"]}
    digits = {"data.name": ["digits"]}
    assert len(compared(claim | {"only": digits}, runs)) == 1
    assert not compared(claim | {"only": {"data.name": ["cifar10"]}}, runs)


def test_what_is_unusual_about_a_side_is_in_its_name(tmp_path):
    folder = tell(tmp_path / "run", [0.5], method="fedws", **{"model.standardize.rho": 0.1})
    assert kept.side_name(read_run(folder).settings) == "fedws, rho 0.1"


def test_every_claim_has_its_sentence_and_one_way_to_be_answered():
    for claim in every_claim():
        assert {"name", "sentence", "where"} <= set(claim)
        ways = [bool(verdicts.pairs(claim)), "measure" in claim, "untestable" in claim]
        assert ways.count(True) == 1, claim["name"]
        assert claim.get("measure", "faster") in MEASURES


def test_every_side_of_a_claim_is_what_some_plan_is_called():
    """A side that nothing is called would be "not run yet" for ever."""
    known = set()
    for grid in sorted(claims.CLAIMS.parent.glob("*_grid.toml")):
        for cell in read_grid([str(grid)]).cells():
            known.add(kept.side_name(dotted(plan_settings(cell.plan))))
    for claim in every_claim():
        for pair in verdicts.pairs(claim):
            assert set(pair) <= known, claim["name"]


@pytest.mark.parametrize(
    ("title", "found_at"),
    [
        ("Rho hardly matters", "rho-hardly-matters"),
        ("Tiny-ImageNet at 2.3 bits", "tiny-imagenet-at-23-bits"),
        ("Does width decide?", "does-width-decide"),
    ],
)
def test_an_answer_leads_to_its_claim(title, found_at):
    """As pages of Markdown name their headings."""
    assert overview.anchor(title) == found_at


def test_accuracies_stand_by_seed_the_best_first_after_as_many_rounds_as_most_have(tmp_path):
    tell(tmp_path / "long", [0.5, 0.5, 0.9], method="fedws")
    tell(tmp_path / "other-seed", [0.3, 0.3], method="fedws", seed=1)
    tell(tmp_path / "plain", [0.4, 0.4])
    tell(tmp_path / "better", [0.6, 0.6], method="fedacg")
    tell(tmp_path / "alone", [0.4, 0.4], **{"data.partition": "iid"})
    found = overview.accuracies(kept.by_setting(read_runs(sorted(tmp_path.iterdir()))))
    title, _, head, _, *lines = found.strip().splitlines()
    assert "after 2 rounds" in title
    assert head == "| method | MB up | seed 0 | seed 1 | against fedws |"
    assert lines == [
        "| fedacg | 0.0 | 60.00 |  | 10.00 (one seed) |",
        "| fedws | 0.0 | 50.00 | 30.00 |  |",
        "| fedavg | 0.0 | 40.00 |  | -10.00 (one seed) |",
    ]


def test_the_figure_has_a_row_for_each_claim_that_has_a_comparison(runs, tmp_path, monkeypatch):
    found = compared(CLAIM, list(runs([0.9, 0.8], [0.8, 0.7])))
    drawn = []
    monkeypatch.setattr(overview, "save", lambda figure, path: drawn.append(figure))
    overview.draw({"c": found, "not run": []}, tmp_path / "figure.png")
    (figure,) = drawn
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["c"]
    mark = next(line for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata()))
    assert mark.get_xdata()[0] == pytest.approx(10)


def test_the_page_is_what_the_kept_runs_say():
    with evidence.unpacked() as found:
        made = claims.results(claims.read_claims(), found)
    assert (claims.CLAIMS.parent / "RESULTS.md").read_text() == made.text
