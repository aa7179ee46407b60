"""Packages whose names are imported when somebody asks for them (PEP 562)."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, homes: Mapping[str, str], parts: str = "") -> Callable[[str], Any]:
    """The `__getattr__` of a package: `homes` lists the names that each module has.

    `parts` are modules of the package itself.

    `__getattr__ = lazily("fedwsq", {"fedwsq.codecs": "Codec Danuq"}, parts="codecs plan")`
    """
    home_of: dict[str, str] = {}
    for module, names in homes.items():
        home_of |= dict.fromkeys(names.split(), module)
    modules = parts.split()

    def find(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home_of[name]), name)
        # Kept, so that it is looked for only once.
        setattr(sys.modules[package], name, value)
        return value

    return find
