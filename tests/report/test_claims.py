"""Claims answered from kept runs: what is kept is a run, and an answer follows from its numbers."""

import sys
from dataclasses import replace

import pytest

from fedwsq.runs.reading import read_run
from harness import TESTS

sys.path.append(str(TESTS.parent / "benchmarks"))

import claims
import evidence

CLAIM = {
    "name": "c",
    "sentence": "s",
    "where": "w",
    "bits": [4],
    "better": ["fedwsq {bits} bits"],
    "than": ["fedavg"],
}


def test_what_is_kept_is_the_run_without_its_weights(finished, tmp_path):
    path = evidence.keep(finished.folder, tmp_path / "kept")
    assert evidence.keep(finished.folder, tmp_path / "again").read_bytes() == path.read_bytes()
    with evidence.unpacked(tmp_path / "kept") as (found,):
        assert found.state == "finished"
        assert found.rows == read_run(finished.folder).rows
        assert found.summary == read_run(finished.folder).summary
        assert not list(found.folder.glob("*.safetensors"))


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


@pytest.mark.parametrize(
    ("ours", "theirs", "within", "expected"),
    [
        ([0.82, 0.73, 0.92], [0.80, 0.70, 0.90], 0, "holds (1 of 1"),  # seed by seed: 2, 3, 2
        ([0.80, 0.70, 0.90], [0.82, 0.73, 0.92], 0, "does not hold here (0 of 1"),
        ([0.80, 0.70, 0.90], [0.82, 0.73, 0.92], 5, "holds (1 of 1"),
        ([0.85, 0.70, 0.90], [0.80, 0.73, 0.89], 0, "undecided (0 of 1"),
        ([0.9], [0.1], 0, "undecided (0 of 1"),
        ([0.9, 0.9], [], 0, "not run yet"),
    ],
)
def test_an_answer_follows_from_the_differences_of_seeds(runs, ours, theirs, within, expected):
    settings = claims.groups_by_setting(runs(ours, theirs))
    claim = CLAIM | {"within": within}
    assert claims.verdict(claim, claims.comparisons(claim, settings)).startswith(expected)


def test_the_page_is_what_the_kept_runs_say():
    with evidence.unpacked() as found:
        text = claims.results(claims.tomllib.loads(claims.CLAIMS.read_text())["claim"], found)
    assert (claims.CLAIMS.parent / "RESULTS.md").read_text() == text
