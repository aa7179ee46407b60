"""Tests of what needs Flower; without it they are skipped, and say so."""

import importlib.util

import pytest

if importlib.util.find_spec("flwr") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def _flower():
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedwsq[flower]'")
