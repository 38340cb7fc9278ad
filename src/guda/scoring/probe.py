"""How networks are run when scoring: device, precision, memory layout, block size. Part of the terms' key.

On the CPU everything is plain fp32 and nothing needs probing. On a GPU the first scoring of a run times a few ways to
run the model once, keeps the fastest and writes RUN/probe.json; later scorings read it, so that one run never mixes
two. When a block does not fit into memory it is halved and the terms go under the new key.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from guda.diffusion.denoiser import Denoiser
from guda.errors import GudaError
from guda.runs.run import Run
from guda.runs.store import read_json, write_json

FILE = "probe.json"
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


def run_settings(run: Run) -> Settings:
    """What this run scores with; a GPU's settings come from the probe."""
    wanted = Settings(run.recipe.scoring.block)
    if not run.has(FILE):
        return wanted
    found = read_json(run.path(FILE))
    try:
        stored, asked = Settings(**found["settings"]), int(found["asked_block"])
    except (KeyError, TypeError, ValueError):
        raise GudaError("probe-damaged", f"{run.path(FILE)} is damaged; delete it and score again") from None
    # another block in the recipe is another question; the probe answers the one it was asked
    return stored if asked == wanted.block else replace(stored, block=wanted.block)


def keep(run: Run, settings: Settings, seconds: dict[str, float] | None = None) -> None:
    write_json(
        run.path(FILE),
        {"settings": asdict(settings), "asked_block": run.recipe.scoring.block, "seconds_per_block": seconds or {}},
    )


def halve_block(run: Run) -> Settings:
    """After an OutOfMemory: the same settings with half the block, kept."""
    now = run_settings(run)
    if now.block == 1:
        raise GudaError("image-out-of-memory", "even one image does not fit into memory; use a machine with more")
    smaller = replace(now, block=now.block // 2)
    keep(run, smaller)
    return smaller


def candidates(block: int, device: str) -> list[Settings]:
    if device == "cpu":
        return [Settings(block)]
    plain = Settings(block, device)
    half = replace(plain, precision="bf16")
    return [plain, half, replace(half, channels_last=True), replace(half, channels_last=True, compiled=True)]


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


def probe(run: Run, denoiser: Denoiser) -> Settings:
    """Time the candidates on this device and keep the fastest; on the CPU there is one, and nothing is written."""
    device = denoiser.device.type
    if device == "cpu" or run.has(FILE):
        return run_settings(run)
    timed = {s: seconds_per_block(denoiser.clone(), s) for s in candidates(run.recipe.scoring.block, device)}
    best = min(timed, key=lambda s: timed[s])
    keep(run, best, {s.key: v for s, v in timed.items()})
    return best
