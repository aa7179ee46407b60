"""The soak itself: a few dozen rounds of it, with everything that it does to them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "soak.py"


@pytest.mark.slow
def test_rounds_under_faults_are_those_of_their_accepted_replies(tmp_path):
    result = tmp_path / "soak.json"
    words = ["--rounds", "40", "--life", "3", "6", "--json", str(result)]
    done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads(result.read_text())
    assert found["verdict"] == "all rounds right, nothing grows"
    assert found["rounds_judged"] >= 40
    # A life ends up to half a second after its rounds were seen; by then it may have had many more.
    assert sum(found["ends_of_the_server"].values()) >= 1
    assert found["faults"]["fair"] < 6 * found["rounds_judged"]  # something did go wrong
