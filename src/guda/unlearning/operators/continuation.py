"""continuation: continue the model's own training a little, once with every group left out of the loss.

    L_k = sum_i m_i l_i / sum_i m_i,   l_i = mean_dims (target_i - network(x_t, t, c)_i)^2,   m_i = 0 if image i is in k

Everything else is shared: a step's images, timesteps, noise and dropped prompts are a function of (seed, step) and not
of the group, and a control, for which no image is left out, takes the same steps. A group's change is measured against
the control: what further training does by itself happens to both and cancels. Learning rate, batch, clipping, weight
decay, flips and prompt dropout are those of the recipe's training unless they are set; the optimiser begins afresh.

It tells how the model moves once a group is gone, for every picture and not only for those whose prompt names the
group; 80 steps are far from the retrained model, so sizes are smaller than a retraining's.

short: the same from the pretrained start that the full model was fine-tuned from, a short retraining.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field, model_validator

from guda.config import TrainingConfig
from guda.data.images import ImageData
from guda.diffusion.denoiser import Denoiser
from guda.errors import GudaError
from guda.unlearning.unlearn import CONTROL, Batch, BatchSampler, Operator, UnlearnConfig, operator

AS_TRAINED = "; null: as the recipe's training."

PLAIN = {"clip": 1.0, "weight_decay": 0.0, "prompt_dropout": 0.0, "flips": False}  # without a training to ask


class ContinuationConfig(UnlearnConfig):
    """`batch_forget`, `batch_retain`, the two `lambda` and `window` have no part in it."""

    steps: int = Field(80, gt=0, description="Optimiser steps per group, and of the control.")
    lr: float | None = Field(None, gt=0, description="Peak learning rate (AdamW)" + AS_TRAINED)  # type: ignore[assignment]
    decay: bool = Field(True, description="Decay the learning rate to zero along a cosine.")
    warmup: int = Field(5, ge=0, description="Steps of linear warm-up; must be short against `steps`.")
    batch: int | None = Field(None, gt=0, description="Images per step, those of the group included" + AS_TRAINED)
    clip: float | None = Field(None, gt=0, description="Gradient norm is clipped to this" + AS_TRAINED)  # type: ignore[assignment]
    weight_decay: float | None = Field(None, ge=0, description="AdamW weight decay" + AS_TRAINED)
    prompt_dropout: float | None = Field(
        None, ge=0, lt=1, description="Share of images that are shown with the empty prompt" + AS_TRAINED
    )
    flips: bool | None = Field(None, description="Random horizontal flips" + AS_TRAINED)

    @model_validator(mode="after")
    def _coupled(self) -> ContinuationConfig:
        if self.holdout:
            raise ValueError("holdout would stop groups and control at different steps; leave it 0")
        return self


class Shared(BatchSampler):
    """Batches of all images, the same for every group."""

    def key(self, config: Any, group: str, *when: str | int) -> tuple[str | int, ...]:
        return (config.seed, "continuation", *when)


@operator("continuation")
class Continuation(Operator):
    Config: ClassVar[type[UnlearnConfig]] = ContinuationConfig
    summary = "continue the training without the group, against a control that continues with it"
    conditional = None
    coupled = True

    def __init__(self, teacher: Denoiser, data: ImageData, group: str, config: Any) -> None:
        super().__init__(teacher, data, group, config)
        groups = data.groups
        self.kept = np.ones(groups.n_images, bool) if group == CONTROL else ~groups.membership[:, groups.index(group)]

    @classmethod
    def settle(cls, config: Any, training: TrainingConfig | None) -> Any:
        known = PLAIN if training is None else training.model_dump()
        names = ("lr", "batch", "clip", "weight_decay", "prompt_dropout", "flips")
        found = {name: known.get(name) if getattr(config, name) is None else getattr(config, name) for name in names}
        if missing := [name for name in ("lr", "batch") if found[name] is None]:
            raise GudaError(
                "continuation-training-unknown",
                f"{cls.id} continues the model's training, of which {' and '.join(missing)} are not known here; set "
                f"them (methods.{cls.id}.{missing[0]}), or give a recipe with a `training` section",
            )
        return config.model_copy(update=found)

    def samplers(self) -> list[BatchSampler]:
        return [Shared("all", np.arange(len(self.kept)), self.config.batch, (0, self.teacher.schedule.T))]

    def loss(self, student: Denoiser, forget: Batch, retain: Batch | None = None) -> torch.Tensor:
        batch = forget  # of all groups
        target = student.target(batch.x0, batch.eps, batch.t)
        each = (student.raw(batch.x_t, batch.t, batch.cond) - target).square().flatten(1).mean(1)
        assert batch.index is not None
        counted = torch.from_numpy(self.kept[batch.index]).to(each)
        return (counted * each).sum() / counted.sum().clamp_min(1.0)  # a batch of nothing but the group teaches nothing

    @classmethod
    def step_evals(cls, config: Any, student: int = 3) -> int:
        return int(student * config.batch)


@operator("short")
class Short(Continuation):
    summary = "a short retraining from the pretrained start without the group, against one with it"
    from_start = True
