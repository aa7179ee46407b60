"""Names for objects of this process: `fedwsq.runs.here:Net` in a plan is what `run` was given.

A config can only say names. An object that no other process could import by one, such as a class of
a notebook or an array, is found here for as long as its run is going.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_held: dict[str, object] = {}


@contextmanager
def holding(objects: Mapping[str, object]) -> Iterator[None]:
    before = dict(_held)
    _held.update(objects)
    try:
        yield
    finally:
        _held.clear()
        _held.update(before)


def __getattr__(name: str) -> object:
    """What a plan's name stands for; Python asks here for what the module does not define."""
    if name in _held:
        return _held[name]
    raise AttributeError(
        "it is an object of the program that began the run; go on from there, "
        "with fedwsq.run(resume=FOLDER) and the same objects"
    )
