"""Which tasks were finished before a kill, and which of those ran again: for tools/kill.py and tools/kill_server.py.

A task is finished when all files that it makes are there (guda.run.task.Task.done). One that was killed between two of
its files starts again and writes the first of them again; that is no finished task redone. Files alone do not show
the difference, so the undisturbed run notes its tasks with `noting`, and a process of its own does it as

    python tools/task_log.py LOG serve RUN ...        # `guda serve RUN ...`, with its tasks noted in LOG
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Stamp = tuple[int, int]  # modification time and inode: a file that is written again has others


@contextmanager
def noting(log: Path) -> Iterator[None]:
    """Append every task that is run in this process, by the inline engine or by a pool, to `log`."""
    from guda.engine import loop
    from guda.files import digest

    pending = loop.pending

    def noted(run: Any, tasks: list[Any]) -> list[Any]:
        left = pending(run, tasks)
        with open(log, "a") as f:
            for task in left:
                timing = f"timings/{task.stage}/{task.name.replace('/', '_')[:60]}-{digest(task.name, 8)}.json"
                f.write(json.dumps({"name": task.name, "makes": task.makes, "timing": timing}) + "\n")
        return left

    loop.pending = noted
    try:
        yield
    finally:
        loop.pending = pending


@dataclass
class Again:
    """What was written again after a kill."""

    tasks: list[str] = field(default_factory=list)  # finished before it
    unfinished: list[str] = field(default_factory=list)  # files of tasks that were not
    others: list[str] = field(default_factory=list)  # files that no task makes


def written_again(log: Path, before: dict[str, Stamp], now: dict[str, Stamp]) -> Again:
    """`before`: the files that were there after the kill; `now`: those after the command had run again."""
    again = {name for name, stamp in before.items() if now.get(name) != stamp}
    made: set[str] = set()
    finished: set[str] = set()  # files of the tasks that were finished
    redone: set[str] = set()
    for line in log.read_text().splitlines():
        task = json.loads(line)
        files = {*task["makes"], task["timing"]}
        made |= files
        if before.keys() >= set(task["makes"]):
            finished |= files
            redone |= {task["name"]} if again & files else set()
    return Again(sorted(redone), sorted((again & made) - finished), sorted(again - made))


def main() -> None:
    from guda.cli.main import main as guda

    log = Path(sys.argv[1])
    sys.argv = ["guda", *sys.argv[2:]]
    with noting(log):
        guda()


if __name__ == "__main__":
    main()
