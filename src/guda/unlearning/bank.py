"""Counterfactual models and the bank that stores them: theta without group k, as a change to its base model.

A Counterfactual is `apply(denoiser) -> Denoiser`. An unlearned model is a change to its base, whole or factored; a
LOGO retraining is a set of weights of its own. Each is one safetensors file whose header says which group, which base
and by what it was made; a change is refused on any other base.

How it is stored is the setting `store`:

    fp32           the whole change                                    1      of a full copy on disk
    bf16           the whole change, rounded to 8 bits (rel. 2^-8)     1/2
    lowrank:R      factors of its truncated SVD                        r (out + in) / (out in) per matrix
    lora:R         only factors were trained                           the same, and nothing for biases and norms
    ...:bf16       factors rounded as well                             half of that
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import AfterValidator
from torch import nn

from guda.data.images import ImageData
from guda.diffusion.denoiser import Denoiser, weights_digest
from guda.diffusion.lora import adapted, is_adapter, targets
from guda.errors import GudaError, Mismatch
from guda.files import digest, read_header, read_tensors, write_tensors

KINDS = ("delta", "lowrank", "lora", "weights")


@dataclass(frozen=True)
class Counterfactual:
    """`tensors` are differences to the base's weights, whole (kind "delta") or some of them as two factors ("lowrank",
    "lora"), or the weights themselves ("weights"): all of them without a base, or the LoRA of one. They are added in
    the base's precision whatever their own."""

    kind: str
    group: str
    base: str  # digest of the base's weights
    method: str
    tensors: dict[str, torch.Tensor]
    about: dict[str, int] = field(default_factory=dict)  # "rank", and "alpha" of an adapter

    @classmethod
    def delta(cls, base: Denoiser, weights: Mapping[str, torch.Tensor], group: str, method: str) -> Counterfactual:
        old = base.weights()
        base.check_weights(weights, f"the counterfactual of {group!r}")
        tensors = {k: v.cpu() - old[k].cpu() for k, v in weights.items() if not torch.equal(v.cpu(), old[k].cpu())}
        return cls("delta", group, base.digest(), method, tensors)

    @torch.no_grad()
    def changed(self, base: Denoiser, known: str | None = None) -> dict[str, torch.Tensor]:
        """The new values of the weights that change. `known`: the base's digest, where it was computed before."""
        where, old = f"the model without {self.group!r}", base.weights()
        if self.kind == "weights" and not self.base:
            base.check_weights(self.tensors, where)
            return {k: v.to(old[k]) for k, v in self.tensors.items()}
        if (known := known or base.digest()) != self.base:
            raise Mismatch(
                "base-model-mismatch", f"counterfactual without {self.group!r}: base model", self.base, known,
                "a delta fits only the model it was made from; fit again",
            )  # fmt: skip
        if self.kind == "weights":
            base.check_weights(old | self.tensors, where)
            return {k: v.to(old[k]) for k, v in self.tensors.items()}
        scale = self.about["alpha"] / self.about["rank"] if self.kind == "lora" else 1.0
        return {k: old[k] + v.to(old[k]) for k, v in changes(self.tensors, old, scale, where)}

    def apply(self, base: Denoiser) -> Denoiser:
        """The counterfactual network; `base` is left alone."""
        return base.with_weights(base.weights() | self.changed(base))

    def header(self) -> dict[str, Any]:
        header = {"kind": self.kind, "group": self.group, "base": self.base, "method": self.method}
        return header | ({"about": self.about} if self.about else {})

    def digest(self) -> str:
        """Identity of header and weights."""
        # numpy has no bfloat16; the same bits under another name
        plain = {k: v.view(torch.int16) if v.dtype == torch.bfloat16 else v for k, v in self.tensors.items()}
        return digest([self.header(), weights_digest(plain)], 64)

    def save(self, path: Path) -> None:
        write_tensors(path, self.tensors, self.header() | {"digest": self.digest()})

    @classmethod
    def load(cls, path: Path) -> Counterfactual:
        tensors, header = read_tensors(path)
        found = cls(**_fields(header, path), tensors=tensors)
        if (actual := found.digest()) != header.get("digest"):
            raise Mismatch(
                "counterfactual-damaged",
                f"{path} is damaged: digest",
                actual,
                header.get("digest"),
                "delete it and fit again",
            )
        return found


def _fields(header: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """What a header says of a counterfactual."""
    try:
        found = {name: header[name] for name in ("kind", "group", "base", "method")}
    except KeyError as e:
        raise GudaError(
            "counterfactual-invalid", f"{path} is not a counterfactual of guda: its header has no {e}"
        ) from None
    if found["kind"] not in KINDS:
        raise GudaError("counterfactual-kind-unknown", f"{path}: unknown kind of counterfactual {found['kind']!r}")
    about = header.get("about", {})
    needed = {"lowrank": ("rank",), "lora": ("rank", "alpha")}.get(found["kind"], ())
    if not isinstance(about, dict) or not all(isinstance(about.get(name), int) and about[name] > 0 for name in needed):
        raise GudaError(
            "counterfactual-damaged",
            f"{path} is damaged: its header lacks {' and '.join(needed)}; delete it and fit again",
        )
    return found | {"about": about}


@dataclass(frozen=True)
class Card:
    """A stored counterfactual seen from outside: its header, without reading the weights."""

    kind: str
    group: str
    base: str
    method: str
    about: dict[str, int]
    dtype: str  # of the stored numbers

    @classmethod
    def read(cls, path: Path) -> Card:
        header, dtypes = read_header(path)
        return cls(**_fields(header, path), dtype=dtype_text(dtypes))


def dtype_text(dtypes: Mapping[str, str]) -> str:
    return "+".join(sorted({d.lower().replace("f32", "fp32") for d in dtypes.values()})) or "-"


FILES = "[0-9]*.safetensors"

CONTROL_FILE = "control.safetensors"  # what the groups of a coupled operator are compared with


def file_name(number: int, group: str) -> str:
    """A file name for any group name: the number makes it unique, the text readable."""
    return f"{number:04d}-{re.sub(r'[^A-Za-z0-9.-]+', '_', group)[:40]}.safetensors"


class Bank(Mapping[str, Counterfactual]):
    """One counterfactual per group, in group order. `data` and `prompts`: the training images it was made from and what
    a text-to-image model is told of each, where they are still known; they are not saved with it. `control`: what the
    groups are compared with, if not the base itself."""

    def __init__(
        self, items: Mapping[str, Counterfactual], data: ImageData | None = None, prompts: Sequence[str] | None = None,
        control: Counterfactual | None = None,
    ) -> None:  # fmt: skip
        self._items, self.data, self.prompts, self.control = dict(items), data, prompts, control

    def __getitem__(self, group: str) -> Counterfactual:
        if group not in self._items:
            raise GudaError(
                "counterfactual-missing",
                f"the bank has no counterfactual without {group!r}; it has {', '.join(self._items)}",
            )
        return self._items[group]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def save(self, folder: str | Path) -> None:
        names = {file_name(number, group): item for number, (group, item) in enumerate(self._items.items())}
        there = {f.name for kind in (FILES, CONTROL_FILE) for f in Path(folder).glob(kind)}
        names |= {} if self.control is None else {CONTROL_FILE: self.control}
        if other := sorted(there - names.keys()):
            raise GudaError("bank-folder-taken", f"{folder} holds another bank ({other[0]}); save to a new folder")
        for name, item in names.items():
            item.save(Path(folder) / name)

    @classmethod
    def load(cls, folder: str | Path) -> Bank:
        files = sorted(Path(folder).glob(FILES))
        if not files:
            raise GudaError("bank-empty", f"{folder} holds no counterfactuals; make them with: guda fit")
        loaded = [Counterfactual.load(f) for f in files]
        if len(groups := {item.group for item in loaded}) != len(loaded):
            raise GudaError(
                "bank-mixed",
                f"{folder} holds {len(loaded)} counterfactuals of {len(groups)} groups; two banks are mixed",
            )
        control = Path(folder) / CONTROL_FILE
        found = Counterfactual.load(control) if control.is_file() else None
        return cls({item.group: item for item in loaded}, control=found)


# ---- One network, many counterfactuals: weights swapped in place instead of N copies of the model.
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


# ---- A weight's change as a product of two thin matrices.
B, A = "@B", "@A"  # no state dict has an @ in its names


def factors_numel(shape: Sequence[int], rank: int) -> int:
    return rank * (shape[0] + prod(shape[1:]))


def pays(shape: Sequence[int], rank: int) -> bool:
    """Whether two factors are smaller than the matrix; biases and norms never are."""
    return len(shape) > 1 and factors_numel(shape, rank) < prod(shape)


def factor(change: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """B and A of the best approximation of rank `rank`. The singular values are shared evenly between the two, so that
    neither needs more range than the other when they are rounded."""
    u, s, v = torch.linalg.svd(change.double().flatten(1), full_matrices=False)
    root = s[:rank].sqrt()
    return (u[:, :rank] * root).to(change.dtype), (root[:, None] * v[:rank]).to(change.dtype)


def compress(changes: Mapping[str, torch.Tensor], rank: int) -> dict[str, torch.Tensor]:
    """Factors where they are smaller, the change itself elsewhere."""
    found = {}
    for name, change in changes.items():
        if change.is_floating_point() and pays(change.shape, rank):
            found[name + B], found[name + A] = factor(change, rank)
        else:
            found[name] = change
    return found


def changes(
    tensors: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor], scale: float, where: str
) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, dW) of every stored change, shaped as in `weights`; factors give scale * B A."""
    for key, value in tensors.items():
        name = key.removesuffix(B).removesuffix(A)
        if name not in weights:
            raise GudaError("weights-mismatch", f"{where} does not fit this network: it has no weight {name!r}")
        shape = weights[name].shape
        if key == name:
            if value.shape != shape:
                raise GudaError(
                    "weight-shape-mismatch",
                    f"{where}: {name!r} is {tuple(value.shape)}, the network has {tuple(shape)}",
                )
            yield name, value
            continue
        b, a = tensors.get(name + B), tensors.get(name + A)
        if a is None or b is None:
            raise GudaError("factor-missing", f"{where}: {name!r} has one factor of two; make it again")
        if b.ndim != 2 or len(shape) < 2 or (b.shape[0], *a.shape) != (shape[0], b.shape[1], prod(shape[1:])):
            sizes = f"{tuple(b.shape)} x {tuple(a.shape)}"
            raise GudaError(
                "factor-shape-mismatch", f"{where}: factors of {name!r} are {sizes}, the network has {tuple(shape)}"
            )
        if key.endswith(B):
            # in float64 on the CPU: once rounded, the result does not tell how many threads summed it
            yield name, (scale * (b.double() @ a.double())).float().reshape(shape)


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Packing:
    kind: str  # of counterfactual: delta, lowrank, lora
    dtype: torch.dtype
    rank: int = 0

    @classmethod
    def parse(cls, text: str) -> Packing:
        if text in DTYPES:
            return cls("delta", DTYPES[text])
        found = re.fullmatch(r"(lowrank|lora):([1-9]\d{0,5})(?::(fp32|bf16))?", text)
        if found is None:
            raise GudaError(
                "store-invalid",
                f"store {text!r} is none of fp32, bf16, lowrank:RANK, lora:RANK (or RANK:bf16), e.g. lora:4",
            )
        return cls(found[1], DTYPES[found[3] or "fp32"], int(found[2]))

    def round(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {k: v.to(self.dtype) if v.is_floating_point() else v for k, v in tensors.items()}

    def pack(self, delta: Counterfactual) -> Counterfactual:
        """A whole change, as this packing keeps it."""
        if self.kind == "delta":
            return replace(delta, tensors=self.round(delta.tensors))
        if self.kind == "lora":
            raise GudaError(
                "store-lora-unsupported",
                "a LoRA adapter is trained, not made from a finished change; use store = lowrank:RANK",
            )
        tensors = self.round(compress(delta.tensors, self.rank))
        return replace(delta, kind="lowrank", tensors=tensors, about={"rank": self.rank})


def _known(text: str) -> str:
    try:
        Packing.parse(text)
    except GudaError as e:
        raise ValueError(str(e)) from None  # what pydantic reports with the name of the field
    return text


Store = Annotated[str, AfterValidator(_known)]  # a setting's text


def full_bytes(module: nn.Module) -> int:
    """A copy of the whole network in fp32."""
    return 4 * sum(v.numel() for v in module.state_dict().values())


def bank_fraction(network: Denoiser | nn.Module, store: str) -> float:
    """Bytes of one counterfactual that changes everything it can, over the bytes of a full fp32 copy. Only shapes are
    looked at: build the network on torch.device("meta") and nothing is allocated."""
    module = network.module if isinstance(network, Denoiser) else network
    packing, shapes = Packing.parse(store), {k: v.shape for k, v in module.state_dict().items()}
    if adapted(module):  # of a base with a LoRA nothing else ever changes
        shapes = {k: shape for k, shape in shapes.items() if is_adapter(k)}
    if packing.kind == "lora" and not adapted(module):
        numbers = sum(factors_numel(shapes[f"{name}.weight"], packing.rank) for name in targets(module))
    else:
        thin = packing.kind == "lowrank"
        numbers = sum(
            factors_numel(s, packing.rank) if thin and pays(s, packing.rank) else s.numel() for s in shapes.values()
        )
    return numbers * packing.dtype.itemsize / full_bytes(module)
