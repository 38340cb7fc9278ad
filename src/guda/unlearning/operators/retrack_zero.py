"""retrack-zero: what the public release of ReTrack does in effect.

    L_forget = mean( eps_theta(x_t, t)^2 )

Its softmax exponentiates exponents near -D/2 in float32; every weight underflows to 0 and with them the target, so the
forget images are sent to the prediction 0. Kept to reproduce figures made with it.
"""

from __future__ import annotations

import torch

from guda.diffusion.denoiser import Denoiser
from guda.unlearning.unlearn import Batch, FlipsConfig, Operator, operator


@operator("retrack-zero")
class RetrackZero(Operator):
    Config = FlipsConfig
    summary = "unlearn by sending forget images to the prediction 0 (the public release's effective loss)"

    def forget(self, student: Denoiser, forget: Batch) -> torch.Tensor:
        return student.eps(forget.x_t, forget.t).square().mean()
