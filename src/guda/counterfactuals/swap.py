"""One network, many counterfactuals: weights swapped in place instead of N copies of the model."""

from __future__ import annotations

import torch

from guda.counterfactuals.bank import Counterfactual
from guda.diffusion.denoiser import Denoiser
from guda.errors import Mismatch


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
        if counterfactual.kind == "weights":
            self.base.check_weights(counterfactual.tensors, f"the model without {counterfactual.group!r}")
        elif counterfactual.base != self.digest:
            raise Mismatch(
                f"counterfactual without {counterfactual.group!r}: base model", counterfactual.base, self.digest,
                "a delta fits only the model it was made from; fit again",
            )  # fmt: skip
        for name, value in counterfactual.tensors.items():
            new = value if counterfactual.kind == "weights" else self._mine[name] + value.to(self._mine[name])
            theirs[name].copy_(new)
            self._changed.add(name)
        return self._copy
