"""Keyed noise: every random number is a function of its name, never of a position, a batch or a device.

A key is any sequence of strings and integers, e.g. (seed, query id, round, stratum). Its 128-bit hash keys a
counter-based Philox generator (numpy's), so the noise of one item can be drawn anywhere, in any order, and the
same bits come out.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Sequence

import numpy as np

Key = Sequence[str | int]


def key_bytes(key: Key) -> bytes:
    """16 bytes; parts are typed and length-prefixed so that ("a", "b") and ("ab",) or (1,) and ("1",) differ."""
    h = hashlib.blake2b(digest_size=16)
    for part in key:
        # by value: numpy's integers and strings name the same stream as Python's
        text = (f"str:{part}" if isinstance(part, str) else f"int:{operator.index(part)}").encode()
        h.update(len(text).to_bytes(4, "little"))
        h.update(text)
    return h.digest()


class KeyedNoise:
    """A generator that can be set to any key. Re-keying one Philox is three times faster than making another."""

    def __init__(self) -> None:
        self._bits = np.random.Philox(key=0)
        self._state = self._bits.state
        self._generator = np.random.Generator(self._bits)

    def at(self, *key: str | int) -> np.random.Generator:
        """The generator at the start of `key`'s stream; valid until the next call."""
        self._state["state"]["key"] = np.frombuffer(key_bytes(key), dtype="<u8")
        self._state["state"]["counter"] = np.zeros(4, np.uint64)
        self._state["buffer_pos"] = 4  # buffer empty: the next number comes from counter 1
        self._state["has_uint32"] = 0
        self._bits.state = self._state
        return self._generator


def generator(*key: str | int) -> np.random.Generator:
    """A fresh generator for one key, to keep."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key_bytes(key), "little")))


def torch_seed(*key: str | int) -> int:
    """A seed for a torch.Generator, from a key."""
    return int.from_bytes(key_bytes(key)[:7], "little")
