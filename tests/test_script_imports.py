"""Benchmarks and examples take only what the package has: nothing else would notice for months."""

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted([*ROOT.glob("benchmarks/*.py"), *ROOT.glob("examples/**/*.py")])


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_script_imports_of_the_package_is_there(script):
    for node in ast.walk(ast.parse(script.read_text())):
        if not isinstance(node, ast.ImportFrom) or not f"{node.module}.".startswith("fedwsq."):
            continue
        module = importlib.import_module(str(node.module))
        for alias in node.names:
            if not hasattr(module, alias.name):  # then it is a module of its own
                importlib.import_module(f"{node.module}.{alias.name}")


MUCH = ["-c", "from script import parser; parser(''); print('x' * 100_000, flush=True)"]


@pytest.mark.parametrize("words", [["evidence.py", "list"], MUCH], ids=["little", "much"])
def test_a_benchmark_that_nobody_reads_ends_without_a_word(words):
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as nobody:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=ROOT / "benchmarks",
            stdout=nobody,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.stderr == b""
