"""How networks are run when scoring: device, precision, memory layout, block size. Part of the terms' key.

On the CPU everything is plain fp32 and nothing needs probing. On a GPU the first scoring of a run times a few ways to
run the model once, keeps the fastest and writes RUN/probe.json; later scorings read it, so that one run never mixes
two. When a block does not fit into memory it is halved and the terms go under the new key.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from guda.diffusion.denoiser import Denoiser
from guda.errors import GudaError

REPEATS = 3


class OutOfMemory(GudaError):
    """A block did not fit; raised in a worker, answered by the driver with a smaller block."""


@dataclass(frozen=True)
class Settings:
    block: int
    device: str = "cpu"
    precision: str = "fp32"  # or bf16: autocast
    channels_last: bool = False
    compiled: bool = False

    @property
    def key(self) -> str:
        extras = ("-cl" if self.channels_last else "") + ("-compiled" if self.compiled else "")
        return f"b{self.block}-{self.device}-{self.precision}{extras}"

    def halved(self) -> Settings:
        """After an OutOfMemory: the same with half the block."""
        if self.block == 1:
            raise GudaError("image-out-of-memory", "even one image does not fit into memory; use a machine with more")
        return replace(self, block=self.block // 2)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Autocast where chosen; running out of memory becomes `OutOfMemory`."""
        context: Any = contextlib.nullcontext()
        if self.precision == "bf16":
            context = torch.autocast(self.device, torch.bfloat16)
        try:
            with context:
                yield
        except (torch.OutOfMemoryError, RuntimeError) as e:
            if not isinstance(e, torch.OutOfMemoryError) and "can't allocate memory" not in str(e):
                raise
            raise OutOfMemory(
                "block-out-of-memory",
                f"a block of {self.block} images does not fit into memory; set scoring.block lower",
            ) from e

    def prepare(self, denoiser: Denoiser) -> Denoiser:
        if self.channels_last:
            module: Any = denoiser.module
            module.to(memory_format=torch.channels_last)
        if self.compiled and getattr(denoiser.module, "_compiled_call_impl", None) is None:
            denoiser.module.compile()
        return denoiser


def candidates(block: int, device: str) -> list[Settings]:
    if device == "cpu":
        return [Settings(block)]
    plain = Settings(block, device)
    half = replace(plain, precision="bf16")
    return [plain, half, replace(half, channels_last=True), replace(half, channels_last=True, compiled=True)]


def fastest(denoiser: Denoiser, block: int) -> tuple[Settings, dict[str, float]]:
    """What is fastest on the model's device, and the seconds per block of everything tried; a CPU has one way."""
    if denoiser.device.type == "cpu":
        return Settings(block), {}
    timed = {s: seconds_per_block(denoiser.clone(), s) for s in candidates(block, denoiser.device.type)}
    return min(timed, key=lambda s: timed[s]), {s.key: v for s, v in timed.items()}


def seconds_per_block(denoiser: Denoiser, settings: Settings) -> float:
    """Best of a few timed calls after a warm-up, synchronised on a GPU."""
    model = settings.prepare(denoiser)
    x = torch.randn(settings.block, *denoiser.shape, device=denoiser.device)
    t = torch.full((settings.block,), denoiser.schedule.T // 2, device=denoiser.device)
    cond = denoiser.condition(["0"] * settings.block) if denoiser.conditional else None
    best = float("inf")
    with torch.inference_mode(), settings.active():
        for attempt in range(REPEATS + 1):
            started = time.perf_counter()
            model.raw(x, t, cond)
            if settings.device == "cuda":
                torch.cuda.synchronize()
            if attempt:
                best = min(best, time.perf_counter() - started)
    return best
