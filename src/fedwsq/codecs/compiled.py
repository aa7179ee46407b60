"""The loops of `kernels` in machine code, by numba if it is installed.

What a loop computes follows from its source; here are only the types that it is compiled for.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

loaded: dict[str, Callable[..., None]] = {}


def kernel(name: str, loop: Callable[..., None]) -> Callable[..., None]:
    """The loop of this name, compiled once in a process."""
    if name not in loaded:
        loaded[name] = _compiled(name, loop)
    return loaded[name]


def _compiled(name: str, loop: Callable[..., None]) -> Callable[..., None]:
    """Machine code, from numba's cache if it is there."""
    numba = numba_module()
    signature = _signature(name, numba.types)
    # numpy's errors: a test before every division would keep the loop from wide instructions.
    options = {"nogil": True, "error_model": "numpy"}
    compiled: Callable[..., None]
    try:
        compiled = numba.njit(signature, cache=True, **options)(loop)
    except Exception:  # no folder to keep it in, or a damaged file there
        compiled = numba.njit(signature, **options)(loop)
    return compiled


def _signature(name: str, types: Any) -> Any:
    """The types of a loop's arguments: compiled for no others, so only once."""

    def read(item: Any) -> Any:
        return types.Array(item, 1, "C", readonly=True)

    def written(item: Any, dimensions: int = 1) -> Any:
        return types.Array(item, dimensions, "C")

    integer = types.int64
    floats = read(types.float32)
    if name == "survey":
        return types.void(floats, integer, written(types.float64, 2))
    if name == "index":
        tallies = written(types.int64)
        return types.void(floats, types.float32, written(types.uint16), tallies)
    if name == "spread":
        return types.void(read(types.uint16), floats, written(types.float32), types.boolean)
    integers = read(types.int64)
    symbols = read(types.uint16)
    states = written(types.int64)
    if name == "late":
        return types.void(symbols, integer, written(types.int64), written(types.int64))
    if name == "push":
        words = written(types.uint16)
        return types.void(symbols, integers, integers, states, words, written(types.int64))
    if name == "pop":
        found = written(types.uint16)
        end = written(types.int64)
        return types.void(found, symbols, integers, integers, states, symbols, end)
    if name == "expand":
        return types.void(
            *(read(types.uint8), integer, read(types.uint64), floats, integer),
            *(types.float32, written(types.float32), types.boolean),
        )
    return types.void(
        *(floats, floats, integer, floats, integer),
        *(integer, floats, integer, floats, written(types.uint8)),
    )


@functools.cache
def numba_module() -> Any:
    """The module, or None where it is missing or told not to compile."""
    try:
        numba = importlib.import_module("numba")
    except ImportError:
        return None
    return None if numba.config.DISABLE_JIT else numba
