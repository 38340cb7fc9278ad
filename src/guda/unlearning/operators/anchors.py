"""GUDA-C: redirect the group's prompts to anchors that keep the object and change the style.

Paper: "Conditional Unlearning Strategy for GUDA-C".

    L_forget = E_{(x_f, c_f) in D_k} || eps_theta(x_t, t, c_f) - eps_full(x_t, t, c_a) ||^2,   the same x_t on both

c_a is drawn anew for every image of every step, by one of three strategies (unlearning/anchors.py). What the
model would have said of "a frog, in the style that left" had it never seen that style is what it says of a frog in a
style that it keeps.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field

from guda.data.classes import Classes
from guda.data.images import ImageData
from guda.data.prompts import Prompts
from guda.data.text import text_encoder
from guda.diffusion.denoiser import Denoiser
from guda.errors import GudaError
from guda.unlearning.anchors import Anchor, AnchorsConfig, Labels, Strategy, make_anchor, need_null
from guda.unlearning.unlearn import Batch, FlipsConfig, Operator, operator


class AnchorsUnlearnConfig(FlipsConfig, AnchorsConfig):
    """Defaults are the paper's, for Stable Diffusion."""

    steps: int = Field(2000, gt=0, description="Optimiser steps per group.")
    lr: float = Field(2e-6, gt=0, description="Peak learning rate (AdamW).")
    batch_forget: int = Field(2, gt=0, description="Images of the group per step.")
    batch_retain: int = Field(2, gt=0, description="Images of the other groups per step.")
    lambda_preserve: float = Field(2.0, ge=0, description="Weight of the preservation loss.")


class Anchors(Operator):
    Config = AnchorsUnlearnConfig
    conditional = True
    by_label = True
    needs_prompts = True
    regroupable = False  # a random group has no style to be redirected from
    strategy: ClassVar[Strategy]

    def __init__(self, teacher: Denoiser, data: ImageData, group: str, config: Any, prompts: Prompts | Classes) -> None:
        super().__init__(teacher, data, group, config)
        self.anchor: Anchor
        if isinstance(prompts, Classes):
            gone = prompts.emptied(data.groups, group)
            left = [c for c in prompts.names if c not in gone]
            known = label_embeddings(teacher) if self.strategy == "weighted" else np.ones((1, 1))
            self.anchor = Labels(self.strategy, gone, left, known, prompts.null, config)
            return
        retain = [style for style in data.groups.leaf_names if style != group]
        embed = text_encoder(config.encoder) if self.strategy == "weighted" else None
        self.anchor = make_anchor(
            self.strategy, prompts.vocabularies, group, retain, embed, config, frozenset(prompts.objects)
        )

    def anchors(self, forget: Batch) -> list[str]:
        """A new prompt for every image of the batch; the draw is keyed by the batch and the place in it."""
        return [self.anchor.draw(prompt, (*forget.key, "anchor", i)) for i, prompt in enumerate(forget.prompts)]

    @torch.no_grad()
    def target(self, forget: Batch) -> torch.Tensor:
        told = self.teacher.condition(self.anchors(forget))
        assert told is not None
        return self.teacher.eps(forget.x_t, forget.t, told.to(self.teacher.device))

    def forget(self, student: Denoiser, forget: Batch) -> torch.Tensor:
        return torch.nn.functional.mse_loss(student.eps(forget.x_t, forget.t, forget.cond), self.target(forget))

    @classmethod
    def step_evals(cls, config: Any, student: int = 3) -> int:
        """The teacher runs on both batches."""
        return int((student + 1) * (config.batch_forget + config.batch_retain))


def label_embeddings(model: Denoiser) -> np.ndarray:
    """What the network makes of each label, [labels, d]."""
    modules = list(model.module.modules())
    found = [m for m in modules if isinstance(m, torch.nn.Embedding) and m.num_embeddings == model.n_classes]
    if len(found) != 1:
        raise GudaError(
            "label-embedding-unknown",
            f"{type(model.module).__name__} has no table of label embeddings; use anchors-uniform or continuation",
        )
    return np.asarray(found[0].weight.detach().cpu().double().numpy())


@operator("anchors-weighted")
class Weighted(Anchors):
    summary = "conditional models: redirect the group's prompts (or class) to similar styles (classes) (GUDA-C)"
    strategy = "weighted"


@operator("anchors-uniform")
class Uniform(Anchors):
    summary = "conditional models: redirect the group's prompts (or class) to any other style (class)"
    strategy = "uniform"


@operator("anchors-removed")
class Removed(Anchors):
    summary = (
        "conditional models: redirect the group's prompts (or class) to themselves without a style (the null label)"
    )
    strategy = "removed"

    @classmethod
    def check_classes(cls, config: Any, classes: Classes) -> None:
        need_null(classes.null)
