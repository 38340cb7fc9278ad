"""Runs tasks under `accelerate launch` or torchrun: no workers, every process runs all tasks one after the other.

Rank 0 chooses the next task and broadcasts it. A training (`task.trains`) is run by all processes together, any other
task by rank 0 while the rest wait. Only rank 0 writes: artifacts, heartbeats and times have one author.

A failure ends all processes. An error that all of them meet is printed once, by rank 0; one that a single process meets
is printed by that process, which exits at once: the others lose the connection, or the launcher ends them, instead of
waiting forever.

`execute_multi_gpu` trains one model on several GPUs of this machine, one process per GPU, for a task that was given
several. It does for one task what `accelerate launch` does for a whole command: ranks and world size go through the
environment (diffusion/distributed.py), and the processes meet through accelerate. They end with the process that
started them.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from guda.diffusion import distributed
from guda.engine.loop import POLL, Progress, Watcher
from guda.errors import GudaError, OneProcess, from_line
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


def execute_multi_gpu(root: str, task: Task, world_size: int) -> float:
    """Run one training task in `world_size` processes; returns the seconds."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    shared = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-m", "guda.engine.torchrun", root, json.dumps(asdict(task)), str(os.getpid())]
    started = time.monotonic()
    processes = [
        subprocess.Popen(
            command, env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(world_size)
    ]  # fmt: skip
    errors = [""] * world_size

    def read_errors(rank: int) -> None:
        errors[rank] = processes[rank].communicate()[1]

    readers = [threading.Thread(target=read_errors, args=(rank,), daemon=True) for rank in range(world_size)]
    for reader in readers:
        reader.start()
    try:
        while any(p.poll() is None for p in processes) and not any(p.poll() for p in processes):
            time.sleep(0.1)
    finally:
        if any(p.poll() for p in processes):
            time.sleep(distributed.FAILURE_WINDOW / 10)  # those that meet the same error exit by themselves
        for process in processes:
            process.kill()
        for reader in readers:
            reader.join()
    failed = [rank for rank, p in enumerate(processes) if p.returncode]
    if not failed:
        return time.monotonic() - started
    for error in (from_line(line) for text in errors for line in text.splitlines()):
        if error is not None:
            raise error
    raise RuntimeError(f"process {failed[0]} of {world_size} of {task.name!r} failed:\n{errors[failed[0]]}")


def main(root: str, task: str, parent: str) -> None:
    """One of the processes."""

    def leave_with_parent() -> None:
        while os.getppid() == int(parent):
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=leave_with_parent, daemon=True).start()
    value = json.loads(task)
    made = Task(**value | {"makes": tuple(value["makes"]), "needs": tuple(value["needs"])})
    try:
        run_launched(Run.open(root).with_changes(made.changes), [made])
    except GudaError as e:
        print(e.line, file=sys.stderr, flush=True)
        distributed.leave(2)


if __name__ == "__main__":
    main(*sys.argv[1:])
