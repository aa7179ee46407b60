"""What commands draw with: matplotlib, loaded only when a picture is asked for."""

import io
from pathlib import Path
from typing import Any

from fedwsq.cli.outputs import require_folder, writing
from fedwsq.core.errors import ConfigError


def blank(path: Path, width: float, height: float) -> Any:
    """An empty figure for `path`, in inches.

    What could not be saved there is refused now, before anything is computed for it.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("drawing needs an extra: pip install 'fedwsq[report]'") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    if _kind(path) not in figure.canvas.get_supported_filetypes():
        raise ConfigError(f"cannot draw {path}: its name must end in .png, .pdf or .svg")
    require_folder(path, "draw")
    return figure


def save(figure: Any, path: Path) -> None:
    from fedwsq.core.files import write_atomically  # which brings torch in

    # In memory first, so that the file is written whole or not at all.
    data = io.BytesIO()
    figure.savefig(data, format=_kind(path), dpi=150)
    with writing(path):
        write_atomically(path, data.getvalue())


def _kind(path: Path) -> str:
    return path.suffix.lstrip(".").lower()
