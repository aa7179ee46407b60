"""Where Flower is not installed: everything else works, and what needs it says how to get it."""

import subprocess
import sys

WITHOUT = "import sys; sys.modules['flwr'] = None; import fedwsq; print(fedwsq.flower.__name__); "


def test_what_needs_flower_says_how_to_get_it():
    for name in ("compress", "compress_mod"):
        command = [sys.executable, "-c", f"{WITHOUT} fedwsq.flower.{name}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.stdout == "fedwsq.flower\n"
        wanted = f"ImportError: fedwsq.flower.{name} needs Flower: pip install 'fedwsq[flower]'\n"
        assert done.stderr.endswith(wanted)
