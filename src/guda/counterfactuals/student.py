"""The copy of theta_full that an operator changes: which of its weights move, and what is kept of it afterwards."""

from __future__ import annotations

from typing import Any

import torch

from guda.counterfactuals.bank import Counterfactual
from guda.counterfactuals.lowrank import A, B
from guda.counterfactuals.packing import Packing
from guda.diffusion.denoiser import Denoiser


class Student:
    """`denoiser` is what the loss sees, `parameters` what the optimiser moves: everything, or with `store = lora:R`
    the adapters only, whose start is keyed by (config.seed, group)."""

    def __init__(self, teacher: Denoiser, config: Any, group: str = "") -> None:
        self.teacher, self.config = teacher, config
        self.packing = Packing.parse(config.store)
        self.denoiser = teacher.clone()
        if self.packing.kind == "lora":
            from guda.diffusion.lora import wrap

            wrap(self.denoiser.module, self.packing.rank, config.seed, "lora", group)
        self.parameters = [p for p in self.denoiser.module.parameters() if p.requires_grad]

    def counterfactual(self, group: str, method: str) -> Counterfactual:
        """What changed, ready for the bank."""
        self.denoiser.check_finite(f"unlearning {group!r} with {method}", "it diverged: lower the learning rate")
        if self.packing.kind == "lora":
            from guda.diffusion.lora import factors

            tensors: dict[str, torch.Tensor] = {}
            for name, b, a in factors(self.denoiser.module):
                tensors |= self.packing.round({name + B: b, name + A: a})
            about = {"rank": self.packing.rank, "alpha": self.packing.rank}
            return Counterfactual("lora", group, self.teacher.digest(), method, tensors, about)
        weights = {k: v.detach().cpu().clone() for k, v in self.denoiser.module.state_dict().items()}
        return self.packing.pack(Counterfactual.delta(self.teacher, weights, group, method))

    def state(self) -> list[torch.Tensor]:
        """A copy of what moves, for keeping the best of several moments."""
        return [p.detach().clone() for p in self.parameters]

    @torch.no_grad()
    def restore(self, state: list[torch.Tensor]) -> None:
        for p, value in zip(self.parameters, state, strict=True):
            p.copy_(value)
