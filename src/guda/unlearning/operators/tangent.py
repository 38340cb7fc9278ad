"""tangent: approximates a continued training without each group, for all groups from one pass.

The model's training is continued once, with every image (the control of operators/continuation.py: the same batches,
AdamW, learning rate, clipping). At each step the gradient of the batch is taken atom by atom, an atom being the images
that share all their groups, so the gradient without group k is known as well:

    dg_k = (sum_i g_i - sum_{i in k} g_i) / (n - n_k) - (sum_i g_i) / n
    delta_k = - sum_steps eta c dg_k / (sqrt(v) + eps)          theta_-k = theta_full + scale delta_k

eta: learning rate, c: the clipping factor, v: AdamW's second moment of the control. What is left out: that a step
without k would be taken at another point (feedback), momentum, and that moments and clipping would be others. One
forward and one backward pass over each batch serve every group, so sixty groups cost about as much as one; a
continuation takes as many passes as there are groups. Memory grows with the groups: each keeps its delta_k until the
end.

`scale` keeps the change in the range where it is linear. It scales all groups alike, so that log ratios to the average
picture (path, excess) hardly depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from pydantic import Field, model_validator

from guda.data.classes import Classes, class_numbers
from guda.data.images import ImageData
from guda.data.prompts import Prompts
from guda.diffusion.denoiser import Denoiser, Latents, encode_all
from guda.diffusion.low_memory import make_optimizer, recompute
from guda.memory import check_memory
from guda.unlearning.bank import Counterfactual
from guda.unlearning.operators.continuation import Continuation, ContinuationConfig
from guda.unlearning.student import Student
from guda.unlearning.unlearn import CONTROL, Inputs, flips, learning_rate, make_operator, operator


class TangentConfig(ContinuationConfig):
    steps: int = Field(160, gt=0, description="Optimiser steps, for all groups together.")
    scale: float = Field(0.3, gt=0, description="How much of the first-order change is applied.")

    @model_validator(mode="after")
    def _plain(self) -> TangentConfig:
        if self.optimizer != "adamw" or self.average is not None:
            raise ValueError("tangent needs AdamW's own moments and last weights; leave optimizer and average out")
        return self


@operator("tangent")
class Tangent(Continuation):
    Config = TangentConfig
    summary = "about how a continued training would move without each group, for all groups from one pass"
    coupled = False
    together = True

    @classmethod
    def make_together(
        cls, teacher: Denoiser, data: ImageData, members: dict[str, np.ndarray], config: Any,
        tick: Callable[[int, int], None], prompts: Prompts | Classes | None, latents: Latents | None,
    ) -> dict[str, Counterfactual]:  # fmt: skip
        return tangents(teacher, data, members, config, tick, prompts, latents)


def tangents(
    teacher: Denoiser,
    data: ImageData,
    members: Mapping[str, np.ndarray],
    config: Any,
    tick: Callable[[int, int], None] = lambda done, total: None,
    prompts: Prompts | Classes | None = None,
    latents: Latents | None = None,
) -> dict[str, Counterfactual]:
    """Of every group in `members`, which says of each image whether it is in it (bool [n])."""
    config = Tangent.settle(config, None)
    made = make_operator("tangent", teacher, data, CONTROL, config, prompts=prompts)
    if teacher.n_classes is not None and prompts is None:
        prompts = class_numbers(data, teacher.n_classes)
    student = Student(teacher, config)
    parameters, begin = student.parameters, student.state()
    optimizer = make_optimizer("adamw", parameters, config.lr, config.weight_decay)
    if config.checkpointing:
        recompute(student.denoiser.module)
    schedule = learning_rate(optimizer, config)
    inputs = Inputs(
        latents or encode_all(teacher, data.images, flips(config)), None if prompts is None else prompts.training
    )
    [sampler] = made.samplers()
    atoms = atoms_of(data, members)
    held = 2 * len(members) + min(int(atoms.max()) + 1, config.batch) + 6  # changes, kept ones, gradients, moments
    if teacher.device.type == "cpu":
        check_memory(
            held * sum(p.numel() * p.element_size() for p in parameters),
            f"tangent of {len(members)} groups at once",
            "set store: lora:R, which moves fewer numbers, or ask about fewer groups (--groups)",
        )
    moved = {group: [torch.zeros_like(p) for p in parameters] for group in members}
    for step in range(1, config.steps + 1):
        batch = sampler.draw(teacher, inputs, config, CONTROL, step - 1)
        assert batch.index is not None
        target = student.denoiser.target(batch.x0, batch.eps, batch.t)
        own, sums = atoms[batch.index], dict[int, tuple[torch.Tensor, ...]]()
        for atom in np.unique(own).tolist():
            rows = torch.from_numpy(np.flatnonzero(own == atom)).to(batch.t.device)
            output = student.denoiser.raw(
                batch.x_t[rows], batch.t[rows], None if batch.cond is None else batch.cond[rows]
            )
            each = (output - target[rows]).square().flatten(1).mean(1)
            sums[atom] = torch.autograd.grad(each.sum(), parameters, allow_unused=True, materialize_grads=True)
        total, n = [torch.stack(g).sum(dim=0) for g in zip(*sums.values(), strict=True)], len(own)
        for p, g in zip(parameters, total, strict=True):
            p.grad = g / n
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, config.clip))
        rate = optimizer.param_groups[0]["lr"] * min(1.0, config.clip / (norm + 1e-6))
        optimizer.step()
        schedule.step()
        inverse = [rate / precondition(optimizer, p) for p in parameters]
        for group, inside in members.items():
            mine = inside[batch.index]
            if not mine.any():
                continue
            gone, left = np.unique(own[mine]).tolist(), max(1, n - int(mine.sum()))
            for i, d in enumerate(moved[group]):
                d -= inverse[i] * ((total[i] - sum(sums[atom][i] for atom in gone)) / left - total[i] / n)
        tick(step, config.steps)
    found = {}
    for group in list(moved):
        student.restore([p + config.scale * d for p, d in zip(begin, moved.pop(group), strict=True)])
        found[group] = student.counterfactual(group, "tangent")
    return found


def precondition(optimizer: torch.optim.Optimizer, p: torch.Tensor) -> torch.Tensor:
    """What AdamW divides the mean gradient of a parameter by, after a step."""
    state, settings = optimizer.state[p], optimizer.param_groups[0]
    corrected = state["exp_avg_sq"] / (1 - settings["betas"][1] ** float(state["step"]))
    return torch.as_tensor(corrected).sqrt() + settings["eps"]


def atoms_of(data: ImageData, members: Mapping[str, np.ndarray]) -> np.ndarray:
    """int [n]: images with the same number share all their groups. The data's own groups count whichever are asked
    about, so that a gradient's last bits do not depend on that."""
    rows = np.stack([data.groups.atoms[0], *(members[g].astype(np.int64) for g in sorted(members))], axis=1)
    return np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
