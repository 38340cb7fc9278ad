"""The copy of theta_full that an operator trains: which weights are trainable, and what is stored afterwards."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from guda.diffusion.denoiser import Denoiser
from guda.diffusion.lora import adapted, is_adapter
from guda.diffusion.noise import generator
from guda.errors import GudaError
from guda.unlearning.bank import A, B, Counterfactual, Packing


class Student:
    """`denoiser` is what the loss sees, `parameters` what the optimiser moves: everything, or with `store = lora:R`
    the adapters only, whose start is keyed by (config.seed, group). Where the model is a base with a LoRA, that LoRA:
    the student starts as the teacher and becomes a changed LoRA on the same base."""

    def __init__(self, teacher: Denoiser, config: Any, group: str = "") -> None:
        self.teacher, self.config = teacher, config
        self.packing = Packing.parse(config.store)
        # adapters are put beside the teacher's own weights, which do not move
        self.denoiser = teacher.clone(share=self.packing.kind == "lora")
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
        state = self.denoiser.module.state_dict()
        if adapted(self.denoiser.module):  # the rest is shared with the teacher
            state = {k: v for k, v in state.items() if is_adapter(k)}
        weights = self.teacher.weights() | {k: v.detach().cpu().clone() for k, v in state.items()}
        return self.packing.pack(Counterfactual.delta(self.teacher, weights, group, method))

    def state(self) -> list[torch.Tensor]:
        """A copy of what moves, for keeping the best of several moments."""
        return [p.detach().clone() for p in self.parameters]

    @torch.no_grad()
    def restore(self, state: list[torch.Tensor]) -> None:
        for p, value in zip(self.parameters, state, strict=True):
            p.copy_(value)


# ---- When to stop unlearning: held-out images, and the best of the moments at which their loss was measured.
BATCHES = 4  # held-out batches per check, the same noise every time


def split(members: np.ndarray, share: float, what: str, *key: str | int) -> tuple[np.ndarray, np.ndarray]:
    """(used, held out): a keyed choice of `share` of the images, both in their old order."""
    n = round(share * len(members))
    if not 0 < n < len(members):
        raise GudaError(
            "holdout-invalid",
            f"holdout = {share} leaves {n} of the {len(members)} {what} images out; change it or set it to 0",
        )
    held = np.sort(generator(*key, "holdout").choice(members, n, replace=False))
    return np.setdiff1d(members, held), held


@dataclass
class Patience:
    """Keeps the state with the lowest loss; stops after `patience` checks in a row without improvement."""

    patience: int
    loss: float = math.inf
    step: int = 0
    state: list[torch.Tensor] | None = None
    worse: int = 0

    def stop(self, step: int, loss: float, state: Callable[[], list[torch.Tensor]]) -> bool:
        if loss < self.loss:  # a NaN is never lower
            self.loss, self.step, self.state, self.worse = loss, step, state(), 0
        else:
            self.worse += 1
        return self.worse >= self.patience
