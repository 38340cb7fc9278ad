"""Results of a run that are computed, kept and read back in shards.

    made = Sharded(run, "artifacts/features-1a2b3c4d/train-*.safetensors", image_shards(run))
    made.tasks("features of {}", stage, "package.module:function", args, evals=30)     one task per shard
    made.write(3, tensors, {"model": digest})                                            what a task does in the end
    made.concat("features", {"model": digest})                                           all shards, in order

The star in the pattern stands for the name of a shard: its number for training images; a digest of the contents for
queries, so that the same pictures under the same ids share their files whatever set they are in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from guda.data.queries import Queries
from guda.parts import STALE, FolderParts
from guda.run.data import load_data
from guda.run.run import Run
from guda.run.task import Task

SHARD = 256  # images of one task: the most that a killed task loses


@dataclass(frozen=True)
class Shard:
    number: int
    name: str  # in file names
    label: str  # for people
    start: int  # items start..stop - 1
    stop: int

    @property
    def n(self) -> int:
        return self.stop - self.start


def _ranges(n: int, size: int) -> list[tuple[int, int]]:
    return [(start, min(start + size, n)) for start in range(0, n, size)]


def image_shards(run: Run) -> list[Shard]:
    """Of the training images, in the data's order."""
    ranges = _ranges(load_data(run).n, SHARD)
    return [Shard(i, f"{i:05d}", f"training images {a}..{b - 1}", a, b) for i, (a, b) in enumerate(ranges)]


def query_shards(queries: Queries, size: int | None = None) -> list[Shard]:
    size = size or SHARD
    parts = zip(queries.shards(size), _ranges(queries.n, size), strict=True)
    return [Shard(i, part.digest[:16], f"{queries.name}/{i}", a, b) for i, (part, (a, b)) in enumerate(parts)]


def query_shard(queries: Queries, number: int, size: int | None = None) -> Queries:
    """The queries of one of these shards."""
    return queries.shards(size or SHARD)[number]


@dataclass(frozen=True)
class Sharded:
    """One result: a file per shard, named by the pattern."""

    run: Run
    pattern: str
    shards: Sequence[Shard]

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(self.pattern.replace("*", shard.name) for shard in self.shards)

    def tasks(
        self, name: str, stage: str, fn: str, args: Mapping[str, Any], needs: tuple[str, ...] = (), *,
        evals: float = 0.0, bytes: int = 0,
    ) -> list[Task]:  # fmt: skip
        """One task per shard, which gets its number as `shard`. `name` has {} for the shard's label; `evals` and
        `bytes` are of one item."""
        return [
            Task(
                name=name.format(shard.label), stage=stage, fn=fn, args={**args, "shard": shard.number}, makes=(file,),
                needs=needs, cost=float(evals * shard.n), bytes=bytes * shard.n,
            )
            for shard, file in zip(self.shards, self.files, strict=True)
        ]  # fmt: skip

    def write(self, number: int, content: Any, header: Mapping[str, Any] | None = None) -> None:
        FolderParts(self.run.root).write(self.files[number], content, header)

    def read(self, header: Mapping[str, Any] | None = None, code: str = STALE) -> list[Any]:
        """The contents of all shards; refused where one was computed from something else than `header` says."""
        parts = FolderParts(self.run.root)
        return [parts.read(file, header, code) for file in self.files]

    def concat(self, key: str, header: Mapping[str, Any] | None = None, code: str = STALE) -> np.ndarray:
        """A tensor of all items."""
        found: np.ndarray = np.concatenate([content[key].numpy() for content in self.read(header, code)])
        return found
