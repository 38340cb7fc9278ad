"""Tasks of the Ray engine's tests; workers import this file by name."""

import json
import os
import signal
import time

from guda.run import task as progress
from guda.run.run import Run


def where(run: Run, name: str, seconds: float = 0.3) -> None:
    """Says on which node and with how many threads it ran; takes so long that no node can run them all."""
    import ray
    import torch
    from threadpoolctl import threadpool_info

    time.sleep(seconds)
    blas = {pool["num_threads"] for pool in threadpool_info()}
    value = {"node": ray.get_runtime_context().get_node_id(), "torch": torch.get_num_threads(), "blas": sorted(blas)}
    run.path("out").mkdir(exist_ok=True)
    run.path("out", name).write_text(json.dumps(value | {"pid": os.getpid()}))


def die_first(run: Run, name: str, after: bool) -> None:
    """The first attempt is killed: in the middle of the work, or just after its file was published."""
    run.path("out").mkdir(exist_ok=True)
    with open(run.path("out", f"{name}.attempts"), "a") as log:
        print(os.getpid(), file=log)
    first = len(run.path("out", f"{name}.attempts").read_text().split()) == 1
    progress.INTERVAL = 0.0
    progress.tick(1, 2)
    if first and not after:
        os.kill(os.getpid(), signal.SIGKILL)
    run.path("out", name).write_text(name)
    if first:
        os.kill(os.getpid(), signal.SIGKILL)


def nothing(run: Run, name: str) -> None:
    """The least that a task can do."""
    run.path("out").mkdir(exist_ok=True)
    run.path("out", name).write_text("")
