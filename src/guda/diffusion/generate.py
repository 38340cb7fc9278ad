"""Pictures for prompts: how a text-to-image model's queries are drawn (SPEC section 6).

DPM-Solver multistep (flow matching: Euler) with classifier-free guidance,

    output = output(empty) + g (output(prompt) - output(empty))

no negative prompt, and every picture's generator restarted at the same seed, so that pictures differ by their prompts
alone. The network runs on blocks of one size, short ones padded: a picture does not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from guda.diffusion.cond import Cond
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.flow import FlowSchedule
from guda.errors import GudaError


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
    blocks = [list(prompts[i : i + block]) for i in range(0, len(prompts), block)]
    for number, chunk in enumerate(blocks):
        solver = sampler(denoiser, steps)  # a multistep solver remembers the block it is at
        total = len(solver.timesteps)
        cond = denoiser.frozen.condition(chunk + [chunk[-1]] * (block - len(chunk)))
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
            tick(number * total + k + 1, len(blocks) * total)
        out.append(denoiser.decode(x)[: len(chunk)])
    return np.concatenate(out)
