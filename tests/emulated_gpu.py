"""A GPU for machines without one: tensors that say they are elsewhere; their numbers stay here.

Like a real one it refuses operations that mix devices and arrays that look into its memory, and it
divides by a number with a reciprocal, as CUDA does.
"""

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

NAME = "meta"  # the one device that torch always knows
MAY_MIX = ("_to_copy", "copy_")


class Away(Tensor):
    """Elsewhere, as far as anyone can tell; `here` has the numbers."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor) -> "Away":
        away = Tensor._make_wrapper_subclass(
            cls, here.shape, here.stride(), dtype=here.dtype, device=NAME
        )
        away.here = here
        return away

    __torch_dispatch__ = classmethod(
        lambda cls, func, types, args=(), kwargs=None: run(func, args, kwargs or {})
    )


def run(func: Any, args: Any, kwargs: Any) -> Any:
    """The operation on the numbers.

    Its results are where its tensors were, or where it is told to put them.
    """
    tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
    away = [x for x in tensors if isinstance(x, Away)]
    name = func.overloadpacket.__name__
    # A number is a tensor without dimensions here, and fine.
    if away and name not in MAY_MIX and any(x.dim() and not isinstance(x, Away) for x in tensors):
        raise RuntimeError(f"{name} of tensors on two devices")
    args, kwargs = tree_map(lambda x: x.here if isinstance(x, Away) else x, (args, kwargs))
    if name == "div" and away and len(away) < 2:
        func = torch.ops.aten.mul.Tensor
        args = (args[0], 1 / torch.as_tensor(args[1]).to(args[0].dtype))
    there = bool(away)
    if kwargs.get("device") is not None:
        there = torch.device(kwargs["device"]).type == NAME
        kwargs = {**kwargs, "device": "cpu"}
    same = {id(x.here): x for x in away}  # in place: the very tensor
    wrap = lambda x: same.get(id(x), Away(x)) if there and isinstance(x, Tensor) else x
    return tree_map(wrap, func(*args, **kwargs))


class Gpu(TorchDispatchMode):
    """While it is entered, `move` puts tensors there; `taken` counts the bytes that came back."""

    taken = 0

    def move(self, x: Tensor) -> Tensor:
        return x.to(NAME)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = run(func, args, kwargs or {})
        if any(isinstance(x, Away) for x in tree_flatten(args)[0]):
            plain = [x for x in tree_flatten(found)[0] if not isinstance(x, Away)]
            self.taken += sum(x.nbytes if isinstance(x, Tensor) else 8 for x in plain)
        return found


class Cuda(contextlib.AbstractContextManager["Cuda"]):
    """The same face for a real one."""

    def move(self, x: Tensor) -> Tensor:
        return x.cuda()

    def __exit__(self, *error: object) -> None:
        return None


DEVICES = (Gpu, Cuda) if torch.cuda.is_available() else (Gpu,)
every_gpu = pytest.mark.parametrize("device", DEVICES)
