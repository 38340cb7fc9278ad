"""Tasks of the Ray engine's tests; workers import this file by name."""

import json
import os
import signal

from guda.run import task as progress
from guda.run.run import Run
from waiting import wait_for


def where(run: Run, name: str, nodes: int = 1) -> None:
    """Says on which node and with how many threads it ran; waits until tasks have begun on so many nodes."""
    import ray
    import torch
    from threadpoolctl import threadpool_info

    blas, node = {pool["num_threads"] for pool in threadpool_info()}, ray.get_runtime_context().get_node_id()
    begun = run.path("out", "nodes")
    begun.mkdir(parents=True, exist_ok=True)
    (begun / node).touch()
    wait_for(lambda: len(list(begun.iterdir())) >= nodes, f"a task on {nodes} nodes")
    value = {"node": node, "torch": torch.get_num_threads(), "blas": sorted(blas)}
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
