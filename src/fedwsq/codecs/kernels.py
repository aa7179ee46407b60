"""The codecs' inner loops, compiled by numba if it is installed: one pass over the vector and no copy of it.

What each computes is easiest to read in plain torch, which also does it on a GPU: `reference.quantize`, `expand` and
`survey`. Each gives the bits of its twin in numpy (`grid.quantize`, `grid.look_up`, `groups.moments`), which runs where
numba is missing, for other widths and as long as there is too little to do to load it. The loops are plain Python until
then. They work in pieces that stay in the innermost cache, and without branches, so that the compiler makes wide
instructions of them.
"""

import functools
import importlib
import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

WIDTHS = (1, 2, 4, 8)  # bits of a code that never crosses a byte
# Loading numba takes half a second, and compiling for the first time a few more.
WORTH_LOADING = 2**16  # elements at once
WORTH_LOADING_IN_ALL = 2**23  # elements of smaller vectors, which numpy needs about as long for
LANES = 512  # sums that run side by side; a fixed part of what a std is, see `groups.moments`
PIECE = 1024  # elements worked on at a time; whole bytes at every width
MANY_EDGES = 32  # from here on only every 16th is counted first

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Measured = NDArray[np.float64]
NEAREST, NOTHING = np.full(1, 0.5, np.float32), np.empty(0, np.float32)


def usable(numel: int, bits: int = 8) -> bool:
    """Whether a vector of so many elements goes through these: a large one, and all once many have come."""
    global _seen
    if bits not in WIDTHS:
        return False
    if not _loaded and numel < WORTH_LOADING:
        _seen += numel
        if _seen < WORTH_LOADING_IN_ALL:
            return False
    return _numba() is not None


COUNT, UNIFORM, MAGNITUDE, BETWEEN = range(4)  # how a code is found: see the codecs that name them


def quantize(values: Floats, scales: Floats, size: int, edges: Floats, bits: int, form: int = COUNT,
             draws: Floats = NEAREST, levels: Floats = NOTHING) -> bytes:  # fmt: skip
    """The packed number of edges below each x / scale, one scale for every `size` elements; 0 where the scale is 0.

    Other forms round with `draws`, one for each element or one for all: UNIFORM as `uq.quantize_uniform`, MAGNITUDE as
    `qsgd.quantize_magnitude`, BETWEEN from the level below, of which `edges` are all but the ends, to the next.
    """
    _require_scales(len(values), scales, size)
    if len(draws) not in (1, len(values)) or (form == BETWEEN and len(levels) != len(edges) + 2):
        raise ValueError(
            f"{len(draws)} draws and {len(levels)} levels do not fit {len(values)} elements"
        )
    if len(edges) >= 2**bits:
        raise ValueError(f"{len(edges)} edges do not fit in {bits} bits")
    if len(edges) >= MANY_EDGES:
        edges = np.pad(edges, (0, 255 - len(edges)), constant_values=np.inf)
    length = (len(values) * bits + 7) // 8
    if not length:
        return b""
    # Bytes that are written in place: to copy megabytes of them takes about as long as to find them.
    file = io.BytesIO()
    file.seek(length - 1)
    file.write(b"\0")
    with file.getbuffer() as view:
        packed = np.frombuffer(view, np.uint8)
        _kernel("quantize")(
            values, scales, size, edges, bits, form, draws, int(len(draws) > 1), levels, packed
        )
    return file.getvalue()


def expand(
    code: bytes,
    bits: int,
    levels: Floats,
    scales: Floats,
    size: int,
    weight: float,
    out: Floats,
    add: bool,
) -> None:
    """Write the level of each code, times its scale, times `weight`, into `out`, or add it."""
    _require_scales(len(out), scales, size)
    if len(code) != (len(out) * bits + 7) // 8:
        raise ValueError(f"{len(code)} bytes are not {len(out)} codes of {bits} bits")
    # What each byte stands for; codes without a level have the last one's.
    table = levels.take(_codes_of_bytes(bits), mode="clip")
    pairs = table.reshape(-1).view(np.uint64)
    _kernel("expand")(
        np.frombuffer(code, np.uint8), bits, pairs, scales, size, np.float32(weight), out, add
    )


def survey(values: Floats, size: int) -> Measured:
    """Of every `size` elements max|x|, the sum of x - x[0] and that of its square; see `groups.moments`."""
    out = np.empty((math.ceil(len(values) / size), 3))
    _kernel("survey")(values, size, out)
    return out


def _require_scales(numel: int, scales: Floats, size: int) -> None:
    # The compiled loops trust their arguments: a wrong number here would be a read outside the array there.
    if numel and (size < 1 or len(scales) != math.ceil(numel / size)):
        raise ValueError(f"{len(scales)} scales do not fit {numel} elements in groups of {size}")


def _quantize(values: Any, scales: Any, size: Any, edges: Any, bits: Any, form: Any, draws: Any, each: Any,
              levels: Any, out: Any) -> None:  # fmt: skip
    ratios = np.empty(PIECE, np.float32)
    codes = np.empty(PIECE, np.uint8)
    for start in range(0, len(values), PIECE):
        stop = min(start + PIECE, len(values))
        at = start
        while at < stop:
            group = at // size
            end = min((group + 1) * size, stop)
            # Below every edge: where the scale is 0, so is the code.
            scale = scales[group]
            x, ratio = values[at:end], ratios[at - start : end - start]
            if scale == 0:
                ratio[:] = -np.inf
            else:
                for j in range(len(x)):
                    ratio[j] = x[j] / scale
            at = end
        ratios[stop - start :] = -np.inf
        codes[:] = 0
        stride = 1 if len(edges) < MANY_EDGES else 16
        for k in range(stride - 1, len(edges), stride):
            for j in range(PIECE):
                codes[j] += np.uint8(ratios[j] > edges[k])
        if stride > 1:
            for j in range(PIECE):  # the other fifteen between two of those, by halving
                found = np.uint64(codes[j]) * np.uint64(16)
                for step in (8, 4, 2, 1):
                    found += (
                        np.uint64(step)
                        if ratios[j] > edges[found + np.uint64(step - 1)]
                        else np.uint64(0)
                    )
                codes[j] = found
        if form == UNIFORM:
            top = np.float32(2**bits - 1)
            for j in range(stop - start):
                f = (ratios[j] + np.float32(1)) * (top / np.float32(2))
                k = np.floor(f)
                if draws[(start + j) * each] < f - k:
                    k += np.float32(1)
                codes[j] = np.uint8(min(max(k, np.float32(0)), top))
        elif form == MAGNITUDE:
            most = np.float32(2 ** (bits - 1) - 1)
            for j in range(stop - start):
                f = abs(ratios[j]) * most
                k = np.floor(f)
                if draws[(start + j) * each] < f - k:
                    k += np.float32(1)
                k = min(k, most)
                codes[j] = np.uint8(most - k if ratios[j] < 0 else most + k)
        elif form == BETWEEN:
            for j in range(stop - start):
                below = levels[codes[j]]
                share = (ratios[j] - below) / (levels[np.uint64(codes[j]) + np.uint64(1)] - below)
                if draws[(start + j) * each] < share:
                    codes[j] += np.uint8(1)
        packed = out[start * bits // 8 : (stop * bits + 7) // 8]
        if bits == 8:
            packed[:] = codes[: len(packed)]
        elif bits == 4:
            for j in range(len(packed)):
                packed[j] = codes[2 * j] | codes[2 * j + 1] << 4
        elif bits == 2:
            for j in range(len(packed)):
                packed[j] = (
                    codes[4 * j]
                    | codes[4 * j + 1] << 2
                    | codes[4 * j + 2] << 4
                    | codes[4 * j + 3] << 6
                )
        else:
            for j in range(len(packed)):
                low = (
                    codes[8 * j]
                    | codes[8 * j + 1] << 1
                    | codes[8 * j + 2] << 2
                    | codes[8 * j + 3] << 3
                )
                high = (
                    codes[8 * j + 4]
                    | codes[8 * j + 5] << 1
                    | codes[8 * j + 6] << 2
                    | codes[8 * j + 7] << 3
                )
                packed[j] = low | high << 4


def _expand(
    code: Any, bits: Any, pairs: Any, scales: Any, size: Any, weight: Any, out: Any, add: Any
) -> None:
    # Two float32 at a time, moved as one integer: the compiler joins no neighbouring scalars by itself.
    found = np.empty(PIECE // 2, np.uint64)
    chosen, single = found.view(np.float32), pairs.view(np.float32)
    for start in range(0, len(out), PIECE):
        stop = min(start + PIECE, len(out))
        piece = code[start * bits // 8 : (stop * bits + 7) // 8]
        if bits == 8:
            for j in range(len(piece)):
                chosen[j] = single[piece[j]]
        elif bits == 4:
            for j in range(len(piece)):
                found[j] = pairs[piece[j]]
        elif bits == 2:
            for j in range(len(piece)):
                k = np.uint64(piece[j]) * np.uint64(2)
                a, b = pairs[k], pairs[k + np.uint64(1)]
                found[2 * j], found[2 * j + 1] = a, b
        else:
            for j in range(len(piece)):
                k = np.uint64(piece[j]) * np.uint64(4)
                a, b, c, d = (
                    pairs[k],
                    pairs[k + np.uint64(1)],
                    pairs[k + np.uint64(2)],
                    pairs[k + np.uint64(3)],
                )
                found[4 * j], found[4 * j + 1], found[4 * j + 2], found[4 * j + 3] = a, b, c, d
        at = start
        while at < stop:
            group = at // size
            end = min((group + 1) * size, stop)
            scale = scales[group]
            level, y = chosen[at - start : end - start], out[at:end]
            if add:
                for j in range(len(y)):
                    y[j] += level[j] * scale * weight
            else:
                for j in range(len(y)):
                    y[j] = level[j] * scale * weight
            at = end


def _survey(values: Any, size: Any, out: Any) -> None:
    lanes = 1
    while lanes < min(size, LANES):
        lanes *= 2
    top, sums, squares = np.empty(lanes, np.float32), np.empty(lanes), np.empty(lanes)
    for group in range(len(out)):
        start, stop = group * size, min((group + 1) * size, len(values))
        first = np.float64(values[start])
        top[:], sums[:], squares[:] = 0, 0, 0
        for at in range(start, stop, lanes):
            x = values[at : min(at + lanes, stop)]
            for j in range(len(x)):
                d = np.float64(x[j]) - first
                sums[j] += d
                squares[j] += d * d
                top[j] = abs(x[j]) if abs(x[j]) > top[j] else top[j]
        half = lanes // 2
        while half:
            for j in range(half):
                sums[j] += sums[half + j]
                squares[j] += squares[half + j]
                top[j] = max(top[j], top[half + j])
            half //= 2
        # A comparison passes over NaN; the sum does not.
        out[group, 0] = top[0] if squares[0] == squares[0] else np.nan
        out[group, 1], out[group, 2] = sums[0], squares[0]


_seen = 0  # elements of vectors that were not worth loading for
_loaded: dict[str, Callable[..., None]] = {}
# The loop, and the types it is compiled for: "r" are arrays that it only reads.
_SOURCES: dict[str, tuple[Callable[..., None], tuple[str, ...]]] = {
    "quantize": (
        _quantize,
        (
            "r float32",
            "r float32",
            "int64",
            "r float32",
            "int64",
            "int64",
            "r float32",
            "int64",
            "r float32",
            "w uint8",
        ),
    ),
    "expand": (
        _expand,
        ("r uint8", "int64", "r uint64", "r float32", "int64", "float32", "w float32", "boolean"),
    ),
    "survey": (_survey, ("r float32", "int64", "w2 float64")),
}


def _kernel(name: str) -> Callable[..., None]:
    """The compiled loop."""
    if name not in _loaded:
        _loaded[name] = _compiled(*_SOURCES[name])
    return _loaded[name]


def _compiled(source: Callable[..., None], types: tuple[str, ...]) -> Callable[..., None]:
    """Machine code, from numba's cache if it is there."""
    numba = _numba()
    arguments = []
    for each in types:
        access, _, item = each.rpartition(" ")
        kind = getattr(numba.types, item)
        if access:
            kind = numba.types.Array(kind, 2 if access == "w2" else 1, "C", readonly=access == "r")
        arguments.append(kind)
    signature = numba.types.void(*arguments)
    # numpy's errors: a test before every division would keep the loop from using wide instructions.
    options = {"nogil": True, "error_model": "numpy"}
    try:
        compiled = numba.njit(signature, cache=True, **options)(source)
    except Exception:  # no folder to keep it in, or a damaged file there
        compiled = numba.njit(signature, **options)(source)
    return compiled  # type: ignore[no-any-return]


@functools.cache
def _numba() -> Any:
    """The module, or None where it is missing or told not to compile."""
    try:
        numba = importlib.import_module("numba")
    except ImportError:
        return None
    return None if numba.config.DISABLE_JIT else numba


@functools.cache
def _codes_of_bytes(bits: int) -> Bytes:
    """The codes in each of the 256 bytes, first to last."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return (np.arange(256, dtype=np.uint8)[:, None] >> shifts) & np.uint8(2**bits - 1)
