"""Epsilon of a run: against formulas worked out apart from the accountant, and by what was sent."""

import json
import math
import subprocess
import sys

import pytest

from fedwsq.cli import main
from fedwsq.core.files import count_one
from fedwsq.plan import Privacy
from fedwsq.runs import Run
from fedwsq.runs.privacy import ASKED, INSTALL, epsilon_model, epsilon_server, spent
from harness import tiny, tiny_words

PRIVATE = {"aggregation": "uniform", "privacy.clip": 0.5, "privacy.noise": 2.0}


def gaussian_delta(epsilon: float, sigma: float) -> float:
    """Of the Gaussian mechanism with sensitivity 1 (Balle and Wang, 2018, theorem 8)."""
    cdf = lambda x: 0.5 * math.erfc(-x / math.sqrt(2))
    return cdf(0.5 / sigma - epsilon * sigma) - math.exp(epsilon) * cdf(
        -0.5 / sigma - epsilon * sigma
    )


def test_against_the_server_it_is_the_gaussian_mechanism():
    pytest.importorskip("dp_accounting")
    privacy = Privacy(clip=3.0, noise=8.0, delta=1e-5)
    # Other data moves an update by 6; the noise has 24, over four releases as good as 12: sigma 2.
    epsilon = epsilon_server(privacy, releases=4)
    assert gaussian_delta(epsilon, sigma=2.0) == pytest.approx(1e-5, rel=1e-3)


def test_sampling_hides_and_rounds_add_up():
    pytest.importorskip("dp_accounting")
    privacy = Privacy(noise=8.0)
    few = epsilon_model(privacy, clients=1_000, sampled=10, rounds=10)
    everybody = epsilon_model(privacy, clients=10, sampled=10, rounds=10)
    assert few < 0.2 * everybody
    assert few < epsilon_model(privacy, clients=1_000, sampled=10, rounds=100) < everybody
    # Everybody in every round is the Gaussian mechanism; its RDP bound is a little above it.
    exact = epsilon_server(privacy, releases=10)
    assert exact < everybody < 1.2 * exact


def test_a_run_counts_what_its_clients_sent(tmp_path, capsys):
    pytest.importorskip("dp_accounting")
    words = [*tiny_words(rounds=2, **PRIVATE, clients_per_round=10), "--workers", "1"]
    assert main(["run", *words, "--out", str(tmp_path / "run")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "cannot be repeated" in out
    assert "against the server (2 updates of one client)" in out
    found = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert (found["rounds"], found["releases"]) == (2, 2)
    assert gaussian_delta(found["epsilon_server"], sigma=1 / math.sqrt(2)) == pytest.approx(
        1e-5, rel=1e-3
    )
    assert found["epsilon_model"] == found["epsilon_server"]  # everybody takes part
    row = json.loads((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()[0])
    assert row["train_loss"] is None
    assert row["replied"] == 10

    # From round 1 again, as after a lost disk: new noise on the same data.
    (tmp_path / "run" / "checkpoints" / "last.safetensors").unlink()
    assert main(["resume", str(tmp_path / "run"), "--workers", "1"]) == 0
    again = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert (again["rounds"], again["releases"]) == (3, 3)
    assert again["epsilon_server"] > found["epsilon_server"]


def test_equal_plans_give_other_weights(tmp_path):
    found = []
    for name in ("a", "b"):
        with Run.create(tiny(rounds=1, **PRIVATE), tmp_path / name, workers=1) as run:
            found.append(run.go().weights)
    assert found[0] != found[1]


def test_without_noise_nobody_is_protected(tmp_path):
    plan = tiny(**{**PRIVATE, "privacy.noise": 0})
    assert plan.privacy is not None
    assert "protects nobody" in spent(plan, plan.privacy, tmp_path).line()


def test_without_the_extra_it_says_how_to_have_it(tmp_path):
    code = (
        "import sys; sys.modules['dp_accounting'] = None\n"
        "from pathlib import Path; from fedwsq.core.files import count_one\n"
        "from fedwsq.plan import make_plan; from fedwsq.runs.privacy import spent\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "count_one(folder / 'privacy.rounds'); count_one(folder / 'clients' / '3' / 'releases')\n"
        "plan = make_plan({'aggregation': 'uniform', 'privacy': {'noise': 1.0}})\n"
        "print(spent(plan, plan.privacy, folder).line())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"privacy: {INSTALL}\n"


def test_clients_that_count_elsewhere_count_here_as_if_asked_every_round(tmp_path):
    """Over Flower what a client sent is counted on its own disk, which the server cannot see."""
    pytest.importorskip("dp_accounting")
    plan = tiny(rounds=2, **PRIVATE)
    for _ in range(3):
        count_one(tmp_path / ASKED)
    found = spent(plan, plan.privacy, tmp_path)
    assert found.releases == 3
    assert found.epsilon_server == epsilon_server(plan.privacy, releases=3)
