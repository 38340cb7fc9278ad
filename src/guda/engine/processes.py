"""Runs tasks in worker processes on this machine, one thread each.

Only schedules: what a task computes does not depend on how many workers there are. Workers are spawned (a forked torch
deadlocks) and watch their parent, so kill -9 on the driver leaves no orphan behind.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait as wait_sentinel

from guda.diffusion import distributed
from guda.engine.loop import Watcher, run_in
from guda.engine.torchrun import run_launched
from guda.errors import GudaError
from guda.run.run import Run
from guda.run.task import Task, execute


def _start_worker() -> None:
    import torch

    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()

    def leave_with_parent() -> None:
        assert parent is not None
        wait_sentinel([parent.sentinel])
        os._exit(1)

    threading.Thread(target=leave_with_parent, daemon=True).start()


def default_workers() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _one_thread() -> Iterator[None]:
    """Threads of BLAS inside the workers: read from the environment when a worker is spawned, which `submit` does."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    before = {k: os.environ.get(k) for k in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _clear_error() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool:
        raise GudaError(
            "worker-died",
            "a worker process died (killed, or out of memory; a script of your own must do its work under "
            "`if __name__ == '__main__':`); nothing finished is lost: run the same command again",
        ) from None


class Workers:
    """Worker processes that stay between calls, because a worker needs seconds to import torch and a race has many
    rounds. They end with this object, with the process, or when a task fails."""

    def __init__(self, n: int | None = None) -> None:
        self.n = n or default_workers()
        self._pool: ProcessPoolExecutor | None = None

    def submit(self, root: str, task: Task) -> Future[float]:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(self.n, multiprocessing.get_context("spawn"), initializer=_start_worker)
            self._finalizer = weakref.finalize(self, _terminate, self._pool)
        with _one_thread(), _clear_error():
            return self._pool.submit(execute, root, task)

    def collect(self, run: Run, task: Task, future: Future[float]) -> None:
        with _clear_error():
            future.result()

    def close(self) -> None:
        """Ends the workers; a pool that is broken would stay broken."""
        if self._pool is not None:
            self._pool = None
            self._finalizer()


def _terminate(pool: ProcessPoolExecutor) -> None:
    for process in list((pool._processes or {}).values()):
        process.terminate()
    pool.shutdown(wait=True, cancel_futures=True)


def run_tasks(run: Run, tasks: list[Task], workers: int | Workers | None = None, watch: Watcher | None = None) -> int:
    """Run what is not done yet; returns how many tasks that were. The first failure stops the rest."""
    if distributed.world_size() > 1:
        return run_launched(run, tasks, watch)
    pool = workers if isinstance(workers, Workers) else Workers(workers)
    try:
        return run_in(pool, run, tasks, watch)
    finally:
        if pool is not workers:
            pool.close()
