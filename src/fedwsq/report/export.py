"""The rows of a run for other programs: CSV, Parquet (extra: `parquet`), TensorBoard."""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path

from fedwsq.core.errors import ConfigError
from fedwsq.core.files import write_atomically
from fedwsq.federation.record import RoundRecord
from fedwsq.report.layout import laid_out
from fedwsq.report.trackers import Subject, TensorBoard
from fedwsq.runs.reading import Reading

COLUMNS = tuple(f.name for f in fields(RoundRecord))


def export(run: Reading, form: str, out: Path | None = None) -> Path:
    """Write the rows that can be read; says where. `out` is a file, for TensorBoard a folder."""
    if not run.rows:
        raise ConfigError(f"{run.folder} has no rows to export; its state is {run.state}")
    return FORMS[form](run, out)


def _csv(run: Reading, out: Path | None) -> Path:
    path = out or run.folder / "rounds.csv"
    rows = [["" if x is None else str(x) for x in row.values()] for row in _flat(run.rows)]
    write_atomically(path, laid_out(COLUMNS, rows, "csv").encode())
    return path


def _parquet(run: Reading, out: Path | None) -> Path:
    try:
        from pyarrow import Table, parquet
    except ImportError:
        raise ConfigError("--to parquet needs an extra: pip install 'fedwsq[parquet]'") from None
    path = out or run.folder / "rounds.parquet"
    data = io.BytesIO()
    parquet.write_table(Table.from_pylist(_flat(run.rows)), data)
    write_atomically(path, data.getvalue())
    return path


def _tensorboard(run: Reading, out: Path | None) -> Path:
    folder = out or run.folder / "tensorboard"
    board = TensorBoard(Subject(run.folder, run.facts.run, run.settings), folder)
    for row in run.rows:
        board.add(row)
    board.close()
    return folder


def _flat(rows: Sequence[RoundRecord]) -> list[dict[str, object]]:
    """One value a column: lists and tables as JSON."""
    flat = []
    for row in rows:
        found = asdict(row)
        nested = {key: json.dumps(x) for key, x in found.items() if isinstance(x, list | dict)}
        flat.append({**found, **nested})
    return flat


FORMS: dict[str, Callable[[Reading, Path | None], Path]] = {
    "csv": _csv,
    "parquet": _parquet,
    "tensorboard": _tensorboard,
}
