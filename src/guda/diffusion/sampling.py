"""Drawing queries from the full model: ancestral DDPM sampling with a generator of its own for every image.

Image i depends on (seed, i) alone: networks run in blocks of a fixed size, padded, and each image's noise is keyed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from guda.diffusion.denoiser import Denoiser
from guda.diffusion.flow import FlowSchedule
from guda.diffusion.noise import torch_seed
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
    blocks = [list(indices[i : i + block]) for i in range(0, len(indices), block)]
    n_steps = len(scheduler.timesteps)
    for number, chunk in enumerate(blocks):
        padded = chunk + [chunk[-1]] * (block - len(chunk))
        generators = [torch.Generator().manual_seed(torch_seed(seed, "sample", i)) for i in padded]
        x = randn_tensor((block, *denoiser.shape), generators).to(denoiser.device)
        for k, t in enumerate(scheduler.timesteps):
            output = denoiser.raw(x, t.expand(block).to(denoiser.device))
            x = scheduler.step(output, int(t), x, generator=generators).prev_sample
            tick(number * n_steps + k + 1, len(blocks) * n_steps)
        out.append(denoiser.decode(x)[: len(chunk)])
    return np.concatenate(out)
