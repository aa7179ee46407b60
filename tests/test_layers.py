"""Imports point one way: a package knows those before it in this list, and none after it."""

import ast
from pathlib import Path

import pytest

import fedwsq

ROOT = Path(fedwsq.__file__).parent
DOOR = "fedwsq"  # `fedwsq/__init__.py` hands out what the packages before it have
ORDER = (
    "core data models training algorithms codecs secure wire evaluation plan parts transports "
    f"federation runs flower {DOOR} analysis report bench cli"
).split()


def files(package: str) -> list[Path]:
    return [*ROOT.glob(f"{package}.py"), *(ROOT / package).rglob("*.py")]


def imported(path: Path) -> set[str]:
    """What a file imports of ours, anywhere in it: in functions and for type checking too."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    found: set[str] = set()
    for name in names:
        root, package = f"{name}.".split(".")[:2]
        if root == "fedwsq":
            found.add(package if package in ORDER else DOOR)
    return found


@pytest.mark.parametrize("package", [name for name in ORDER if name != DOOR])
def test_a_package_imports_only_what_stands_before_it(package):
    known = ORDER[: ORDER.index(package) + 1]
    beyond = {str(path.relative_to(ROOT)): imported(path) - set(known) for path in files(package)}
    assert {path: names for path, names in beyond.items() if names} == {}


def test_every_package_has_its_place():
    found = {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in ROOT.rglob("*.py")}
    assert found - {"__init__", "__main__"} == set(ORDER) - {DOOR}
