"""Team: the processes that one `accelerate launch` or `torchrun` started to run the same command together.

Who they are stands in the environment (RANK, WORLD_SIZE, MASTER_ADDR), as both launchers write it. Trainings are the
work of all of them; everything else is done by the first (rank 0), which also decides, publishes and speaks.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, NoReturn

PATIENCE = timedelta(days=30)  # others wait for what rank 0 does alone, and that may take days

MEETING = 10.0  # seconds: the same mistake is made by all at the same time

COLLECTIVE = timedelta(minutes=10)  # but no gradient takes so long to arrive


def world_size() -> int:
    """World size; 1 when not started by a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def rank() -> int:
    return int(os.environ["RANK"]) if world_size() > 1 else 0


def is_main() -> bool:
    """Whether this process is the one that writes and speaks."""
    return rank() == 0


def on_cpu() -> bool:
    """Whether the launcher or the user asked for the CPU although there may be a GPU."""
    asked = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
    return asked or os.environ.get("GUDA_DEVICE", "").startswith("cpu")


@dataclass(frozen=True)
class Team:
    rank: int
    world: int
    waiting: Any  # process group of messages between tasks
    failing: Any  # process group that only those meet in who have failed

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on every process."""
        import torch.distributed as dist

        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.waiting)
        return box[0]

    def all_failed(self) -> bool:
        """Whether every process comes here within seconds: the same mistake, met by all."""
        import torch.distributed as dist

        # not a timeout of the group: making a group takes as long as the slowest process does
        work, deadline = dist.barrier(group=self.failing, async_op=True), time.monotonic() + MEETING
        while not work.is_completed():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        try:
            work.wait()
        except RuntimeError:  # they left instead
            return False
        return True


def leave(code: int) -> NoReturn:
    """End this process. One of several does so at once: what it would tidy up is shared with others who may be gone."""
    if world_size() > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


@cache
def join() -> Team:
    """Meet the others; returns when all are there. Takes this process's GPU where there are GPUs."""
    import torch
    import torch.distributed as dist
    from accelerate import PartialState

    torch.set_num_threads(1)  # as in the local engine's workers: results are bitwise per thread count
    state = PartialState(cpu=on_cpu() or not torch.cuda.is_available(), timeout=COLLECTIVE)
    atexit.register(dist.destroy_process_group)
    groups = [dist.new_group(backend="gloo", timeout=PATIENCE) for _ in range(2)]
    return Team(state.process_index, state.num_processes, *groups)
