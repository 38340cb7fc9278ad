"""Processes started by one `accelerate launch` or `torchrun`, and how they share an optimiser step.

Rank and world size stand in the environment (RANK, WORLD_SIZE, MASTER_ADDR), as both launchers write it. Trainings are
shared by all processes; everything else is done by rank 0, which also schedules, publishes and prints.

    loss = mean over the batch = sum over pieces of (images in the piece / images in the batch) * mean over the piece

Every process takes its share of the same keyed batch and DDP averages gradients over processes, so one process and
many take the same step up to rounding. One process in fp32 (`Stepper` itself) needs no library; several processes,
bf16 and fp16 go through accelerate (`AcceleratedStepper`).
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from guda.errors import GudaError

if TYPE_CHECKING:  # every command asks for its rank, and torch takes seconds to import
    import torch
    from torch import nn

WAIT_TIMEOUT = timedelta(days=30)  # others wait for what rank 0 does alone, and that may take days

COLLECTIVE_TIMEOUT = timedelta(minutes=10)  # but no gradient takes so long to arrive

FAILURE_WINDOW = 10.0  # seconds within which all processes meet the same error, if they do


def world_size() -> int:
    """Number of processes; 1 when not started by a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def rank() -> int:
    return int(os.environ["RANK"]) if world_size() > 1 else 0


def is_main() -> bool:
    """Whether this process is the one that writes and prints."""
    return rank() == 0


def on_cpu() -> bool:
    """Whether the launcher or the user chose the CPU although there may be a GPU."""
    chosen = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
    return chosen or os.environ.get("GUDA_DEVICE", "").startswith("cpu")


def leave(code: int) -> NoReturn:
    """End this process; one of several at once, because what it would tidy up is shared with others who may be gone."""
    if world_size() > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


@dataclass(frozen=True)
class Team:
    """This process among the others."""

    rank: int
    world: int
    waiting: Any  # process group of messages between tasks
    failing: Any  # process group that only failed processes enter

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
        """Whether every process calls this within seconds: then all met the same error."""
        import torch.distributed as dist

        # not a timeout of the group: making a group takes as long as the slowest process does
        work, deadline = dist.barrier(group=self.failing, async_op=True), time.monotonic() + FAILURE_WINDOW
        while not work.is_completed():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        try:
            work.wait()
        except RuntimeError:  # they left instead
            return False
        return True


@cache
def join() -> Team:
    """Join the process group; returns once all processes are there. Selects this process's GPU if there are GPUs."""
    import torch
    import torch.distributed as dist
    from accelerate import PartialState

    torch.set_num_threads(1)  # as in the local engine's workers: results are bitwise per thread count
    state = PartialState(cpu=on_cpu() or not torch.cuda.is_available(), timeout=COLLECTIVE_TIMEOUT)
    atexit.register(dist.destroy_process_group)
    groups = [dist.new_group(backend="gloo", timeout=WAIT_TIMEOUT) for _ in range(2)]
    return Team(state.process_index, state.num_processes, *groups)


class Stepper:
    """Optimiser steps of one process in fp32."""

    rank, world = 0, 1
    scaler: Any = None  # of the loss, in fp16

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def pieces(self, batch: int, accumulate: int) -> list[tuple[slice, float]]:
        """This process's pieces of a batch: places, and what the mean over them weighs in this process's loss (whose
        mean over processes is the mean over the batch)."""
        import numpy as np

        if batch < self.world * accumulate:
            raise GudaError(
                "batch-indivisible",
                f"training.batch = {batch} cannot be shared by {self.world} processes in {accumulate} pieces each; "
                "use fewer of them, or a larger batch",
            )
        cuts = np.array_split(np.arange(batch), self.world * accumulate)[self.rank * accumulate :][:accumulate]
        return [(slice(int(c[0]), int(c[-1]) + 1), len(c) * self.world / batch) for c in cuts]

    def prepare(self, module: nn.Module) -> nn.Module:
        """What is called instead of `module`, whose parameters are still the trained ones."""
        return module

    def no_sync(self, module: nn.Module) -> AbstractContextManager[Any]:
        """While gradients of further pieces are to come: they are exchanged once a step."""
        return nullcontext()

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def step(self, optimizer: torch.optim.Optimizer, parameters: Iterable[torch.Tensor], clip: float) -> None:
        from torch.nn.utils import clip_grad_norm_

        clip_grad_norm_(parameters, clip)
        optimizer.step()

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        """Over processes."""
        return value

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on every process."""
        return value


class AcceleratedStepper(Stepper):
    def __init__(self, precision: str, device: torch.device) -> None:
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState

        self._team = join() if world_size() > 1 else None
        # a process may train one model after the other in different precisions
        AcceleratorState._reset_state()
        mixed = {"fp32": "no"}.get(precision, precision)
        self._accelerator = Accelerator(cpu=device.type == "cpu", mixed_precision=mixed, device_placement=False)
        self.rank, self.world = self._accelerator.process_index, self._accelerator.num_processes
        self.scaler = self._accelerator.scaler

    def prepare(self, module: nn.Module) -> nn.Module:
        wrapped: Any = self._accelerator.prepare_model(module)
        if wrapped is not module and hasattr(module, "config"):
            wrapped.config = module.config  # DDP hides it; some families read a width there
        return wrapped

    def no_sync(self, module: nn.Module) -> AbstractContextManager[Any]:
        return self._accelerator.no_sync(module)

    def backward(self, loss: torch.Tensor) -> None:
        self._accelerator.backward(loss)

    def step(self, optimizer: torch.optim.Optimizer, parameters: Iterable[torch.Tensor], clip: float) -> None:
        if self.scaler is None:
            return super().step(optimizer, parameters, clip)
        from torch.nn.utils import clip_grad_norm_

        self.scaler.unscale_(optimizer)
        clip_grad_norm_(parameters, clip)
        self.scaler.step(optimizer)  # not taken where a gradient overflowed; the scale is lowered instead
        self.scaler.update()

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        reduced: torch.Tensor = self._accelerator.reduce(value.to(self._accelerator.device), "mean")
        return reduced.cpu()

    def broadcast(self, value: Any) -> Any:
        return value if self._team is None else self._team.broadcast(value)


def precision_on(device: torch.device, precision: str) -> str:
    """A CPU always computes in fp32: it gains nothing from fewer bits."""
    return "fp32" if device.type == "cpu" else precision


def make_stepper(precision: str, device: torch.device) -> Stepper:
    precision = precision_on(device, precision)
    return Stepper() if precision == "fp32" and world_size() == 1 else AcceleratedStepper(precision, device)
