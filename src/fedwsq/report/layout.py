"""Cells of text as Markdown, LaTeX or CSV."""

import csv
import io
import re
from collections.abc import Sequence
from typing import Literal, TypeAlias

Format: TypeAlias = Literal["md", "latex", "csv"]
Row: TypeAlias = Sequence[str]

LATEX = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
}
MARKDOWN = re.compile(r"([\\`*_\[\]<>|])")
NUMBER = re.compile(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?")
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a spreadsheet knows that it is to compute


def laid_out(head: Row, rows: Sequence[Row], form: Format) -> str:
    """A whole table as text; what a cell holds stays text, whatever it looks like."""
    return LAYOUTS[form](head, rows)


def _markdown(head: Row, rows: Sequence[Row]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    escaped = [[_one_line(MARKDOWN.sub(r"\\\1", cell)) for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)


def _latex(head: Row, rows: Sequence[Row]) -> str:
    lines = [rf"\begin{{tabular}}{{{'l' * len(head)}}}", r"\hline"]
    for number, row in enumerate([head, *rows]):
        cells = ["".join(LATEX.get(c, c) for c in _one_line(cell)) for cell in row]
        lines.append(f"{' & '.join(cells)} \\\\")
        if number == 0:
            lines.append(r"\hline")
    lines += [r"\hline", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def _csv(head: Row, rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in (head, *rows):
        writer.writerow([_inert(cell) for cell in row])
    return text.getvalue()


def _inert(cell: str) -> str:
    """A cell that no spreadsheet takes for a formula; numbers may have a sign."""
    if not cell.startswith(FORMULA) or NUMBER.fullmatch(cell):
        return cell
    return f"'{cell}"


def _one_line(cell: str) -> str:
    return " ".join(cell.split())


LAYOUTS = {"md": _markdown, "latex": _latex, "csv": _csv}
