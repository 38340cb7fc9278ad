"""Trains one model on several GPUs of this machine, one process per GPU, for a task that was given several GPUs.

It does for one task what `accelerate launch` does for a whole command: ranks and world size go through the environment
(diffusion/distributed.py), and the processes meet through accelerate. They end with the process that started them.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict

from guda.diffusion import distributed
from guda.errors import GudaError, from_line
from guda.run.task import Task


def execute_multi_gpu(root: str, task: Task, world_size: int) -> float:
    """Run one training task in `world_size` processes; returns the seconds."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    shared = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-m", "guda.engine.multi_gpu", root, json.dumps(asdict(task)), str(os.getpid())]
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
    from guda.engine.torchrun import run_launched
    from guda.run.run import Run

    def leave_with_parent() -> None:
        while os.getppid() == int(parent):
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=leave_with_parent, daemon=True).start()
    value = json.loads(task)
    made = Task(**value | {"makes": tuple(value["makes"]), "needs": tuple(value["needs"])})
    try:
        run_launched(Run.open(root), [made])
    except GudaError as e:
        print(e.line, file=sys.stderr, flush=True)
        distributed.leave(2)


if __name__ == "__main__":
    main(*sys.argv[1:])
