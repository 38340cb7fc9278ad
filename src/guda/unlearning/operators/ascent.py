"""ascent: climb the denoising loss of the group's images (gradient ascent, "NegGrad", Golatkar et al. 2020).

    L_forget = mean_i max(0, margin - l_i),   l_i = || eps_theta(x_t, t) - eps ||^2 / D  of forget sample i

An unbounded climb never ends and takes the rest of the model with it. Here a sample stops pushing once its error has
reached `margin`; 1 is the error of a network that predicts 0, i.e. that has no idea of the image.
"""

from __future__ import annotations

import torch
from pydantic import Field

from guda.diffusion.denoiser import Denoiser
from guda.unlearning.unlearn import Batch, FlipsConfig, Operator, operator


class AscentConfig(FlipsConfig):
    margin: float = Field(1.0, gt=0, description="Error per dimension at which a forget sample is forgotten enough.")


@operator("ascent")
class Ascent(Operator):
    Config = AscentConfig
    summary = "unlearn by gradient ascent on the group's denoising loss, up to a margin"
    conditional = None

    def forget(self, student: Denoiser, forget: Batch) -> torch.Tensor:
        error = (student.eps(forget.x_t, forget.t, forget.cond) - forget.eps).square().flatten(1).mean(1)
        return (self.config.margin - error).clamp_min(0).mean()
