"""Launch: how one optimiser step is spread over pieces of a batch, processes and precisions.

    loss = mean over the batch = sum over pieces of (images in the piece / images in the batch) * mean over the piece

Every process takes its share of the same keyed batch and DDP averages gradients over processes, so one process and
many take the same step up to rounding. One process in fp32 (`Launch` itself) has nothing in its way; several
processes, bf16 and fp16 go through accelerate (`Accelerated`).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn

from guda.diffusion import distributed
from guda.errors import GudaError


class Launch:
    """One process, fp32."""

    rank, world = 0, 1
    scaler: Any = None  # of the loss, in fp16

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def pieces(self, batch: int, accumulate: int) -> list[tuple[slice, float]]:
        """This process's pieces of a batch: places, and what the mean over them weighs in this process's loss (whose
        mean over processes is the mean over the batch)."""
        if batch < self.world * accumulate:
            raise GudaError(
                "batch-indivisible",
                f"training.batch = {batch} cannot be shared by {self.world} processes in {accumulate} pieces each; "
                "use fewer of them, or a larger batch",
            )
        cuts = np.array_split(np.arange(batch), self.world * accumulate)[self.rank * accumulate :][:accumulate]
        return [(slice(int(c[0]), int(c[-1]) + 1), len(c) * self.world / batch) for c in cuts]

    def prepare(self, module: nn.Module) -> nn.Module:
        """What is called instead of `module`, whose parameters stay the ones that move."""
        return module

    def holding(self, module: nn.Module) -> AbstractContextManager[Any]:
        """While gradients of further pieces are to come: they are exchanged once a step."""
        return nullcontext()

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def step(self, optimizer: torch.optim.Optimizer, parameters: Iterable[torch.Tensor], clip: float) -> None:
        torch.nn.utils.clip_grad_norm_(parameters, clip)
        optimizer.step()

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        """Over processes."""
        return value

    def told(self, value: Any) -> Any:
        """The first process's value."""
        return value


class Accelerated(Launch):
    def __init__(self, precision: str, device: torch.device) -> None:
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState

        self._team = distributed.join() if distributed.world_size() > 1 else None
        # a process may train one model after the other in different precisions
        AcceleratorState._reset_state()
        mixed = {"fp32": "no"}.get(precision, precision)
        self._accelerator = Accelerator(cpu=device.type == "cpu", mixed_precision=mixed, device_placement=False)
        self.rank, self.world = self._accelerator.process_index, self._accelerator.num_processes
        self.scaler = self._accelerator.scaler

    def prepare(self, module: nn.Module) -> nn.Module:
        wrapped: Any = self._accelerator.prepare_model(module)
        if wrapped is not module and hasattr(module, "config"):
            wrapped.config = module.config  # DDP hides it; some pipelines ask for a width
        return wrapped

    def holding(self, module: nn.Module) -> AbstractContextManager[Any]:
        return self._accelerator.no_sync(module)

    def backward(self, loss: torch.Tensor) -> None:
        self._accelerator.backward(loss)

    def step(self, optimizer: torch.optim.Optimizer, parameters: Iterable[torch.Tensor], clip: float) -> None:
        if self.scaler is None:
            return super().step(optimizer, parameters, clip)
        self.scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(parameters, clip)
        self.scaler.step(optimizer)  # not taken where a gradient overflowed; the scale is lowered instead
        self.scaler.update()

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self._accelerator.reduce(value.to(self._accelerator.device), "mean")
        return found.cpu()

    def told(self, value: Any) -> Any:
        return value if self._team is None else self._team.broadcast(value)


def precision_on(device: torch.device, precision: str) -> str:
    """What a device computes in: a CPU gains nothing from fewer bits."""
    return "fp32" if device.type == "cpu" else precision


def launch(precision: str, device: torch.device) -> Launch:
    precision = precision_on(device, precision)
    return Launch() if precision == "fp32" and distributed.world_size() == 1 else Accelerated(precision, device)
