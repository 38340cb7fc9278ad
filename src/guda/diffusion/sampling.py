"""Drawing queries from the full model: ancestral DDPM sampling with a generator of its own for every image.

Image i depends on (seed, i) alone: networks run in blocks of a fixed size, padded, and each image's noise is keyed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from guda.blocks import blocks
from guda.diffusion.cond import Cond
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.noise import generator, torch_seed
from guda.diffusion.schedule import FlowSchedule
from guda.errors import GudaError


def sample_id(seed: int, index: int) -> str:
    return f"s{seed}-{index:05d}"


@torch.inference_mode()
def sample(
    denoiser: Denoiser,
    indices: Sequence[int],
    *,
    seed: int,
    steps: int | None = None,
    block: int = 64,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> np.ndarray:
    """uint8 [n, C, H, W], one image per index."""
    from diffusers import DDPMScheduler
    from diffusers.utils.torch_utils import randn_tensor

    if denoiser.conditional:
        raise GudaError(
            "sampling-needs-prompts",
            "sampling from a conditional model needs prompts; score a folder of its images instead",
        )
    if denoiser.scheduler is None:
        raise GudaError(
            "denoiser-without-scheduler", "the denoiser has no diffusers scheduler, so it cannot be sampled from"
        )
    if isinstance(denoiser.schedule, FlowSchedule):
        raise GudaError(
            "flow-sampling-unsupported",
            "ancestral sampling is for DDPM-like models, not for flow matching; score a folder of images",
        )
    scheduler = DDPMScheduler.from_config(denoiser.scheduler.config)
    scheduler.set_timesteps(min(steps or denoiser.schedule.T, denoiser.schedule.T))
    out = []
    n_steps, n_blocks = len(scheduler.timesteps), -(-len(indices) // block)
    for number, rows in enumerate(blocks(len(indices), block)):
        generators = [torch.Generator().manual_seed(torch_seed(seed, "sample", indices[i])) for i in rows.index]
        x = randn_tensor((block, *denoiser.shape), generators).to(denoiser.device)
        for k, t in enumerate(scheduler.timesteps):
            output = denoiser.raw(x, t.expand(block).to(denoiser.device))
            x = scheduler.step(output, int(t), x, generator=generators).prev_sample
            tick(number * n_steps + k + 1, n_blocks * n_steps)
        out.append(denoiser.decode(x)[: rows.n])
    return np.concatenate(out)


# ---- Deterministic pictures from given noise: DDIM with eta = 0, so that models differ by their weights alone.
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
    n_blocks = -(-n // block)
    for number, rows in enumerate(blocks(n, block)):
        solver = _solver(denoiser, steps)
        cond = denoiser.condition(None if prompts is None else [prompts[i] for i in rows.index])
        if guided and denoiser.frozen is not None and cond is not None:
            cond = Cond.cat([denoiser.frozen.unconditional(block), cond])
        cond = None if cond is None else cond.to(denoiser.device)
        x = rows.take(noise).to(denoiser.device)
        for k, time in enumerate(solver.timesteps):
            x_in = torch.cat([x, x]) if guided else x
            output = _output(denoiser, x_in, time.expand(len(x_in)).to(denoiser.device), cond)
            if guided:
                empty, told = output.chunk(2)
                output = empty + guidance * (told - empty)
            x = solver.step(output, time, x).prev_sample  # DDIM's eta is 0 by default
            tick(number * len(solver.timesteps) + k + 1, n_blocks * len(solver.timesteps))
        out.append(denoiser.decode(x)[: rows.n])
    return np.concatenate(out)


def _output(denoiser: Denoiser, x: torch.Tensor, time: torch.Tensor, cond: Cond | None) -> torch.Tensor:
    """A solver's times are what the network is told; `raw` would translate those of flow matching once more."""
    if denoiser.frozen is not None and cond is not None:
        return denoiser.frozen.call(denoiser.module, x, time, cond)
    return denoiser.raw(x, time, cond)


# ---- Pictures for prompts: how a text-to-image model's queries are drawn (SPEC section 6).
def sampler(denoiser: Denoiser, steps: int) -> Any:
    """The solver of the model's noise schedule, set to `steps`."""
    from diffusers import DPMSolverMultistepScheduler, FlowMatchEulerDiscreteScheduler

    if denoiser.scheduler is None:
        raise GudaError(
            "denoiser-without-scheduler", "the denoiser has no diffusers scheduler, so it cannot be sampled from"
        )
    config = denoiser.scheduler.config
    if isinstance(denoiser.schedule, FlowSchedule):
        solver = FlowMatchEulerDiscreteScheduler.from_config(config)
    else:
        # the squared cosine ends in SNRs that the solver's logarithms cannot step over; diffusers' own remedy
        capped = {"lambda_min_clipped": -5.1} if config.get("beta_schedule") == "squaredcos_cap_v2" else {}
        solver = DPMSolverMultistepScheduler.from_config(config, **capped)
    solver.set_timesteps(min(steps, denoiser.schedule.T))
    return solver


@torch.no_grad()
def generate(
    denoiser: Denoiser,
    prompts: Sequence[str],
    *,
    seed: int = 42,
    steps: int = 50,
    guidance: float = 7.5,
    block: int = 16,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> np.ndarray:
    """uint8 [n, C, H, W], one picture per prompt; guidance <= 1: the plain conditional prediction."""
    from diffusers.utils.torch_utils import randn_tensor

    if denoiser.frozen is None:
        raise GudaError(
            "text-model-required", f"pictures for prompts need a text-to-image model, this one is {denoiser.kind}"
        )
    if not prompts:
        raise GudaError("prompts-empty", "no prompts to draw pictures for")
    guided = guidance > 1
    out = []
    n_blocks = -(-len(prompts) // block)
    for number, rows in enumerate(blocks(len(prompts), block)):
        solver = sampler(denoiser, steps)  # a multistep solver remembers the block it is at
        total = len(solver.timesteps)
        cond = denoiser.frozen.condition([prompts[i] for i in rows.index])
        if guided:
            cond = Cond.cat([denoiser.frozen.unconditional(block), cond])
        cond = cond.to(denoiser.device)
        generators = [torch.Generator().manual_seed(seed) for _ in range(block)]
        x = randn_tensor((block, *denoiser.shape), generators).to(denoiser.device)
        for k, time in enumerate(solver.timesteps):
            x_in = torch.cat([x, x]) if guided else x
            told = time.expand(len(x_in)).to(denoiser.device)
            output = denoiser.frozen.call(denoiser.module, x_in, told, cond)
            if guided:
                empty, prompted = output.chunk(2)
                output = empty + guidance * (prompted - empty)
            x = solver.step(output, time, x, generator=generators).prev_sample
            tick(number * total + k + 1, n_blocks * total)
        out.append(denoiser.decode(x)[: rows.n])
    return np.concatenate(out)
