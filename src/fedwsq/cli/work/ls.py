"""`fedwsq ls`: what there is to choose from."""

import argparse
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from fedwsq.cli.ls import KINDS
from fedwsq.cli.start import loading
from fedwsq.core.errors import ConfigError
from fedwsq.plan import METHODS
from fedwsq.plan.read import shipped


def main(args: argparse.Namespace) -> int:
    console = Console(highlight=False, markup=False, emoji=False)
    if args.error:
        if args.kind != "codecs":
            raise ConfigError("--error measures codecs; write fedwsq ls codecs --error")
        with loading():
            from fedwsq.cli.work.errors import errors
        console.print(errors(args.numel))
        return 0

    for kind in [args.kind] if args.kind else KINDS:
        table = Table(
            title=kind, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0)
        )
        for row in _rows(kind):
            table.add_row(*row)
        console.print(table)
    return 0


def _rows(kind: str) -> list[tuple[str, str, str]]:
    """Name, settings and a line about each entry of a kind."""
    if kind == "methods":
        return [(name, _listed(m.settings), m.idea) for name, m in METHODS.items()]
    # The first line of a config, or of a grid, is a comment that says what it is.
    if kind in ("configs", "grids"):
        heads = {name: _first_line(path.read_text()) for name, path in shipped(kind).items()}
        return [(name, "", head.lstrip("# ")) for name, head in heads.items()]

    # Only here: methods and configs are plain data, and listed without waiting for torch.
    with loading():
        from fedwsq.cli.work.entries import TABLES, settings
    rows = []
    for name, entry in TABLES[kind].items():
        rows.append((name, _listed(settings(entry)), _first_line(entry.__doc__ or "")))
    return rows


def _listed(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in settings.items())


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
