"""Deterministic pictures from given noise: DDIM with eta = 0, so that models differ by their weights alone.

    x_prev = a_prev x0_hat + s_prev eps_hat,    x_T = the noise of (seed, i), the same for every model

Flow matching has its Euler steps instead. Networks run in blocks of one size, short ones padded: a picture depends on
its own noise (and prompt) and not on its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from guda.diffusion.cond import Cond
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.flow import FlowSchedule
from guda.diffusion.noise import generator
from guda.errors import GudaError


def initial_noise(shape: Sequence[int], seed: int, indices: Sequence[int]) -> torch.Tensor:
    """float32 [n, *shape]; row i is keyed by (seed, index) and belongs to no model."""
    rows = [generator(seed, "initial noise", i).standard_normal(tuple(shape), dtype=np.float32) for i in indices]
    return torch.from_numpy(np.stack(rows))


def _solver(denoiser: Denoiser, steps: int) -> Any:
    from diffusers import DDIMScheduler

    if denoiser.scheduler is None:
        raise GudaError(
            "denoiser-without-scheduler", "the denoiser has no diffusers scheduler, so it cannot be sampled from"
        )
    if isinstance(denoiser.schedule, FlowSchedule):
        if denoiser.frozen is None:
            raise GudaError(
                "flow-sampling-unsupported", "pictures of an unconditional flow-matching model are not supported"
            )
        from guda.diffusion.generate import sampler

        return sampler(denoiser, steps)
    solver = DDIMScheduler.from_config(denoiser.scheduler.config)
    solver.set_timesteps(min(steps, denoiser.schedule.T))
    return solver


@torch.inference_mode()
def ddim(
    denoiser: Denoiser,
    noise: torch.Tensor,
    *,
    steps: int = 100,
    prompts: Sequence[str] | None = None,
    guidance: float = 1.0,
    block: int = 16,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> np.ndarray:
    """uint8 [n, C, H, W], one picture per row of `noise`; `guidance` > 1 moves away from the empty prompt."""
    n = len(noise)
    if prompts is not None and len(prompts) != n:
        raise GudaError("prompts-count-mismatch", f"{len(prompts)} prompts for {n} pictures; give one each")
    guided = guidance > 1 and denoiser.frozen is not None
    out = []
    starts = range(0, n, block)
    for number, start in enumerate(starts):
        rows = list(range(start, min(start + block, n)))
        padded = rows + [rows[-1]] * (block - len(rows))
        solver = _solver(denoiser, steps)
        cond = denoiser.condition(None if prompts is None else [prompts[i] for i in padded])
        if guided and denoiser.frozen is not None and cond is not None:
            cond = Cond.cat([denoiser.frozen.unconditional(block), cond])
        cond = None if cond is None else cond.to(denoiser.device)
        x = noise[padded].to(denoiser.device)
        for k, time in enumerate(solver.timesteps):
            x_in = torch.cat([x, x]) if guided else x
            output = _output(denoiser, x_in, time.expand(len(x_in)).to(denoiser.device), cond)
            if guided:
                empty, told = output.chunk(2)
                output = empty + guidance * (told - empty)
            x = solver.step(output, time, x).prev_sample  # DDIM's eta is 0 by default
            tick(number * len(solver.timesteps) + k + 1, len(starts) * len(solver.timesteps))
        out.append(denoiser.decode(x)[: len(rows)])
    return np.concatenate(out)


def _output(denoiser: Denoiser, x: torch.Tensor, time: torch.Tensor, cond: Cond | None) -> torch.Tensor:
    """A solver's times are what the network is told; `raw` would translate those of flow matching once more."""
    if denoiser.frozen is not None and cond is not None:
        return denoiser.frozen.call(denoiser.module, x, time, cond)
    return denoiser.raw(x, time, cond)
