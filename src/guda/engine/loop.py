"""The scheduling loop: hands tasks to a pool (worker processes, Ray) as their inputs appear and as it has room.

A pool holds a bounded number of tasks at a time, so a hundred thousand tasks cost the driver a list. What a task
computes does not depend on the pool.

`run_inline` needs no pool: it runs tasks in this process, one after the other, for a server that keeps its model loaded
between pictures. Results are bitwise reproducible per thread count. Workers of the other engines have one thread each,
and so has this process once it has run a task here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Protocol

from guda.errors import GudaError
from guda.run.run import Run
from guda.run.task import Task, execute, fraction, pending

POLL = 0.25  # seconds between looks at the heartbeats

# (tasks done, tasks in all, fraction of the estimated cost, names of the running tasks)
Watcher = Callable[[int, int, float, list[str]], None]


class Pool(Protocol):
    @property
    def n(self) -> int:
        """How many tasks it takes at a time; may change while it works."""
        ...

    def submit(self, root: str, task: Task) -> Future[float]: ...

    def collect(self, run: Run, task: Task, future: Future[float]) -> None:
        """For a future that is done: return once the task's files are visible here, or raise what went wrong."""
        ...

    def close(self) -> None:
        """Abandon the tasks that are still running (Ctrl-C, or another task failed)."""
        ...


_swept: set[Path] = set()  # runs that this process has looked for left-overs in


def run_in(pool: Pool, run: Run, tasks: list[Task], watch: Watcher | None = None) -> int:
    """Run what is not done yet; returns how many tasks that were. The first failure stops the rest."""
    left = pending(run, tasks)
    if left or run.root not in _swept:  # the driver writes too: it may have been killed after its last task
        _swept.add(run.root)
        run.sweep()
    if not left:
        return 0
    run.publish()  # of a run in a bucket: workers elsewhere must see its recipe before a task begins
    progress = Progress(left, watch)
    present: set[str] = set()  # files known to exist: asking a shared disk is slow, and it shows new files late
    running: dict[Future[float], Task] = {}
    for task in left:
        run.path(task.heartbeat).unlink(missing_ok=True)  # of a killed process
    try:
        while left or running:
            chosen, left = _choose(run, left, pool.n - len(running), present)
            for task in chosen:
                if task.done(run):  # by another driver, since this one began
                    progress.finish(task)
                else:
                    running[pool.submit(run.address, task)] = task
            if not running and not chosen:
                missing = next((p for p in left[0].needs if not run.has(p)), None)
                if missing is None:
                    continue  # another driver has made it since
                raise GudaError(
                    "task-input-missing",
                    f"{left[0].name} needs {missing}, which nothing makes; run the earlier steps first",
                )
            finished, _ = wait(running, timeout=POLL, return_when=FIRST_COMPLETED) if running else ((), ())
            for future in finished:
                task = running[future]
                pool.collect(run, task, future)
                del running[future]
                present.update(task.makes)
                progress.finish(task)
            progress.show(run, list(running.values()))
    except BaseException:
        pool.close()  # of several tasks others may still run
        raise
    finally:
        for task in running.values():
            run.path(task.heartbeat).unlink(missing_ok=True)
    return progress.total


def _choose(run: Run, left: list[Task], room: int, present: set[str]) -> tuple[list[Task], list[Task]]:
    """The first tasks that can begin, as many as there is room for; and the others, in order."""
    chosen: list[Task] = []
    waiting: list[Task] = []
    for i, task in enumerate(left):
        if len(chosen) >= room:
            return chosen, waiting + left[i:]
        (chosen if _ready(run, task, present) else waiting).append(task)
    return chosen, waiting


def _ready(run: Run, task: Task, present: set[str]) -> bool:
    for path in task.needs:
        if path not in present:
            if not run.has(path):
                return False
            present.add(path)
    return True


class Progress:
    """Reports to a watcher how far a list of tasks is."""

    def __init__(self, tasks: list[Task], watch: Watcher | None) -> None:
        self.total, self.done, self._watch = len(tasks), 0, watch
        self._all, self._cost = sum(t.weight for t in tasks) or 1.0, 0.0
        self._shown, self._looked = 0.0, float("-inf")

    def finish(self, task: Task) -> None:
        self.done, self._cost = self.done + 1, self._cost + task.weight

    def show(self, run: Run, running: list[Task]) -> None:
        now, over = time.monotonic(), self.done == self.total
        if self._watch is None or (now - self._looked < POLL and not over):
            return  # not at every one of a thousand short tasks: each look reads the heartbeats of all that run
        self._looked = now
        partial = sum(t.weight * fraction(run.path(t.heartbeat)) for t in running)
        # never backwards: a task removes its heartbeat a moment before it counts as done
        self._shown = 1.0 if over else max(self._shown, min(1.0, (self._cost + partial) / self._all))
        self._watch(self.done, self.total, self._shown, [t.name for t in running])


_ALONE = threading.Lock()  # tasks report progress through one place per process


def run_inline(run: Run, tasks: list[Task], title: str = "") -> int:
    """Run what is not done yet; returns how many tasks that were."""
    import torch

    with _ALONE:
        torch.set_num_threads(1)
        left = pending(run, tasks)
        for task in left:
            if missing := next((path for path in task.needs if not run.has(path)), None):
                raise GudaError(
                    "task-input-missing",
                    f"{task.name} needs {missing}, which is not there; run the earlier steps first",
                )
            execute(run.address, task)
        return len(left)
