"""ESD: steer predictions for the group's images away from the group (Gandikota et al. 2023).

    target = eps_u - g (eps_c - eps_u)          eps_c = eps(x_t, t, label k), eps_u = eps(x_t, t, null label)

eps_c and eps_u come from one group-conditional model with a null label (label dropout 0.1), the same for every group;
the student is the run's unconditional model. In a run it is trained once, as models/conditional-s<seed>, and its cost
(one training: steps x batch x 3 units, in the model's card and under the stage train/conditional) is not part of
`fit_evals`, which counts what each group adds: two forwards of the conditional model per forget sample.
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field

from guda.data.images import ImageData
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.families.base import Cond
from guda.errors import GudaError
from guda.unlearning.unlearn import Batch, FlipsConfig, Operator, operator


class EsdConfig(FlipsConfig):
    guidance: float = Field(5.0, ge=0, description="g: how far from the group's own direction the target is pushed.")


@operator("esd")
class Esd(Operator):
    Config = EsdConfig
    summary = "unlearn by negative guidance of a group-conditional model (ESD)"
    needs_conditional = True
    regroupable = False  # the conditional model knows the data's own groups only

    def __init__(self, teacher: Denoiser, data: ImageData, group: str, config: Any, conditional: Denoiser) -> None:
        super().__init__(teacher, data, group, config)
        labels = len(data.groups) + 1
        if conditional.n_classes != labels:
            raise GudaError(
                "esd-labels-mismatch",
                f"esd needs a conditional model of {labels} labels, one per group and the null label last; "
                f"this one has {conditional.n_classes or 'none'}",
            )
        if conditional.shape != teacher.shape or conditional.schedule.digest != teacher.schedule.digest:
            raise GudaError(
                "esd-model-mismatch",
                "esd's conditional model has another image shape or noise schedule than the model; retrain",
            )
        self.model, self.label, self.null = conditional, data.groups.index(group), labels - 1

    def _eps(self, batch: Batch, label: int) -> torch.Tensor:
        return self.model.eps(batch.x_t, batch.t, Cond({"class_labels": torch.full_like(batch.t, label)}))

    @torch.no_grad()
    def target(self, forget: Batch) -> torch.Tensor:
        with_group, without = self._eps(forget, self.label), self._eps(forget, self.null)
        return without - self.config.guidance * (with_group - without)

    def forget(self, student: Denoiser, forget: Batch) -> torch.Tensor:
        return torch.nn.functional.mse_loss(student.eps(forget.x_t, forget.t), self.target(forget))

    @classmethod
    def step_evals(cls, config: Any, student: int = 3) -> int:
        """The conditional model runs twice on the forget batch, the teacher once on the retain batch."""
        return int((student + 2) * config.batch_forget + (student + 1) * config.batch_retain)
