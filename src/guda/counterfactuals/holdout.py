"""When to stop unlearning: held-out images, and the best of the moments at which their loss was measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from guda.diffusion.noise import generator
from guda.errors import GudaError

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
    """Keeps the state of the lowest loss; says stop after `patience` checks in a row without a lower one."""

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
