"""Runs tasks in this process, one after the other; for a server that keeps its model loaded between pictures.

Results are bitwise reproducible per thread count. Workers of the other engines have one thread each, and so has this
process once it has run a task here.
"""

from __future__ import annotations

import threading

from guda.errors import GudaError
from guda.run.run import Run
from guda.run.task import Task, execute, pending

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
