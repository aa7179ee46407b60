"""BokehJS in parts that a browser takes one at a time, so that the page never stands still.

Whole, it is one task of a quarter of a second on a slow machine. It is a list of modules and a
loader: the list is filled in steps, then modules are run in steps, those that others need first,
which is the order in which they come to their end in the whole as well.
"""

import re
from collections.abc import Iterable
from itertools import groupby
from typing import Any

PART_CHARACTERS = 200_000
BEFORE, AFTER = "\n([\n", "\n], 0, {"  # around the list of modules
BETWEEN = re.compile(r",\n(?=function _\()")
NAME = re.compile(r"function _\(([\w$]+)")  # by which a module asks for others
LIST = "libraryModules"


def library_parts(library: Any) -> list[str]:
    """Scripts to run one after the other; widgets and the like are left out."""
    resources = library.resources.Resources(mode="inline", components=["bokeh"])
    return split(*resources.js_raw)


def split(bundle: str, *rest: str) -> list[str]:
    """A bundle and what follows it in parts; one that is not as we know them stays whole."""
    loader, begins, after = bundle.partition(BEFORE)
    listed, ends, settings = after.partition(AFTER)
    modules = BETWEEN.split(listed)
    order = _order(modules) if begins and ends else None
    if order is None:
        return ["\n".join((bundle, *rest))]
    fill = [
        f"(self.{LIST} ??= []).push(\n" + ",\n".join(modules[number] for number in group) + "\n);"
        for group in _groups(range(len(modules)), modules)
    ]
    # The loader runs a module and calls it Bokeh. That is an empty one at first; the real one
    # joins it as plugins do, once all that it needs is there.
    entry = f"{LIST}.push(() => {{}});\n{loader}\n({LIST}, {len(modules)}, {{{settings}"
    run = [
        f"{group}.forEach((number) => Bokeh.require(number));" for group in _groups(order, modules)
    ]
    last = "\n".join(("Bokeh.register_plugin({}, 0);", *rest))
    return [f'"use strict";\n{part}' for part in (*fill, entry, *run, last)]


def _order(modules: list[str]) -> list[int] | None:
    """The modules that the first one needs, each after its own; None if two need each other."""
    order: dict[int, bool] = {}  # whether it has come to its end

    def visit(number: int) -> bool:
        if number in order:
            return order[number]
        order[number] = False
        whole = all(visit(needed) for needed in _needs(modules[number], len(modules)))
        del order[number]  # to its place behind all that it needs
        order[number] = whole
        return whole

    return list(order) if visit(0) else None


def _needs(module: str, count: int) -> list[int]:
    name = NAME.match(module)
    if name is None:
        return []
    calls = re.findall(rf"(?<![\w$.]){re.escape(name[1])}\((\d+)\)", module)
    return [number for number in map(int, calls) if number < count]


def _groups(numbers: Iterable[int], modules: list[str]) -> list[list[int]]:
    """Neighbours together, up to a number of characters of their modules."""
    before = 0
    parts = {}
    for number in numbers:
        parts[number] = before // PART_CHARACTERS
        before += len(modules[number])
    return [list(group) for _, group in groupby(parts, parts.__getitem__)]
