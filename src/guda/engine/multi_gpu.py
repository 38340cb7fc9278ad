"""Together: several processes of this machine do one training, on one GPU each, for a task that was given several GPUs.

What `accelerate launch` does for a whole command is done here for a task: the processes are told who they are by the
environment (diffusion/distributed.py) and meet through accelerate. They end with the process that started them.
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


def execute_together(root: str, task: Task, processes: int) -> float:
    """Run one training task in `processes` processes; returns the seconds."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    shared = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-m", "guda.engine.multi_gpu", root, json.dumps(asdict(task)), str(os.getpid())]
    started = time.monotonic()
    crew = [
        subprocess.Popen(
            command, env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(processes)
    ]  # fmt: skip
    said = [""] * processes

    def listen(rank: int) -> None:
        said[rank] = crew[rank].communicate()[1]

    listeners = [threading.Thread(target=listen, args=(rank,), daemon=True) for rank in range(processes)]
    for listener in listeners:
        listener.start()
    try:
        while any(p.poll() is None for p in crew) and not any(p.poll() for p in crew):
            time.sleep(0.1)
    finally:
        if any(p.poll() for p in crew):
            time.sleep(distributed.MEETING / 10)  # those who meet the same mistake leave by themselves
        for process in crew:
            process.kill()
        for listener in listeners:
            listener.join()
    failed = [rank for rank, p in enumerate(crew) if p.returncode]
    if not failed:
        return time.monotonic() - started
    for error in (from_line(line) for text in said for line in text.splitlines()):
        if error is not None:
            raise error
    raise RuntimeError(f"process {failed[0]} of {processes} of {task.name!r} failed:\n{said[failed[0]]}")


def main(root: str, task: str, parent: str) -> None:
    """One of the processes."""
    from guda.engine.torchrun import run_together
    from guda.run.run import Run

    def leave_with_parent() -> None:
        while os.getppid() == int(parent):
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=leave_with_parent, daemon=True).start()
    value = json.loads(task)
    made = Task(**value | {"makes": tuple(value["makes"]), "needs": tuple(value["needs"])})
    try:
        run_together(Run.open(root), [made])
    except GudaError as e:
        print(e.line, file=sys.stderr, flush=True)
        distributed.leave(2)


if __name__ == "__main__":
    main(*sys.argv[1:])
