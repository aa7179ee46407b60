"""The paper's tables: rows and columns with the settings that make them, and the numbers in them.

They are data, `published/*.toml`; the same files say what to run and what to hold it against.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from reprlib import repr as brief
from typing import Any

from fedwsq.core.checked import fits
from fedwsq.core.errors import ConfigError
from fedwsq.plan.read import Settings, read_toml, shipped

KINDS: dict[str, Any] = {
    "title": str,
    "source": str,
    "head": list[str],
    "match": list[str],
    "settings": dict,
    "columns": list[dict],  # type: ignore[type-arg]
    "rows": list[dict],  # type: ignore[type-arg]
}


@dataclass(frozen=True)
class Heading:
    """A row or a column: what it is called, level by level, and what it means."""

    label: tuple[str, ...]
    settings: Settings = field(default_factory=dict)  # by dotted name; `config` is among them


@dataclass(frozen=True)
class Table:
    """A published table. `values[row][column]` is an accuracy in percent."""

    name: str
    title: str
    source: str
    head: tuple[str, ...]  # what the levels of a row's label are
    match: tuple[str, ...]  # settings that tell cells apart beside method, bits, data and split
    settings: Settings  # of every cell
    columns: tuple[Heading, ...]
    rows: tuple[Heading, ...]
    values: tuple[tuple[float, ...], ...]

    def cell(self, row: Heading, column: Heading) -> Settings:
        """The settings that make a cell."""
        return {**self.settings, **column.settings, **row.settings}


def published_tables() -> list[str]:
    return list(shipped("published"))


def published_table(name: str) -> Table:
    """A table of the paper by name, such as `paper-table-1`."""
    found = read_toml(name, shipped("published"), "table")
    try:
        table = _table(name, found)
    except KeyError as error:
        raise ConfigError(f"table {name} lacks {error}; paper-table-5 is a short one") from None
    for row, numbers in zip(table.rows, table.values, strict=True):
        if len(row.label) != len(table.head):
            raise ConfigError(
                f"table {name}, row {' '.join(row.label)}: its label has {len(row.label)} parts, "
                f"and head {len(table.head)}"
            )
        for column in table.columns:
            if not isinstance(table.cell(row, column).get("config"), str):
                raise ConfigError(f"table {name}, row {' '.join(row.label)}: it names no config")
        if len(numbers) != len(table.columns):
            raise ConfigError(
                f"table {name}, row {' '.join(row.label)}: {len(numbers)} values for "
                f"{len(table.columns)} columns; each column needs one"
            )
    return table


def _table(name: str, found: Settings) -> Table:
    for key, kind in KINDS.items():
        if key in found and not fits(kind, found[key]):
            raise ConfigError(f"table {name}: {key} is {brief(found[key])}, see paper-table-5")
    for entry in (*found["rows"], *found["columns"]):
        if not fits(list[str], entry["label"]) or not fits(list[float], entry.get("values", [])):
            raise ConfigError(f"table {name}: a heading is {brief(entry)}, see paper-table-5")
    rows = found["rows"]
    values = tuple(tuple(row.pop("values")) for row in rows)
    return Table(
        name,
        found["title"],
        found["source"],
        tuple(found["head"]),
        tuple(found.get("match", ())),
        found["settings"],
        tuple(map(_heading, found["columns"])),
        tuple(map(_heading, rows)),
        values,
    )


def _heading(entry: Mapping[str, Any]) -> Heading:
    settings = {key: value for key, value in entry.items() if key != "label"}
    return Heading(tuple(entry["label"]), settings)
