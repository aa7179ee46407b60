"""The pickles of the published python archives, read without unpickling them.

A pickle is a program for a small stack machine. The machine here knows the instructions that a dict
of integers, strings, lists and arrays takes at protocols 2 to 4, and no others. What the program
wants called is written down and never called; no class is looked up, nothing is imported.
"""

import pickletools
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from fedwsq.core.errors import DataError

# The largest published file has 50,000 examples, and each of them takes some ten steps.
MAX_STEPS = 2_000_000
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
# How many values an instruction takes off the stack; others take all since the last mark.
TAKES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "APPEND": 1, "SETITEM": 2}
ARRAYS = ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct")
DISTRUST = "only arrays are allowed: do not trust this file"
KNOWN = ("_codecs.encode", "numpy.dtype", "numpy.ndarray", *ARRAYS)

T = TypeVar("T")


@dataclass(eq=False)
class Call:
    """What a pickle wants called, and the state that the result is to be given."""

    name: str
    arguments: object
    state: object = None


def read_pickle(content: bytes) -> object:
    """What a pickle describes, in None, bool, int, str, bytes, list, tuple, dict and `Call`.

    DataError if it wants anything else; ValueError, IndexError or KeyError if it is damaged.
    """
    machine = _Machine(len(content))
    for opcode, argument, _ in islice(pickletools.genops(content), MAX_STEPS):
        if opcode.name == "STOP":
            return machine.stack.pop()
        machine.step(opcode.name, argument)
    raise DataError(f"the pickle takes more than {MAX_STEPS:,} steps: do not trust this file")


def uint8_rows(value: object, width: int) -> bytes | None:
    """The bytes of a uint8 array [rows, width], row by row; None if the value is no such array."""
    match value:
        # As numpy describes an array: version, shape, dtype, whether column by column, bytes.
        case Call(
            name=name,
            state=(
                1,
                (int(rows), int(columns)),
                Call(name="numpy.dtype", arguments=("u1" | b"u1", *_)),
                False,
                bytes(pixels),
            ),
        ) if name in ARRAYS and columns == width and len(pixels) == rows * width:
            return pixels
    return None


class _Machine:
    """The stack and the memo of a pickle; each instruction is one step."""

    def __init__(self, length: int) -> None:
        self._may_encode = length  # characters: no text needs to be encoded twice
        self.stack: list[object] = []
        self._set_aside: list[list[object]] = []  # what was on the stack at each open mark
        self._memo: dict[object, object] = {}  # not a list: the pickle chooses the numbers

    def step(self, name: str, argument: object) -> None:
        stack = self.stack
        match name:
            case "PROTO" | "FRAME":
                pass
            case "BININT" | "BININT1" | "BININT2" | "LONG1":
                stack.append(argument)
            case "BINUNICODE" | "SHORT_BINUNICODE" | "BINBYTES" | "SHORT_BINBYTES":
                stack.append(argument)
            case "BINSTRING" | "SHORT_BINSTRING":  # bytes, which pickletools shows as text
                stack.append(str(argument).encode("latin1"))
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append(CONSTANTS[name])
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_DICT":
                stack.append({})
            case "MARK":
                self._set_aside.append(stack)
                self.stack = []
            case "EMPTY_TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3" | "TUPLE":
                items = self._take(name)
                self.stack.append(tuple(items))
            case "APPEND" | "APPENDS":
                items = self._take(name)
                self._top(list).extend(items)
            case "SETITEM" | "SETITEMS":
                items = self._take(name)
                self._update(self._top(dict), items)
            case "BINPUT" | "LONG_BINPUT":
                self._memo[argument] = stack[-1]
            case "MEMOIZE":
                self._memo[len(self._memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(self._memo[argument])
            case "GLOBAL":
                stack.append(_known(*str(argument).split(" ")))
            case "STACK_GLOBAL":
                last = stack.pop()
                stack.append(_known(stack.pop(), last))
            case "REDUCE":
                arguments = stack.pop()
                stack.append(self._call(_known(stack.pop()), arguments))
            case "BUILD":
                state = stack.pop()
                self._top(Call).state = state
            case _:
                raise DataError(f"the pickle has the instruction {name}; {DISTRUST}")

    def _take(self, name: str) -> list[object]:
        if name in TAKES:
            items = [self.stack.pop() for _ in range(TAKES[name])]
            return items[::-1]
        items = self.stack
        self.stack = self._set_aside.pop()
        return items

    def _top(self, kind: type[T]) -> T:
        top = self.stack[-1]
        if not isinstance(top, kind):
            raise ValueError("an instruction for a value of another kind")
        return top

    def _update(self, into: dict[object, object], items: list[object]) -> None:
        keys = items[::2]
        # A key of another kind can take forever to hash, or be nested too deep for it.
        if not {type(key) for key in keys} <= {str, bytes}:
            raise ValueError("keys that are no strings")
        into.update(zip(keys, items[1::2], strict=True))

    def _call(self, name: str, arguments: object) -> Call | bytes:
        """The call, written down; or bytes, if that is what protocol 2 means by it."""
        if name != "_codecs.encode":
            return Call(name, arguments)
        match arguments:
            case (str(text), "latin1"):
                self._may_encode -= len(text)
                if self._may_encode >= 0:
                    return text.encode("latin1")
        raise DataError(f"the pickle asks for a codec and not for bytes; {DISTRUST}")


def _known(*words: object) -> str:
    """The name of something that arrays and bytes need."""
    name = ".".join(word for word in words if isinstance(word, str))
    if name not in KNOWN:
        raise DataError(f"the pickle asks for {name[:80]!r}; {DISTRUST}")
    return name
