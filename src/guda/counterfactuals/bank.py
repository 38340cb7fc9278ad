"""Counterfactuals and where they are kept: theta without group k, stored as what changed, bound to its base.

A Counterfactual is `apply(denoiser) -> Denoiser`. An unlearned model is a dense delta on its base; a LOGO retraining
is a set of weights of its own. Each is one safetensors file whose header says which group, which base and by what
it was made; a delta is refused on any other base.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from guda.diffusion.denoiser import Denoiser, weights_digest
from guda.errors import GudaError, Mismatch
from guda.runs.store import digest, read_tensors, write_tensors


@dataclass(frozen=True)
class Counterfactual:
    """`tensors` are differences to the base's weights (kind "delta") or the weights themselves ("weights")."""

    kind: str
    group: str
    base: str  # digest of the base's weights
    method: str
    tensors: dict[str, torch.Tensor]

    @classmethod
    def delta(cls, base: Denoiser, weights: Mapping[str, torch.Tensor], group: str, method: str) -> Counterfactual:
        old = base.weights()
        base.check_weights(weights, f"the counterfactual of {group!r}")
        tensors = {k: v.cpu() - old[k].cpu() for k, v in weights.items() if not torch.equal(v.cpu(), old[k].cpu())}
        return cls("delta", group, base.digest(), method, tensors)

    def apply(self, base: Denoiser) -> Denoiser:
        """The counterfactual network; `base` is left alone."""
        if self.kind == "weights":
            return base.with_weights(self.tensors)
        if base.digest() != self.base:
            raise Mismatch(
                f"counterfactual without {self.group!r}: base model", self.base, base.digest(),
                "a delta fits only the model it was made from; fit again",
            )  # fmt: skip
        old = base.weights()
        return base.with_weights({k: v + self.tensors[k].to(v) if k in self.tensors else v for k, v in old.items()})

    def save(self, path: Path) -> None:
        header = {"kind": self.kind, "group": self.group, "base": self.base, "method": self.method}
        write_tensors(path, self.tensors, header | {"digest": digest([header, weights_digest(self.tensors)], 64)})

    @classmethod
    def load(cls, path: Path) -> Counterfactual:
        tensors, header = read_tensors(path)
        try:
            found = cls(header["kind"], header["group"], header["base"], header["method"], tensors)
        except KeyError as e:
            raise GudaError(f"{path} is not a counterfactual of guda: its header has no {e}") from None
        if found.kind not in ("delta", "weights"):
            raise GudaError(f"{path}: unknown kind of counterfactual {found.kind!r}")
        recorded = header.pop("digest", None)
        if (actual := digest([header, weights_digest(tensors)], 64)) != recorded:  # of weights and header
            raise Mismatch(f"{path} is damaged: digest", actual, recorded, "delete it and fit again")
        return found


FILES = "[0-9]*.safetensors"


def file_name(number: int, group: str) -> str:
    """A file name for any group name: the number makes it unique, the text readable."""
    return f"{number:04d}-{re.sub(r'[^A-Za-z0-9.-]+', '_', group)[:40]}.safetensors"


class Bank(Mapping[str, Counterfactual]):
    """One counterfactual per group, in group order."""

    def __init__(self, items: Mapping[str, Counterfactual]) -> None:
        self._items = dict(items)

    def __getitem__(self, group: str) -> Counterfactual:
        if group not in self._items:
            raise GudaError(f"the bank has no counterfactual without {group!r}; it has {', '.join(self._items)}")
        return self._items[group]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def save(self, folder: str | Path) -> None:
        names = {file_name(number, group): item for number, (group, item) in enumerate(self._items.items())}
        if other := sorted({f.name for f in Path(folder).glob(FILES)} - names.keys()):
            raise GudaError(f"{folder} holds another bank ({other[0]}); save to a new folder")
        for name, item in names.items():
            item.save(Path(folder) / name)

    @classmethod
    def load(cls, folder: str | Path) -> Bank:
        files = sorted(Path(folder).glob(FILES))
        if not files:
            raise GudaError(f"{folder} holds no counterfactuals; make them with: guda fit")
        loaded = [Counterfactual.load(f) for f in files]
        if len(groups := {item.group for item in loaded}) != len(loaded):
            raise GudaError(
                f"{folder} holds {len(loaded)} counterfactuals of {len(groups)} groups; two banks are mixed"
            )
        return cls({item.group: item for item in loaded})
