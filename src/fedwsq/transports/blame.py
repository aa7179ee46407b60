"""What went wrong with a client: in one line, where in the user's own code, and as a whole."""

import sysconfig
import traceback
from pathlib import Path

MAX_TRACEBACK = 2**16  # characters, the last ones: those name the error
PACKAGE = Path(__file__).parents[1]  # as frames name it: not resolved
INSTALLED = ("site-packages", "dist-packages")


def in_one_line(error: Exception) -> str:
    """Rows and the lines of a run have room for no more.

    `RuntimeError: shapes do not fit (my_model.py:12, in forward)`; the place is the innermost one
    in code that is neither ours nor installed, and is left out where there is none.
    """
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    places = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame)]
    if not places:
        return text
    last = places[-1]
    return f"{text} ({_short_name(last.filename)}:{last.lineno}, in {last.name})"


def whole(error: Exception) -> str:
    """The traceback as text, as Python prints it."""
    text = "".join(traceback.format_exception(error))
    if len(text) <= MAX_TRACEBACK:
        return text
    return f"... (cut short)\n{text[-MAX_TRACEBACK:]}"


def _is_own(frame: traceback.FrameSummary) -> bool:
    """Whether a frame is in a file, or a cell, that the user wrote."""
    # `<frozen importlib._bootstrap>`, and `<string>`, which is what dataclasses write for us.
    if frame.filename.startswith(("<frozen", "<string>")):
        return False
    path = Path(frame.filename)
    if path.is_relative_to(PACKAGE) or path.is_relative_to(sysconfig.get_path("stdlib")):
        return False
    return not any(part in INSTALLED for part in path.parts)


def _short_name(filename: str) -> str:
    """`my_model.py`; IPython gives each cell a file's name, which says nothing."""
    if "ipykernel_" in filename or filename.startswith("<ipython-input"):
        return "notebook cell"
    return Path(filename).name
