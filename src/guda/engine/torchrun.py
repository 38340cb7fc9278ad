"""Tasks under `accelerate launch` or torchrun: no workers, every process runs the tasks here, one after the other.

Rank 0 chooses the next task and tells the others. A task that trains a model (`task.trains`) is run by all of them together,
any other by rank 0 while the rest wait. Only rank 0 writes: products, heartbeats and times have one author.

Failure ends everybody. A mistake that all meet is told once, by rank 0; one that a single process meets is told by
that process, which leaves at once: the others lose the connection, or are ended by the launcher, instead of waiting.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from guda.diffusion import distributed
from guda.engine.loop import POLL, Watcher
from guda.errors import GudaError, OneProcess
from guda.run import progress
from guda.run.run import Run
from guda.run.task import Task, execute, pending


def run_together(run: Run, tasks: list[Task], watch: Watcher | None = None) -> int:
    """Run what is not done yet; returns how many tasks that were, the same on every process."""
    try:
        return _run_all(distributed.join(), run, tasks, watch)
    except RuntimeError as e:
        if not _lost(e):
            raise
        raise GudaError(
            "process-lost",
            "another process of this launch ended (what it said is above, if it could); "
            "nothing finished is lost: run the same command again",
        ) from None


def _run_all(crew: distributed.Team, run: Run, tasks: list[Task], watch: Watcher | None) -> int:
    left = crew.told(pending(run, tasks) if crew.is_main else None)
    total, total_cost, done_cost = len(left), sum(t.weight for t in left) or 1.0, 0.0
    if total and crew.is_main:
        run.sweep()
    for done in range(total):
        task, missing = crew.told(_next(run, left) if crew.is_main else None)
        if missing is not None:
            raise GudaError(
                "task-input-missing", f"{task.name} needs {missing}, which nothing makes; run the earlier steps first"
            )
        left.remove(task)
        with _watching(run, task, watch if crew.is_main else None, (done, total, done_cost, total_cost)):
            _run(crew, run.address, task)
        done_cost += task.weight
        if watch is not None and crew.is_main:
            watch(done + 1, total, 1.0 if done + 1 == total else done_cost / total_cost, [])
    return total


def _next(run: Run, left: list[Task]) -> tuple[Task, str | None]:
    """The first task whose needs are there; otherwise the first, with what it lacks."""
    for task in left:
        if task.ready(run):
            return task, None
    return left[0], next((p for p in left[0].needs if not run.has(p)), None)


def _run(crew: distributed.Team, root: str, task: Task) -> None:
    """All return, or all leave."""
    if task.trains:
        try:
            execute(root, task, alone=crew.is_main)
        except GudaError as e:
            if crew.all_failed():
                raise
            raise OneProcess(e.code, f"process {crew.rank} of {crew.world}: {e}") from None
        crew.told(None)  # rank 0 publishes before anybody goes on
        return
    failure: BaseException | None = None
    if crew.is_main:
        try:
            execute(root, task)
        except BaseException as e:
            failure = e
    said = crew.told(None if failure is None else (_code(failure), f"{type(failure).__name__}: {failure}"))
    if failure is not None:
        raise failure
    if said is not None:
        code, message = said
        raise GudaError(code, message)


def _code(failure: BaseException) -> str:
    return failure.code if isinstance(failure, GudaError) else "process-lost"


def _lost(error: RuntimeError) -> bool:
    """Whether a collective failed because a peer went away (gloo and NCCL have no type of their own for it)."""
    text = str(error).lower()
    signs = ("closed by peer", "reset by peer", "broken pipe", "timed out", "timeout", "nccl", "socketpoll")
    return any(sign in text for sign in signs) and "out of memory" not in text


@contextmanager
def _watching(run: Run, task: Task, watch: Watcher | None, so_far: tuple[int, int, float, float]) -> Iterator[None]:
    """Show how far a task is while it runs in this thread."""
    if watch is None:
        yield
        return
    over, (done, total, cost, total_cost) = threading.Event(), so_far

    def look() -> None:
        shown = cost / total_cost
        while not over.wait(POLL):
            part = task.weight * progress.fraction(run.path(task.heartbeat))
            shown = max(shown, min(1.0, (cost + part) / total_cost))
            watch(done, total, shown, [task.name])

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
