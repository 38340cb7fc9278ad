"""Training-free counterfactuals: the full model's prediction plus the change of the optimal denoiser of the data.

    x0_hat_-k(x_t) = x0_hat_full(x_t) + change_k(x_t),      change_k = m_-k(x_t) - m_full(x_t)      (density.py)

or, in eps, eps_full + (a/s)(m_full - m_-k): the posterior shift (operators/shift.py), added at scoring time instead of
being trained into a network. One evaluation of the full model and of the density serves every group. One safetensors
file holds the rule of all groups; a density of the images themselves holds no numbers, they are read from the run.
The rule of any other set of images is a file of its own, which has one member, number 0.

The densities are in density.py, projection.py and patches.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, ValidationError, model_validator

from guda.config import Config
from guda.data.classes import class_numbers
from guda.data.images import ImageData
from guda.diffusion.denoiser import Denoiser, weights_digest
from guda.diffusion.families.base import Cond
from guda.errors import GudaError, Mismatch
from guda.files import digest, read_tensors, write_tensors
from guda.unlearning.bank import Bank, Counterfactual
from guda.unlearning.density import (
    ClassRemoval,
    Density,
    GaussianDensity,
    GaussianRemoval,
    ImageDensity,
    Removal,
    fit_gaussians,
)  # fmt: skip
from guda.unlearning.patches import PatchDensity, fit_windows, halves_at, refuse_classes
from guda.unlearning.projection import Projected, fit_projection, project
from guda.unlearning.unlearn import window_range

RULE = "rule.safetensors"  # every rule's file is called so

CLASS = "class"  # begins the names of tensors of one class, as class3.mean

LEFT = "left."  # begins the names of tensors of what is left once images are removed


class RuleConfig(Config):
    omitted: ClassVar = {"directions": (None,)}

    density: Literal["gaussians", "images", "patches"] = Field(
        "gaussians",
        description="What the data are taken for: a few Gaussians per group, the images themselves, or their patches.",
    )
    components: int = Field(2, gt=0, description="Gaussians per group.")
    shrink: float = Field(0.3, ge=0, le=1, description="Share of the pooled covariance in each Gaussian's own.")
    floor: float = Field(1e-3, gt=0, description="Added to every variance; images are in [-1, 1].")
    bandwidth: float = Field(
        0.0, ge=0, description="Width of the kernel around each image or patch (density: images, patches)."
    )
    directions: int | None = Field(
        None,
        gt=0,
        description="Principal directions of all images along which groups differ (density: gaussians); in all others "
        "they share one Gaussian. For groups of few images, and for images of more than 4,096 numbers. Default: all.",
    )
    window: tuple[float, float] = Field(
        (0.0, 1.0), description="Timesteps where the prediction moves, as fractions of T: [from, to)."
    )
    seed: int = Field(0, ge=0, description="Seed of k-means.")

    @model_validator(mode="after")
    def _directions(self) -> RuleConfig:
        if self.directions is not None and self.density != "gaussians":
            raise ValueError("directions are for density: gaussians; remove them")
        return self


def refuse_conditional(base: Denoiser, data: ImageData) -> None:
    """Given a prompt or class of the group, nothing is left of the posterior once the group is gone."""
    classes = None if base.n_classes is None else class_numbers(data, base.n_classes)
    if base.frozen is not None or (classes is not None and classes.are_groups(data.groups, data.groups.leaf_names)):
        raise GudaError(
            "posterior-conditional-model",
            "posterior is not defined for text-to-image models and for groups that are whole classes; use "
            "anchors-weighted or continuation",
        )


def fit_rule(
    base: Denoiser, data: ImageData, config: RuleConfig, removed: np.ndarray | None = None
) -> dict[str, torch.Tensor]:  # fmt: skip
    """What the rule's file holds. `removed`: images (numbers) that are taken out instead of the data's groups."""
    refuse_conditional(base, data)
    if removed is not None and base.n_classes is not None:
        raise GudaError(
            "posterior-class-placebos",
            "within classes posterior removes the data's own groups only; leave --placebos, or use retrack",
        )
    which = {} if removed is None else {"removed": torch.from_numpy(np.asarray(removed, np.int64))}
    if config.density == "images":
        return which or {"groups": torch.arange(len(data.groups))}
    if config.density == "patches":
        if base.n_classes is not None:
            refuse_classes(config.density)
        return fit_windows(base, base.encode(data.images).to(base.device), config.seed, config.bandwidth) | which
    x0, shared = base.encode(data.images).numpy(), dict[str, torch.Tensor]()
    if config.directions is not None:
        shared = fit_projection(x0, config.directions, config.seed)
        x0 = project(x0, shared)
    settings = (data.groups.atoms[0], config.components, config.shrink, config.floor, config.seed, data.groups.homes)
    if base.n_classes is not None:
        labels, homes, rest = settings[0], settings[5], settings[1:5]
        found = dict(shared)
        for c, images in _by_class(base, data).items():
            atoms = np.unique(labels[images], return_inverse=True)[1]
            fitted = fit_gaussians(x0[images], atoms, *rest, homes[images])
            found |= {f"{CLASS}{c}.{name}": value for name, value in fitted.items()}
        return found
    every = fit_gaussians(x0, *settings)
    left = {} if removed is None else fit_gaussians(x0, *settings, removed)
    return every | {LEFT + name: value for name, value in left.items()} | which | shared


def _by_class(base: Denoiser, data: ImageData) -> dict[int, np.ndarray]:
    """The images of every class."""
    assert base.n_classes is not None
    numbers = class_numbers(data, base.n_classes).numbers
    return {int(c): np.flatnonzero(numbers == c) for c in np.unique(numbers)}


def _class_density(base: Denoiser, data: ImageData, config: RuleConfig, tensors: dict[str, torch.Tensor]) -> Removal:
    labels, made_of = data.groups.atoms
    found: dict[int, Density] = {}
    for c, images in _by_class(base, data).items():
        present, atoms = np.unique(labels[images], return_inverse=True)
        owned = torch.from_numpy(made_of[present]).to(base.device)
        if config.density == "gaussians":
            start = f"{CLASS}{c}."
            own = {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
            found[c] = GaussianDensity(own, base.schedule, base.device, owned)
        else:
            x0 = base.encode(data.images[images]).to(base.device)
            atom = torch.from_numpy(atoms).to(base.device)
            found[c] = ImageDensity(x0, atom, base.schedule, config.bandwidth, owned)
    return ClassRemoval(found)


def make_density(base: Denoiser, data: ImageData, config: RuleConfig, tensors: dict[str, torch.Tensor]) -> Removal:
    found = _whole_density(base, data, config, tensors)
    return found if config.directions is None else Projected(found, tensors, base.device)


def _whole_density(base: Denoiser, data: ImageData, config: RuleConfig, tensors: dict[str, torch.Tensor]) -> Removal:
    """Of the images, or of their coordinates."""
    if base.n_classes is not None:
        return _class_density(base, data, config, tensors)
    labels, made_of = (torch.from_numpy(found).to(base.device) for found in data.groups.atoms)
    removed = tensors.get("removed")
    if config.density == "gaussians":
        every = GaussianDensity(tensors, base.schedule, base.device, made_of)
        if removed is None:
            return every
        left = {name.removeprefix(LEFT): value for name, value in tensors.items() if name.startswith(LEFT)}
        return GaussianRemoval(every, GaussianDensity(left, base.schedule, base.device, made_of))
    x0 = base.encode(data.images).to(base.device)
    if removed is not None:  # two atoms, of which the first is a group
        labels = torch.ones_like(labels).index_fill_(0, removed.to(base.device), 0)
        made_of = torch.tensor([[True], [False]], device=base.device)
    if config.density == "patches":
        halves = halves_at(base.schedule, tensors["log_snr"].numpy(), tensors["half"].numpy())
        return PatchDensity(x0, labels, base.schedule, halves, config.bandwidth, made_of)
    return ImageDensity(x0, labels, base.schedule, config.bandwidth, made_of)


def _identity(header: dict[str, str], tensors: dict[str, torch.Tensor]) -> str:
    plain = {k: header.get(k) for k in ("kind", "method", "base", "config")}
    return digest([plain, weights_digest(tensors)], 64)


def save_rule(
    path: Path, base: str, config: RuleConfig, tensors: dict[str, torch.Tensor], group: str | None = None
) -> None:  # fmt: skip
    """One file for all groups, or for one that is not the data's own; `base`: digest of the model whose predictions it
    moves."""
    header = {"kind": "rule", "method": "posterior", "base": base, "config": config.model_dump_json()}
    header |= {} if group is None else {"group": group}
    write_tensors(path, tensors, header | {"digest": _identity(header, tensors)})


def read_rule(path: Path, base: Denoiser, known: str, data: ImageData) -> Rule:
    """The rule of a file, refused on another model (`known`: its digest) or where it does not fit the data."""
    tensors, header = read_tensors(path)
    fix = "delete it and fit again"
    try:
        config = RuleConfig.model_validate_json(header["config"])
        found = header["base"]
    except (KeyError, TypeError, ValidationError):
        raise GudaError("rule-damaged", f"{path} is damaged: its header tells of no rule; {fix}") from None
    if header.get("digest") != (actual := _identity(header, tensors)):
        raise Mismatch("rule-damaged", f"{path} is damaged: digest", actual, header.get("digest"), fix)
    if found != known:
        raise Mismatch("base-model-mismatch", f"{path}: base model", found, known, fix)
    removed = tensors.get("removed")
    if removed is not None and (len(removed) == 0 or not 0 <= int(removed.min()) <= int(removed.max()) < len(data.ids)):
        raise GudaError("rule-damaged", f"{path} is damaged: it removes images that the data do not have; {fix}")
    try:
        density = make_density(base, data, config, tensors)
    except KeyError as e:
        raise GudaError("rule-damaged", f"{path} is damaged: it holds no {e}; {fix}") from None
    whole = density.inner if isinstance(density, Projected) else density
    every = whole.every if isinstance(whole, GaussianRemoval) else whole
    for one in every.by_class.values() if isinstance(every, ClassRemoval) else (every,):
        if isinstance(one, GaussianDensity) and (n := int(one.owner.max()) + 1) != len(one.made_of):
            raise Mismatch("rule-groups-mismatch", f"{path}: groups", n, len(one.made_of), fix)
    return Rule(density, config.window)


class Rule:
    """The change of every group at x_t, zero outside the window."""

    def __init__(self, density: Removal, window: tuple[float, float]) -> None:
        self.density = density
        self.times = window_range(window, density.schedule.T)

    def changes(self, x_t: torch.Tensor, t: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        with torch.autocast(x_t.device.type, enabled=False):  # half precision would lose the differences
            found = self.density.changes(x_t.float(), t, labels)
        inside = (t >= self.times[0]) & (t < self.times[1])
        return found * inside.to(found).reshape(1, -1, *(1,) * (x_t.ndim - 1))


class RuledDenoiser(Denoiser):
    """`base` with group k (a number) removed by a rule. `raws` answers for several groups from one evaluation."""

    def __init__(self, base: Denoiser, rule: Rule, groups: list[int]) -> None:
        self.__dict__.update(base.__dict__)
        self.base, self.rule, self.groups = base, rule, groups

    def raws(self, x_t: torch.Tensor, t: torch.Tensor, cond: Cond | None = None) -> torch.Tensor:
        out = self.base.raw(x_t, t, cond)
        return torch.stack([out + self.schedule.output_change(c, t) for c in self.x0_changes(x_t, t, cond)])

    def x0_changes(self, x_t: torch.Tensor, t: torch.Tensor, cond: Cond | None = None) -> torch.Tensor:
        """By how much the prediction of x_0 moves, [K, *x_t.shape]: a function of the data, x_t and the class alone."""
        labels = None if cond is None else cond.tensors.get("class_labels")
        return self.rule.changes(x_t, t, labels)[self.groups]

    def raw(self, x_t: torch.Tensor, t: torch.Tensor, cond: Cond | None = None) -> torch.Tensor:
        return self.raws(x_t, t, cond)[0]


@dataclass(frozen=True)
class Ruled(Counterfactual):
    """One group's counterfactual by a rule, for a bank in memory; a run keeps the rule of all groups in one file."""

    rule: Rule | None = field(default=None, compare=False)
    member: int = 0

    def apply(self, base: Denoiser) -> Denoiser:
        if (found := base.digest()) != self.base:
            raise Mismatch(
                "base-model-mismatch",
                f"counterfactual without {self.group!r}: base model",
                self.base,
                found,
                "make it again",
            )
        assert self.rule is not None
        return RuledDenoiser(base, self.rule, [self.member])

    def changed(self, base: Denoiser, known: str | None = None) -> dict[str, torch.Tensor]:
        raise GudaError("rule-without-weights", "a rule changes predictions, not weights; use apply")

    def save(self, path: Path) -> None:
        raise GudaError("bank-of-rules", "a bank of rules is kept by a run: guda fit RUN --method posterior")


def rule_bank(base: Denoiser, data: ImageData, config: RuleConfig, groups: Sequence[str] | None = None) -> Bank:
    """Of these groups; default: the leaves."""
    rule = Rule(make_density(base, data, config, fit_rule(base, data, config)), config.window)
    mine, numbers = base.digest(), {g: data.groups.index(g) for g in groups or data.groups.leaf_names}
    return Bank({g: Ruled("rule", g, mine, "posterior", {}, rule=rule, member=k) for g, k in numbers.items()}, data)
