"""Was a model trained long enough? What its recorded loss says: means over each percent of the training.

A model that is still learning is not the one that its owner will use, and what it makes of one group's absence changes
with every further step. Compared are the third last and the last tenth of the curve:

    fall = (mean of 0.7-0.8 - mean of 0.9-1.0) / mean of 0.9-1.0

Training ends with a small learning rate, which brings the loss down a little in every healthy training (5 % on the
digits recipe, less on CIFAR-10), so only a fall of more than 10 % that is also more than four standard errors counts.
No news is not good news: a flat curve does not show that the model is any good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST_FALL = 0.10

ERRORS = 4.0  # standard errors of the fall

FEWEST = 30  # points of the curve; below that a tenth is one or two of them


@dataclass(frozen=True)
class Falling:
    """The loss was still falling when training ended."""

    fall: float  # of the last loss, over the last fifth of the training

    @property
    def text(self) -> str:
        return (
            f"the model may not be trained enough: its loss still fell by {self.fall:.0%} in the last fifth of the "
            "training; train longer (training.steps) before you believe its scores"
        )


def still_falling(losses: Sequence[float]) -> Falling | None:
    """From mean losses in order; None: it is not, or they are too few to tell."""
    n = len(losses)
    if n < FEWEST:
        return None
    values = np.asarray(losses, np.float64)
    before, last = values[int(0.7 * n) : int(0.8 * n)], values[int(0.9 * n) :]
    if not np.isfinite(values).all() or last.mean() <= 0:
        return None
    fall = float((before.mean() - last.mean()) / last.mean())
    error = float(np.sqrt(before.var(ddof=1) / len(before) + last.var(ddof=1) / len(last)) / last.mean())
    return Falling(fall) if fall > LEAST_FALL and fall > ERRORS * error else None
