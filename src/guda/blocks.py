"""Blocks of one fixed size, the last one padded: how networks are run wherever results must be reproducible.

Kernels are chosen by shape and round differently at other batch sizes. In blocks of one size the result for an input
depends on that input alone, not on how many others it came with, on their order, or on how work was split:

    for block in blocks(len(x), 64):
        results.append(network(block.take(x))[: block.n])
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Block:
    """Inputs start..stop - 1, and as many repeats of the last as it takes to be `size`."""

    start: int
    stop: int
    size: int

    @property
    def n(self) -> int:
        """How many of the results are wanted."""
        return self.stop - self.start

    @property
    def index(self) -> list[int]:
        return [*range(self.start, self.stop), *[self.stop - 1] * (self.size - self.n)]

    def take(self, x: Any) -> Any:
        """`size` rows of a tensor or an array (a view where nothing is padded), or items of a sequence (a list)."""
        if isinstance(x, list | tuple | range):
            return [x[i] for i in self.index]
        return x[self.start : self.stop] if self.n == self.size else x[self.index]


def blocks(n: int, size: int) -> Iterator[Block]:
    for start in range(0, n, size):
        yield Block(start, min(start + size, n), size)
