"""A run that is summed under masks, as real processes: the weights of the plain run."""

import psutil
import pytest

pytest.importorskip("cryptography", reason="needs the extra: pip install 'fedwsq[secure]'")
pytest.importorskip("Crypto", reason="needs the extra: pip install 'fedwsq[secure]'")

from fedwsq.runs import run
from harness import TINY_WORDS, gone, rows, start, tiny, wait_until, who_is_stuck

PLAIN = {"method": "fedwsq-secure", "uplink.secure": False, "uplink.counts": True}


@pytest.mark.slow
def test_on_worker_processes_killed_in_the_middle_of_a_round_and_resumed(tmp_path):
    """While somebody trains: keys and shares of this round are known already, and stay."""
    plain = run(tiny(**PLAIN), out=tmp_path / "plain", workers=1).weights
    folder = tmp_path / "run"
    words = [*TINY_WORDS, "method=fedwsq-secure", "algorithm.name=user_code:Stuck"]
    words += ["--out", str(folder), "--workers", "2"]
    process = start("run", *words, cwd=tmp_path, stuck=tmp_path / "stuck")
    who_is_stuck(tmp_path / "stuck", process)
    workers = psutil.Process(process.pid).children()
    process.kill()
    process.wait()
    wait_until(lambda: all(map(gone, workers)))
    process.communicate()
    begun = {path.name: path.read_bytes() for path in (folder / "counting").iterdir()}
    assert begun.keys() == {"attempt.json", "keys", "shares"}
    assert len(rows(folder)) == 1

    again = start("resume", folder, "--trust", "--workers", "2", cwd=tmp_path)
    printed, complaints = again.communicate()
    assert again.returncode == 0, complaints
    assert plain in printed
    assert [row["replied"] for row in rows(folder)] == [5, 5, 5]
