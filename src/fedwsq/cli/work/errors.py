"""`fedwsq ls codecs --error`: what each codec loses, sends and takes, measured here and now."""

from collections.abc import Mapping

from rich.table import Table
from torch import Tensor

from fedwsq.codecs import CODECS, Codec
from fedwsq.codecs.measure import measure, samples, usual_rates
from fedwsq.core.errors import ConfigError
from fedwsq.core.threads import one_thread

MAX_NUMEL = 2**28


def errors(numel: int) -> Table:
    """Every codec at its usual rates on data of each distribution: error, bytes and speed."""
    if not 1 <= numel <= MAX_NUMEL:
        raise ConfigError(f"--numel is {numel}, must be from 1 to {MAX_NUMEL}")
    vectors = samples(numel)
    title = (
        f"codecs on {numel} elements of unit variance: "
        "squared error, bytes an element, GB of float32 a second"
    )
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("codec\n", no_wrap=True)
    errors = [f"error\n{kind}" for kind in vectors]
    sizes = [f"bytes\n{kind}" for kind in vectors]
    for head in ("bits\n", *errors, *sizes, "encode\nGB/s", "decode\nGB/s"):
        table.add_column(head, justify="right", no_wrap=True)

    for name, entry in CODECS.items():
        codec = entry()
        for rate in usual_rates(codec):
            with one_thread():  # as a worker codes
                figures = _measured(codec, rate, vectors)
            table.add_row(name, f"{rate:g}", *(f"{value:.3g}" for value in figures))
    return table


def _measured(codec: Codec, rate: float, vectors: Mapping[str, Tensor]) -> list[float]:
    """A row of figures: errors, then bytes an element, then the two speeds."""
    # How long it takes does not depend on the distribution: timed on one of them.
    timed = measure(codec, rate, vectors["normal"], repeats=3)
    rows = [measure(codec, rate, x, repeats=0) for x in vectors.values()]
    gigabytes = 4e-9 * len(vectors["normal"])
    return [
        *(row.error for row in rows),
        *(row.bits_per_parameter / 8 for row in rows),
        gigabytes / timed.encode_seconds,
        gigabytes / timed.decode_seconds,
    ]
