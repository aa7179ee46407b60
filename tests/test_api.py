import ast
import importlib
import os
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

import fedwsq

PACKAGES = [fedwsq, fedwsq.plan]
PACKAGE_IDS = ["fedwsq", "fedwsq.plan"]


@pytest.mark.parametrize("package", PACKAGES, ids=PACKAGE_IDS)
def test_what_python_finds_is_what_type_checkers_see(package):
    """The table of lazy names, the imports for type checkers and `__all__` say the same."""
    found = {}
    for module, names in package._HOMES.items():
        found |= dict.fromkeys(names.split(), module)
    seen = {}
    for node in ast.walk(ast.parse(Path(package.__file__).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module != "fedwsq.core":
            seen |= {alias.name: node.module for alias in node.names}
    assert found == seen
    assert set(package.__all__) == set(found)
    for name, module in found.items():
        assert getattr(package, name) is getattr(importlib.import_module(module), name)


def test_all_is_sorted_and_complete():
    assert fedwsq.__all__ == sorted(fedwsq.__all__)
    public = {
        name
        for name in dir(fedwsq)
        if not name.startswith("_") and not _is_module(getattr(fedwsq, name))
    }
    assert public == set(fedwsq.__all__)


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="module 'fedwsq' has no attribute 'Danuk'"):
        _ = fedwsq.Danuk
    with pytest.raises(ImportError, match="cannot import name 'load_plam'"):
        from fedwsq.plan import load_plam  # noqa: F401


def test_importing_does_not_wait_for_torch():
    code = "import sys; import fedwsq; print(fedwsq.__version__, 'torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == [fedwsq.__version__, "False"]


def test_a_build_has_the_version_that_the_code_says():
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert project["version"] == fedwsq.__version__
    # Of a version that is not out yet, the changes so far.
    newest = next(x for x in (root / "CHANGELOG.md").read_text().splitlines() if x[:4] == "## [")
    number, _, unreleased = fedwsq.__version__.partition(".dev")
    assert newest.startswith(f"## [{number}] - ")
    assert newest.endswith("unreleased") == bool(unreleased)


def test_packages_are_in_reach_of_a_bare_import():
    code = "import fedwsq; print(fedwsq.codecs.CODECS['danuq'] is fedwsq.Danuq)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "True"


def test_importing_needs_no_optional_package():
    code = (
        "import sys; import fedwsq; fedwsq.run; "
        "heavy = ('sklearn', 'flwr', 'matplotlib', 'tensorboard', 'rich'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_the_example_of_the_package_runs_as_written(in_empty_folder, monkeypatch):
    monkeypatch.setattr(
        os, "sched_getaffinity", lambda pid: {0}, raising=False
    )  # one core, so no other processes
    names = {}
    exec(textwrap.dedent(fedwsq.__doc__.partition("\n")[2]), names)
    assert (len(names["result"].rounds), names["packet"].numel) == (1, 1000)
    assert (in_empty_folder / "runs" / "mine" / "model.safetensors").is_file()
    error = (names["restored"] - names["x"]).square().mean() / names["x"].square().mean()
    assert error == pytest.approx(0.0097, rel=0.4)  # of the 4-bit levels, on N(0, 1)


def _is_module(value):
    return type(value).__name__ == "module"
