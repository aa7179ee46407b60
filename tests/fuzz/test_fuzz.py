"""Foreign bytes of every kind, damaged: read or refused, in one line, and nothing else.

`make fuzz` goes on for as long as it is let; `benchmarks/fuzz.py` counts.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz_campaign import inputs
from fuzz_targets import TARGETS, corpus, outcome
from hypothesis import given, settings
from hypothesis import strategies as st

HERE = Path(__file__).parent
SECONDS = 180 / len(TARGETS)


@pytest.mark.parametrize("kind", TARGETS)
def test_the_corpus_is_read_or_refused(kind):
    found = [outcome(kind, data) for data in corpus(kind)]
    assert "read" in found


@pytest.mark.parametrize("kind", TARGETS)
def test_damage_from_a_seed(kind):
    damaged = inputs(kind, seed=0)
    found = {outcome(kind, next(damaged)) for _ in range(200)}
    assert "refused" in found


@pytest.mark.parametrize("kind", TARGETS)
@settings(max_examples=30)
@given(data=st.data())
def test_any_bytes_and_any_piece_of_a_sample(kind, data):
    sample = data.draw(st.sampled_from(corpus(kind)))
    start = data.draw(st.integers(0, len(sample)))
    piece = data.draw(st.binary(max_size=64))
    outcome(kind, piece)
    outcome(kind, TARGETS[kind].sealed(sample[:start] + piece + sample[start + len(piece) :]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", TARGETS)
def test_three_minutes_over_all_kinds(kind, tmp_path):
    """Guided by coverage where atheris is installed."""
    script = "fuzz_campaign.py"
    words = [kind, str(os.getpid()), "0", str(SECONDS), str(tmp_path)]
    try:
        import atheris  # noqa: F401

        script = "fuzz_guided.py"
        words = [kind, str(SECONDS), str(tmp_path)]
    except ImportError:
        pass
    done = subprocess.run(
        [sys.executable, str(HERE / script), *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    if script == "fuzz_campaign.py":
        assert json.loads(done.stdout)["findings"] == 0, done.stderr[-4_000:]
