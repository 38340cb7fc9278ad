"""Images drawn from a model, in three ways that share one loop:

    sample      ancestral DDPM sampling of unconditional models; image i is a function of (seed, i)
    ddim        deterministic (eta = 0) from given noise, so that models differ by their weights alone
    generate    one image per prompt with classifier-free guidance, as diffusers' pipelines draw it

Networks run on blocks of a fixed size, short blocks padded, so that an image does not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from guda.diffusion.denoiser import Denoiser
from guda.diffusion.families.base import Cond
from guda.diffusion.noise import generator, torch_seed
from guda.diffusion.schedule import FlowSchedule
from guda.errors import GudaError

Tick = Callable[[int, int], None]  # (steps done, steps in all)

Start = Callable[[list[int]], tuple[torch.Tensor, list[torch.Generator] | None]]


BLOCK = 64  # images of `sample` that are drawn together; part of what makes them


def sample_id(seed: int, index: int) -> str:
    return f"s{seed}-{index:05d}"


def sample(
    denoiser: Denoiser,
    indices: Sequence[int],
    *,
    seed: int,
    steps: int | None = None,
    block: int = BLOCK,
    prompts: Sequence[str] | None = None,
    tick: Tick = lambda done, total: None,
) -> np.ndarray:
    """uint8 [n, C, H, W], one image per index; `prompts`: what a conditional model is told of each, no guidance."""
    from diffusers import DDPMScheduler

    if denoiser.conditional and prompts is None:
        raise GudaError(
            "sampling-needs-prompts",
            "sampling from a conditional model needs prompts; score a folder of its images instead",
        )
    if isinstance(denoiser.schedule, FlowSchedule):
        raise GudaError(
            "flow-sampling-unsupported",
            "ancestral sampling is for DDPM-like models, not for flow matching; score a folder of images",
        )
    start = _seeded(denoiser, [torch_seed(seed, "sample", i) for i in indices])
    solver = _solver(denoiser, steps or denoiser.schedule.T, DDPMScheduler)
    return _draw(denoiser, len(indices), start, solver, prompts=prompts, block=block, tick=tick)


def initial_noise(shape: Sequence[int], seed: int, indices: Sequence[int]) -> torch.Tensor:
    """float32 [n, *shape] for `ddim`; row i is keyed by (seed, index) and belongs to no model."""
    rows = [generator(seed, "initial noise", i).standard_normal(tuple(shape), dtype=np.float32) for i in indices]
    return torch.from_numpy(np.stack(rows))


def ddim(
    denoiser: Denoiser,
    noise: torch.Tensor,
    *,
    steps: int = 100,
    prompts: Sequence[str] | None = None,
    guidance: float = 1.0,
    block: int = 16,
    tick: Tick = lambda done, total: None,
) -> np.ndarray:
    """uint8 [n, C, H, W], one image per row of `noise`; `guidance` > 1 moves away from the empty prompt."""
    from diffusers import DDIMScheduler

    if prompts is not None and len(prompts) != len(noise):
        raise GudaError("prompts-count-mismatch", f"{len(prompts)} prompts for {len(noise)} pictures; give one each")
    if isinstance(denoiser.schedule, FlowSchedule):
        if denoiser.frozen is None:
            raise GudaError(
                "flow-sampling-unsupported", "pictures of an unconditional flow-matching model are not supported"
            )
        solver = prompt_solver(denoiser, steps)
    else:
        solver = _solver(denoiser, steps, DDIMScheduler)

    def start(rows: list[int]) -> tuple[torch.Tensor, None]:
        return noise[rows], None

    return _draw(denoiser, len(noise), start, solver, prompts=prompts, guidance=guidance, block=block, tick=tick)


def generate(
    denoiser: Denoiser,
    prompts: Sequence[str],
    *,
    seed: int = 42,
    steps: int = 50,
    guidance: float = 7.5,
    block: int = 16,
    tick: Tick = lambda done, total: None,
) -> np.ndarray:
    """uint8 [n, C, H, W], one image per prompt, all from the same noise; guidance <= 1: the plain conditional model."""
    if denoiser.frozen is None:
        raise GudaError(
            "text-model-required", f"pictures for prompts need a text-to-image model, this one is {denoiser.kind}"
        )
    if not prompts:
        raise GudaError("prompts-empty", "no prompts to draw pictures for")
    start, solver = _seeded(denoiser, [seed] * len(prompts)), prompt_solver(denoiser, steps)
    return _draw(denoiser, len(prompts), start, solver, prompts=prompts, guidance=guidance, block=block, tick=tick)


def prompt_solver(denoiser: Denoiser, steps: int) -> Callable[[], Any]:
    """Makes solvers of the model's noise schedule, set to `steps`."""
    from diffusers import DPMSolverMultistepScheduler

    if isinstance(denoiser.schedule, FlowSchedule):
        if type(denoiser.scheduler).__name__ == "DPMSolverMultistepScheduler":
            return _solver(denoiser, steps, DPMSolverMultistepScheduler)
        return _flow_solver(denoiser, steps, denoiser.schedule)
    # the squared cosine ends in SNRs that the solver's logarithms cannot step over; diffusers' own remedy
    cosine = denoiser.scheduler is not None and denoiser.scheduler.config.get("beta_schedule") == "squaredcos_cap_v2"
    return _solver(denoiser, steps, DPMSolverMultistepScheduler, **({"lambda_min_clipped": -5.1} if cosine else {}))


def _solver(denoiser: Denoiser, steps: int, cls: Any, **options: Any) -> Callable[[], Any]:
    if denoiser.scheduler is None:
        raise GudaError(
            "denoiser-without-scheduler", "the denoiser has no diffusers scheduler, so it cannot be sampled from"
        )

    def make() -> Any:
        solver = cls.from_config(denoiser.scheduler.config, **options)
        solver.set_timesteps(min(steps, denoiser.schedule.T))
        return solver

    return make


def _flow_solver(denoiser: Denoiser, steps: int, schedule: FlowSchedule) -> Callable[[], Any]:
    """Euler along the model's path, with the shift that its pictures have."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    steps, frozen = min(steps, schedule.T), denoiser.frozen
    sigmas = None if frozen is None else frozen.sigmas(steps)
    dynamic = denoiser.scheduler is not None and denoiser.scheduler.config.get("use_dynamic_shifting")
    if sigmas is None and not dynamic:
        return _solver(denoiser, steps, FlowMatchEulerDiscreteScheduler)
    grid = np.linspace(1, 1 / schedule.T, steps) if sigmas is None else sigmas

    def make() -> Any:
        solver = FlowMatchEulerDiscreteScheduler(num_train_timesteps=schedule.T, shift=schedule.shift)
        solver.set_timesteps(sigmas=list(grid))
        return solver

    return make


def _seeded(denoiser: Denoiser, seeds: Sequence[int]) -> Start:
    """Noise from a generator for each image, which also draws the noise of its later steps."""
    from diffusers.utils.torch_utils import randn_tensor

    def start(rows: list[int]) -> tuple[torch.Tensor, list[torch.Generator]]:
        generators = [torch.Generator().manual_seed(seeds[i]) for i in rows]
        return randn_tensor((len(rows), *denoiser.shape), generators), generators

    return start


# no_grad and not inference_mode: embeddings are kept, and may be trained with later
@torch.no_grad()
def _draw(
    denoiser: Denoiser,
    n: int,
    start: Start,
    make_solver: Callable[[], Any],
    *,
    prompts: Sequence[str] | None = None,
    guidance: float = 1.0,
    block: int,
    tick: Tick,
) -> np.ndarray:
    """Images 0..n-1 from the noise of `start`, in blocks."""
    images, device, frozen, n_blocks = [], denoiser.device, denoiser.frozen, -(-n // block)
    embedded = frozen is not None and frozen.embeds_guidance  # then one evaluation, told the guidance
    guided = guidance > 1 and frozen is not None and not embedded
    for number in range(n_blocks):
        rows = list(range(number * block, min((number + 1) * block, n)))
        padded = rows + [rows[-1]] * (block - len(rows))
        cond = denoiser.condition(None if prompts is None else [prompts[i] for i in padded])
        if guided and frozen is not None and cond is not None:
            cond = Cond.cat([frozen.unconditional(block), cond])
        if embedded and cond is not None:
            cond = Cond(cond.tensors | {"guidance": torch.full((block,), float(guidance))})
        cond = None if cond is None else cond.to(device)
        x, generators = start(padded)
        x = x.to(device)
        solver = make_solver()  # a multistep solver remembers the block it is at
        options = {} if generators is None else {"generator": generators}
        for k, time in enumerate(solver.timesteps):
            x_in = torch.cat([x, x]) if guided else x
            output = _output(denoiser, x_in, time.expand(len(x_in)).to(device), cond)
            if guided:
                empty, prompted = output.chunk(2)
                output = empty + guidance * (prompted - empty)
            x = solver.step(output, time, x, **options).prev_sample  # DDIM's eta is 0 by default
            tick(number * len(solver.timesteps) + k + 1, n_blocks * len(solver.timesteps))
        images.append(denoiser.decode(x)[: len(rows)])
    return np.concatenate(images)


def _output(denoiser: Denoiser, x: torch.Tensor, time: torch.Tensor, cond: Cond | None) -> torch.Tensor:
    """A solver's times are already the network's; `raw` would convert those of flow matching once more."""
    if denoiser.frozen is not None and cond is not None:
        return denoiser.frozen.call(denoiser.module, x, time, cond)
    return denoiser.raw(x, time, cond)
