"""Past one machine: the same federation on Flower's SuperLink and SuperNodes.

The only place that imports flwr, and only in the modules that use it: `pip install
'fedwsq[flower]'`.
"""

import typing

from fedwsq.core import lazy

_HOMES = {
    "fedwsq.flower.compression": "compress",
    "fedwsq.flower.mod": "compress_mod",
}

if typing.TYPE_CHECKING:
    from fedwsq.flower.compression import compress
    from fedwsq.flower.mod import compress_mod
else:
    _find = lazy.lazily(__name__, _HOMES)

    def __getattr__(name: str) -> object:
        try:
            return _find(name)
        except ModuleNotFoundError as error:
            if not str(error.name).startswith("flwr"):
                raise
            raise ImportError(
                f"fedwsq.flower.{name} needs Flower: pip install 'fedwsq[flower]'"
            ) from None


__all__ = ["compress", "compress_mod"]
