"""Unlearning one group by a short fine-tune of theta_full: the one loop that every operator shares.

    L = lambda_forget L_forget + lambda_preserve L_preserve,   L_preserve = E_retain || eps_theta - eps_full ||^2

(SPEC section 4; losses are means over dims). The student runs in eval mode, so dropout neither adds noise nor makes it
differ from its frozen teacher at step 0. All randomness is keyed by (seed, group, step).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field, model_validator

from guda.counterfactuals.bank import Counterfactual
from guda.counterfactuals.student import Student
from guda.data.images import ImageData
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.noise import generator
from guda.errors import GudaError
from guda.runs.recipe import Config


class UnlearnConfig(Config):
    """What every operator can be told."""

    steps: int = Field(100, gt=0, description="Optimiser steps per group.")
    lr: float = Field(1e-3, gt=0, description="Peak learning rate (AdamW).")
    decay: bool = Field(False, description="Decay the learning rate to zero along a cosine.")
    warmup: int = Field(0, ge=0, description="Steps of linear warm-up; must be short against `steps`.")
    clip: float = Field(1.0, gt=0, description="Gradient norm is clipped to this.")
    batch_forget: int = Field(64, gt=0, description="Images of the group per step.")
    batch_retain: int = Field(64, gt=0, description="Images of the other groups per step.")
    lambda_forget: float = Field(1.0, ge=0, description="Weight of the forget loss.")
    lambda_preserve: float = Field(1.0, ge=0, description="Weight of the preservation loss.")
    window: tuple[float, float] = Field(
        (0.0, 1.0), description="Timesteps of the forget loss, as fractions of T: [from, to)."
    )
    seed: int = Field(0, ge=0, description="Seed of batches, timesteps and noise.")

    @model_validator(mode="after")
    def _reaches_its_rate(self) -> UnlearnConfig:
        if self.warmup >= self.steps:
            raise ValueError(f"warmup = {self.warmup} must be shorter than steps = {self.steps}")
        return self


@dataclass(frozen=True)
class Half:
    """One side of a step: images of the group, or of the others."""

    x0: torch.Tensor
    t: torch.Tensor
    eps: torch.Tensor
    x_t: torch.Tensor


class Operator(ABC):
    """How a group is forgotten. A new one is a small file with a Config and `forget`, registered by `@operator`."""

    id: ClassVar[str]
    summary: ClassVar[str] = ""  # one line: what it does
    Config: ClassVar[type[UnlearnConfig]] = UnlearnConfig
    conditional: ClassVar[bool | None] = False  # False: unconditional models only; True: conditional only; None: any
    regroupable: ClassVar[bool] = True  # False: it needs the data's own groups, so random ones cannot be unlearned

    def __init__(self, teacher: Denoiser, data: ImageData, group: str, config: Any) -> None:
        self.teacher, self.data, self.group, self.config = teacher, data, group, config

    @abstractmethod
    def forget(self, student: Denoiser, forget: Half) -> torch.Tensor:
        """The forget loss, a scalar."""

    def preserve(self, student: Denoiser, retain: Half) -> torch.Tensor:
        with torch.no_grad():
            target = self.teacher.eps(retain.x_t, retain.t)
        return torch.nn.functional.mse_loss(student.eps(retain.x_t, retain.t), target)

    def loss(self, student: Denoiser, forget: Half, retain: Half) -> torch.Tensor:
        return self.config.lambda_forget * self.forget(student, forget) + self.config.lambda_preserve * self.preserve(
            student, retain
        )

    @classmethod
    def fit_evals(cls, config: Any) -> int:
        """Evaluation units per group (SPEC 8): forward + backward 3, the teacher's forward 1."""
        return int(config.steps * (3 * config.batch_forget + (3 + 1) * config.batch_retain))


OPERATORS: dict[str, type[Operator]] = {}


def operator(name: str) -> Callable[[type[Operator]], type[Operator]]:
    """Register an unlearning operator under its method id."""

    def register(cls: type[Operator]) -> type[Operator]:
        cls.id = name
        OPERATORS[name] = cls
        return cls

    return register


def window_range(window: tuple[float, float], T: int) -> tuple[int, int]:
    low, high = round(window[0] * T), round(window[1] * T)
    if not 0 <= low < high <= T:
        raise GudaError(f"window {window}: needs 0 <= from < to <= 1 and at least one timestep of {T}")
    return low, high


def unlearn_group(
    teacher: Denoiser,
    data: ImageData,
    group: str,
    operator_id: str,
    config: Any,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> Counterfactual:
    """theta_full with `group` unlearned."""
    from diffusers.optimization import get_constant_schedule_with_warmup, get_cosine_schedule_with_warmup

    cls = OPERATORS[operator_id]
    if cls.conditional is not None and cls.conditional != teacher.conditional:
        kind = "conditional" if teacher.conditional else "unconditional"
        raise GudaError(f"{operator_id} is not defined for {kind} models; use an anchors-* method for conditional ones")
    k = data.groups.index(group)
    x0 = teacher.encode(data.images)
    rule = cls(teacher, data, group, config)
    student = Student(teacher, config)
    optimizer = torch.optim.AdamW(student.parameters, config.lr, weight_decay=0.0, fused=True)
    schedule = (
        get_cosine_schedule_with_warmup(optimizer, config.warmup, config.steps)
        if config.decay
        else get_constant_schedule_with_warmup(optimizer, config.warmup)
    )
    T = teacher.schedule.T
    sides = (
        ("forget", data.groups.members(k), config.batch_forget, window_range(config.window, T)),
        ("retain", data.groups.without(k), config.batch_retain, (0, T)),
    )

    def half(step: int, side: str, members: np.ndarray, size: int, times: tuple[int, int]) -> Half:
        g = generator(config.seed, "unlearn", group, side, step)
        x = x0[g.choice(members, size, replace=size > len(members))].to(teacher.device)
        t = torch.from_numpy(g.integers(*times, size))
        eps = torch.from_numpy(g.standard_normal(x.shape, dtype=np.float32)).to(teacher.device)
        return Half(x, t.to(teacher.device), eps, teacher.schedule.add_noise(x, eps, t))

    for step in range(config.steps):
        loss = rule.loss(student.denoiser, *(half(step, *side) for side in sides))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.parameters, config.clip)
        optimizer.step()
        schedule.step()
        tick(step + 1, config.steps)
    return student.counterfactual(group, operator_id)
