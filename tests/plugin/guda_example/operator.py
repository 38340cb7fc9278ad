"""An unlearning operator: on images of the group, the model learns to predict unrelated noise.

L_forget = E || eps_theta(x_t, t) - strength z ||^2,  z ~ N(0, I) independent of x_t
"""

import numpy as np
import torch
from pydantic import Field

from guda.diffusion.denoiser import Denoiser
from guda.diffusion.noise import generator
from guda.unlearning.unlearn import Batch, Operator, UnlearnConfig, operator


class ScrambleConfig(UnlearnConfig):
    strength: float = Field(1.0, gt=0, description="Standard deviation of the noise that is predicted.")


@operator("scramble")
class Scramble(Operator):
    Config = ScrambleConfig
    summary = "unlearn by predicting unrelated noise for the group's images"

    def forget(self, student: Denoiser, forget: Batch) -> torch.Tensor:
        # keyed like the batch: the same run gives the same bytes
        z = generator(*forget.key, "scramble").standard_normal(tuple(forget.eps.shape), dtype=np.float32)
        target = self.config.strength * torch.from_numpy(z).to(forget.eps)
        return torch.nn.functional.mse_loss(student.eps(forget.x_t, forget.t), target)
