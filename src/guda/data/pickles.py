"""Old pickles of plain arrays, read as data: no unpickler runs, nothing that such a file names is imported or called.

A pickle is a program for a small stack machine, and the reason not to read one is that it may import and call what it
likes. CIFAR-10's python batches use a few instructions of it: constants, lists, dicts, and one numpy array. These are
followed here, on the listing that the standard library's disassembler gives (pickletools.genops, which executes
nothing); "import" leaves a name, "call" leaves the pair (name, arguments), and every other instruction is refused.
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from guda.errors import GudaError

LARGEST = 1 << 28  # bytes of a file that we are willing to read; a batch of CIFAR-10 has 31 MB

ARRAYS = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")

BYTES = "_codecs encode"  # how Python 3 writes bytes in the old protocol

STRINGS = {"STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE"}

CONSTANTS = {"BININT", "BININT1", "BININT2", "INT", "LONG1", "LONG", "BINBYTES", "SHORT_BINBYTES"}

MARK = object()


@dataclass
class Name:
    """What an import would have given."""

    name: str


@dataclass
class Call:
    """What a call would have given, and the state that was set on it."""

    of: Any
    args: Any
    state: Any = None


@dataclass
class Machine:
    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def marked(self) -> list[Any]:
        """Everything above the last mark, taken off."""
        at = max(i for i, value in enumerate(self.stack) if value is MARK)
        found = self.stack[at + 1 :]
        del self.stack[at:]
        return found

    def take(self, n: int) -> list[Any]:
        found = self.stack[-n:]
        del self.stack[-n:]
        if len(found) != n:
            raise ValueError("the stack is empty")
        return found

    def step(self, name: str, arg: Any) -> None:
        stack = self.stack
        if name in STRINGS or name in CONSTANTS:
            stack.append(arg)
        elif name in ("NONE", "NEWTRUE", "NEWFALSE"):
            stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
        elif name == "MARK":
            stack.append(MARK)
        elif name in ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE"):
            stack.append({"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}[name]())
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            stack.append(tuple(self.take(int(name[-1]))))
        elif name == "TUPLE":
            stack.append(tuple(self.marked()))
        elif name in ("LIST", "DICT"):
            found = self.marked()
            stack.append(found if name == "LIST" else _pairs(found))
        elif name in ("APPEND", "APPENDS"):
            values = self.take(1) if name == "APPEND" else self.marked()
            _is(stack[-1], list).extend(values)
        elif name in ("SETITEM", "SETITEMS"):
            values = self.take(2) if name == "SETITEM" else self.marked()
            _is(stack[-1], dict).update(_pairs(values))
        elif name == "GLOBAL":
            stack.append(Name(arg))
        elif name == "REDUCE":
            stack.append(Call(*self.take(2)))
        elif name == "BUILD":
            [state] = self.take(1)
            _is(stack[-1], Call).state = state
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self.memo[arg] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self.memo[arg])
        elif name not in ("PROTO", "STOP"):
            raise ValueError(f"it holds the instruction {name}")


def _is(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"a {kind.__name__.lower()} was expected")
    return value


def _pairs(values: list[Any]) -> dict[str, Any]:
    return {_is(key, str): value for key, value in zip(values[::2], values[1::2], strict=True)}


def read_plain(path: Path) -> dict[str, Any]:
    """The dict a pickle holds, with text, numbers, lists and uint8 arrays as its values; anything else is refused."""
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError(f"it is larger than {LARGEST >> 20} MB")
        machine = Machine()
        for code, arg, _ in pickletools.genops(path.read_bytes()):
            machine.step(code.name, arg)
        [found] = machine.stack
        return {key: _array(value) if isinstance(value, Call) else value for key, value in _is(found, dict).items()}
    except OSError as e:
        raise GudaError("pickle-unreadable", f"cannot read {path}: {e.strerror}") from None
    except (ValueError, KeyError, IndexError, TypeError, UnicodeError) as e:
        raise GudaError(
            "pickle-invalid",
            f"{path} is no whole pickle of plain arrays ({e}); fetch it again, or the binary version of the data",
        ) from None


def _array(call: Call) -> np.ndarray:
    """uint8, from what numpy's own pickles hold: shape, type, order and bytes."""
    if not isinstance(call.of, Name) or call.of.name not in ARRAYS:
        raise ValueError(f"it calls {getattr(call.of, 'name', 'something')}")
    _, shape, dtype, fortran, content = call.state
    kind = dtype.args[0] if isinstance(dtype, Call) and dtype.of == Name("numpy dtype") else None
    if kind != "u1":
        raise ValueError(f"it holds an array of {kind!r} instead of bytes")
    if isinstance(content, Call):
        if content.of != Name(BYTES):
            raise ValueError("the bytes of an array are made by a call")
        content = content.args[0]
    raw = content.encode("latin-1") if isinstance(content, str) else _is(content, bytes)
    return np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")
