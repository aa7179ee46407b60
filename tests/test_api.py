import subprocess
import sys

import fedwsq


def test_all_is_sorted_and_complete():
    assert fedwsq.__all__ == sorted(fedwsq.__all__)
    public = {name for name, value in vars(fedwsq).items() if not name.startswith("_") and not _is_module(value)}
    assert public == set(fedwsq.__all__)


def test_importing_needs_no_optional_package():
    code = (
        "import sys; import fedwsq; "
        "print([name for name in ('sklearn', 'flwr', 'matplotlib', 'tensorboard', 'rich') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def _is_module(value):
    return type(value).__name__ == "module"
