"""One network, many counterfactuals: weights swapped in place instead of N copies of the model."""

from __future__ import annotations

import torch

from guda.counterfactuals.bank import Counterfactual
from guda.diffusion.denoiser import Denoiser


class Workbench:
    """Holds a base and one working copy of it. `use(c)` turns the copy into counterfactual c; only the weights that the
    last one changed are put back first."""

    def __init__(self, base: Denoiser, digest: str) -> None:
        self.base, self.digest = base, digest
        self._copy = base.clone()
        self._mine = base.weights()
        self._changed: set[str] = set()

    @torch.no_grad()
    def use(self, counterfactual: Counterfactual | None) -> Denoiser:
        """The working copy, valid until the next call."""
        # asked for anew each time: another memory layout gives the working copy other memory
        theirs = self._copy.module.state_dict()
        for name in self._changed:
            theirs[name].copy_(self._mine[name])
        self._changed = set()
        if counterfactual is None:
            return self._copy
        new = counterfactual.changed(self.base, self.digest)
        for name, value in new.items():
            theirs[name].copy_(value)
        self._changed = set(new)
        return self._copy
