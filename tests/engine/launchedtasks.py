"""Tasks of launched processes, and the program that runs them: python launchedtasks.py RUN TASK..."""

import os
import signal
import sys
from pathlib import Path

import torch

from guda.diffusion import distributed
from guda.engine.processes import run_tasks
from guda.errors import GudaError
from guda.run.run import Run
from guda.run.task import Task


def exchange() -> float:
    """What a training does at every step."""
    value = torch.tensor([float(distributed.rank() + 1)])
    torch.distributed.all_reduce(value)
    return float(value)


def shared(run: Run, name: str) -> None:
    total = exchange()
    if distributed.is_main():
        run.path("out", name).write_text(str(total))


def single(run: Run, name: str) -> None:
    run.path("out", name).write_text(f"{distributed.rank()} {os.getpid()}")


def all_wrong(run: Run) -> None:
    raise GudaError("training-diverged", "lower training.lr")


def leader_wrong(run: Run) -> None:
    raise GudaError("group-too-small", "group 'x' is too small")


def one_wrong(run: Run) -> None:
    if distributed.rank() == 1:
        raise GudaError("disk-full", "disk is full")
    while True:
        exchange()


def one_killed(run: Run) -> None:
    if distributed.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        exchange()


def make(kind: str) -> Task:
    makes, needs = (f"out/{kind}",), ()
    if kind == "after":  # listed first, but it needs the others
        return Task(kind, "test", "launchedtasks:single", {"name": kind}, makes, ("out/shared", "out/single"))
    args = {"name": kind} if kind in ("shared", "single") else {}
    return Task(
        kind, "test", f"launchedtasks:{kind}", args, makes, needs, trains=kind not in ("single", "leader_wrong")
    )


if __name__ == "__main__":
    try:
        folder = Run.open(sys.argv[1])
        seen: list[tuple[int, int]] = []
        count = run_tasks(folder, [make(k) for k in sys.argv[2:]], watch=lambda d, t, f, n: seen.append((d, t)))
        again = run_tasks(folder, [make(k) for k in sys.argv[2:]])
        Path(folder.path("out", f"rank{distributed.rank()}")).write_text(f"{count} {again} {len(seen) > 0}")
    except GudaError as e:
        print(f"{type(e).__name__}: {e}", file=sys.stderr)
        distributed.leave(2)
