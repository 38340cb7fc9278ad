"""Runs tasks under `accelerate launch` or torchrun: no workers, every process runs all tasks one after the other.

Rank 0 chooses the next task and broadcasts it. A training (`task.trains`) is run by all processes together, any other
task by rank 0 while the rest wait. Only rank 0 writes: artifacts, heartbeats and times have one author.

A failure ends all processes. An error that all of them meet is printed once, by rank 0; one that a single process meets
is printed by that process, which exits at once: the others lose the connection, or the launcher ends them, instead of
waiting forever.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from guda.diffusion import distributed
from guda.engine.loop import POLL, Progress, Watcher
from guda.errors import GudaError, OneProcess
from guda.run.run import Run
from guda.run.task import Task, execute, pending


def run_launched(run: Run, tasks: list[Task], watch: Watcher | None = None) -> int:
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


def _run_all(team: distributed.Team, run: Run, tasks: list[Task], watch: Watcher | None) -> int:
    left = team.broadcast(pending(run, tasks) if team.is_main else None)
    progress = Progress(left, watch if team.is_main else None)
    if left and team.is_main:
        run.sweep()
    while left:
        task, missing = team.broadcast(_next(run, left) if team.is_main else None)
        if missing is not None:
            raise GudaError(
                "task-input-missing", f"{task.name} needs {missing}, which nothing makes; run the earlier steps first"
            )
        left.remove(task)
        with _shown(run, task, progress):
            _run(team, run.address, task)
        progress.finish(task)
        progress.show(run, [])
    return progress.total


def _next(run: Run, left: list[Task]) -> tuple[Task, str | None]:
    """The first task whose needs are there; otherwise the first, with what it lacks."""
    for task in left:
        if task.ready(run):
            return task, None
    return left[0], next((p for p in left[0].needs if not run.has(p)), None)


def _run(team: distributed.Team, root: str, task: Task) -> None:
    """Either all processes return, or all exit."""
    if task.trains:
        try:
            execute(root, task, alone=team.is_main)
        except GudaError as e:
            if team.all_failed():
                raise
            raise OneProcess(e.code, f"process {team.rank} of {team.world}: {e}") from None
        team.broadcast(None)  # rank 0 publishes before anyone continues
        return
    failure: BaseException | None = None
    if team.is_main:
        try:
            execute(root, task)
        except BaseException as e:
            failure = e
    error = team.broadcast(None if failure is None else (_code(failure), f"{type(failure).__name__}: {failure}"))
    if failure is not None:
        raise failure
    if error is not None:
        code, message = error
        raise GudaError(code, message)


def _code(failure: BaseException) -> str:
    return failure.code if isinstance(failure, GudaError) else "process-lost"


def _lost(error: RuntimeError) -> bool:
    """Whether a collective failed because a peer went away (gloo and NCCL have no type of their own for it)."""
    text = str(error).lower()
    signs = ("closed by peer", "reset by peer", "broken pipe", "timed out", "timeout", "nccl", "socketpoll")
    return any(sign in text for sign in signs) and "out of memory" not in text


@contextmanager
def _shown(run: Run, task: Task, progress: Progress) -> Iterator[None]:
    """Show how far a task is while it runs in this thread."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(POLL):
            progress.show(run, [task])

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
