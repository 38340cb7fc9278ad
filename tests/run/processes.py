"""Several processes of one command, as a launcher starts them: the environment is all there is to it."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence

import programs


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def start(command: Sequence[str], n: int = 2) -> list[subprocess.Popen[str]]:
    shared = {"WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    return [
        programs.start(
            [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank), "GUDA_DEVICE": "cpu"},
        )
        for rank in range(n)
    ]  # fmt: skip


def finish(processes: Sequence[subprocess.Popen[str]], timeout: float = 600) -> list[tuple[int, str, str]]:
    """(exit code, stdout, stderr) of each; whoever hangs is ended."""
    found = []
    try:
        for p in processes:
            out, err = p.communicate(timeout=timeout)
            found.append((p.returncode, out, err))
    finally:
        for p in processes:
            programs.end(p)
    return found
