"""Influence of training images on a query through their features, and of whole groups: A_i = w_i phi_q . z_i.

    z_i = K^-1 phi_i (ridge.py), or phi_i without a kernel
    w_i = r_i / (1 - h_i)^leverage / d_i       residual, leverage, and a length d_i where `divide` names one

Sums, means and a group's exact removal are linear in phi_q, so one vector per group says all; max, median, top<m> and
squares need the images' own vectors, which are made, kept and read group by group.

A group's score (`aggregate`), given its images' scores:

    sum, mean, max, median, top<m>      of the images' scores; top<m>: the mean of the m highest, top1 = max

With groups of one size sum and mean order them alike; with others a sum favours large groups. A group of fewer than m
images gives the mean of all it has. Scores of images are asked for in blocks, so that no query-by-image matrix is held
(a median needs one group's whole row).

The presets are TRAK and its kin (BASELINES 1 to 3):

    trak         f = loss, ridge 100 of raw Gaussian features, sum
    dtrak        f = squared norm of the output, ridge 1000 of the same, sum
    das          f = mean output, unit gradients per timestep, ridge 0.01, residual, leverage, mean: the theory (das1)
    das-public   the same without leverage: what the public code does
    das-squared  das-public squared, mean: a size without a sign
    tracin       f = loss, no kernel: phi_q . phi_i at the last checkpoint, sum
    relatif      trak divided by |K^-1 phi_i|
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, create_model, model_validator

from guda.baselines.features import FeatureConfig, Residual
from guda.baselines.gradients import Output
from guda.baselines.ridge import LamScale, Ridge, Rows, checked_leverage

PATTERN = r"^(sum|mean|max|median|top[1-9][0-9]*)$"

BLOCK = 4096  # training images whose scores are held at once, for all queries asked about

Influence = Callable[[np.ndarray], np.ndarray]  # positions of m training images -> scores float64 [Q, m]


def by_group(influence: Influence, groups: Sequence[np.ndarray], how: str, block: int = BLOCK) -> np.ndarray:
    """[Q, G] from the scores of each group's images (positions)."""
    return np.stack([aggregate(influence, members, how, block) for members in groups], axis=1)


def aggregate(influence: Influence, members: np.ndarray, how: str, block: int = BLOCK) -> np.ndarray:
    """[Q] of one group."""
    blocks = (influence(members[i : i + block]) for i in range(0, len(members), block))
    if how in ("sum", "mean"):
        total = np.sum([b.sum(axis=1) for b in blocks], axis=0)
        return total / len(members) if how == "mean" else total
    if how == "median":
        return np.median(np.concatenate(list(blocks), axis=1), axis=1)
    m = highest(how)
    if m is None:
        raise ValueError(f"no aggregate {how!r}")
    best: np.ndarray | None = None
    for b in blocks:
        held = b if best is None else np.concatenate([best, b], axis=1)
        best = held if held.shape[1] <= m else np.partition(held, held.shape[1] - m, axis=1)[:, -m:]
    assert best is not None
    # sorted, and laid out in one way: the sum must not depend on the blocks
    return np.ascontiguousarray(np.sort(best, axis=1)).mean(axis=1)


def highest(how: str) -> int | None:
    """m of top<m>; `max` is top1."""
    found = re.fullmatch(r"top([1-9][0-9]*)", "top1" if how == "max" else how)
    return int(found[1]) if found else None


REMOVAL = "removal"

LINEAR = ("sum", "mean", REMOVAL)  # one vector per group says all

AGGREGATE = r"^(sum|mean|max|median|top[1-9][0-9]*|removal)$"


class GradientConfig(FeatureConfig):
    query_output: Output | None = Field(None, description="f of the queries where it differs from the images'.")
    kernel: Literal["ridge", "none"] = Field("ridge", description="K^-1 between the features, or nothing (TracIn).")
    lam: float = Field(100.0, gt=0, description="Ridge, absolute, in the scale that lam_scale names.")
    lam_scale: LamScale = Field(
        "jl",
        description="jl: as it is; raw_gaussian: / dim; trace: in mean eigenvalues; norm: in mean |phi|^2 of an image; "
        "per_n: times the images.",
    )
    solver: Literal["cholesky", "eigen"] = Field(
        "cholesky", description="eigen: one eigendecomposition per set of features, for sweeps over lam."
    )
    residual: Residual = Field("none", description="Weight of an image: none, normalized (public DAS) or rms.")
    residual_timesteps: int = Field(100, ge=1, description="Timesteps that residuals are measured at.")
    leverage: Literal[0, 1, 2] = Field(0, description="Power of 1 / (1 - leverage).")
    divide: Literal["none", "influence", "gradient"] = Field(
        "none", description="Divide by |K^-1 phi| (RelatIF) or by |phi| (cosine) of the image."
    )
    square: bool = Field(False, description="Square each image's score: a size, no sign.")
    aggregate: str = Field(
        "sum", pattern=AGGREGATE,
        description="sum, mean, max, median, top<m> over the group's images; removal: the group's exact removal.",
    )  # fmt: skip
    seeds: tuple[int, ...] = Field((0,), min_length=1, description="Sketches and noises to average scores over.")
    models: tuple[str, ...] = Field(
        ("base",), min_length=1, description="Networks to average scores over: base, or full-s<seed>."
    )

    @model_validator(mode="after")
    def _consistent(self) -> GradientConfig:
        if self.aggregate == REMOVAL and (self.kernel == "none" or self.leverage or self.square):
            raise ValueError(
                "aggregate: removal is exact by itself; it needs kernel: ridge, leverage: 0, square: false"
            )
        if self.aggregate == REMOVAL and self.divide != "none":
            raise ValueError("aggregate: removal has no image to divide by; set divide: none")
        if self.kernel == "none" and (self.leverage or self.divide == "influence"):
            raise ValueError("leverage and divide: influence are of the kernel; set kernel: ridge")
        if not all(re.fullmatch(r"base|full-s\d+", m) for m in self.models):
            raise ValueError("models are base or full-s<seed>, full models of this run")
        if len(set(self.seeds)) < len(self.seeds) or len(set(self.models)) < len(self.models):
            raise ValueError("seeds and models are averaged over: name each once")
        unused = ["lam", "lam_scale", "solver"] if self.kernel == "none" else []
        unused += ["residual_timesteps"] if self.residual == "none" else []
        unused += ["dim"] if self.sketch == "identity" else []
        for name in unused:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} means nothing with these settings; leave it out")
        return self


def _preset(name: str, base: type[GradientConfig], **defaults: Any) -> type[GradientConfig]:
    """The same settings, with other defaults."""
    fields: dict[str, Any] = {}
    for key, default in defaults.items():
        field = copy(base.model_fields[key])
        field.default = default
        fields[key] = (field.annotation, field)
    return create_model(name, __base__=base, __module__=__name__, **fields)


_TRAK = _preset("TrakConfig", GradientConfig, lam=100.0, lam_scale="raw_gaussian")
_DAS = _preset(
    "DasConfig", GradientConfig, output="mean_output", normalize=True, lam=0.01, residual="normalized", leverage=1,
    aggregate="mean",
)  # fmt: skip
_DAS_PUBLIC = _preset("DasPublicConfig", _DAS, leverage=0)

# method id -> its settings, and what it is in one line
PRESETS: dict[str, tuple[type[GradientConfig], str]] = {
    "trak": (
        _TRAK,
        "TRAK: gradients of the loss through a ridge kernel; + = the images help (a baseline)",
    ),
    "dtrak": (
        _preset("DtrakConfig", _TRAK, output="squared_norm", lam=1000.0),
        "D-TRAK: gradients of the output's squared norm through a ridge kernel; + = similar, helps (a baseline)",
    ),
    "das": (
        _DAS,
        "DAS: change of the predicted noise when an image leaves, linearised; + = the images help (a baseline)",
    ),
    "das-public": (
        _DAS_PUBLIC,
        "DAS as its public code has it: residuals, no leverage; + = the images help (a baseline)",
    ),
    "das-squared": (
        _preset("DasSquaredConfig", _DAS_PUBLIC, square=True),
        "the square of das-public: how much images act, for or against (a baseline)",
    ),
    "tracin": (
        _preset("TracinConfig", GradientConfig, kernel="none"),
        "TracIn at the last checkpoint: gradient of the picture times gradients of the images; + = helps (a baseline)",
    ),
    "relatif": (
        _preset("RelatifConfig", _TRAK, divide="influence"),
        "RelatIF: TRAK's influence divided by how far an image moves the model; + = helps (a baseline)",
    ),
}

TINY = 1e-30  # a length to divide by, at least: an image without gradient has no influence


def linear(config: GradientConfig) -> bool:
    """Whether one vector per group is enough."""
    return config.aggregate in LINEAR and not config.square


def group_vectors(
    config: GradientConfig, rows: Rows, ridge: Ridge | None, residual: np.ndarray, groups: Sequence[np.ndarray]
) -> torch.Tensor:
    """[G, k] for groups of images (positions)."""
    r = torch.from_numpy(residual)
    if config.aggregate == REMOVAL:
        assert ridge is not None
        return torch.stack([ridge.removal(m, r[m]) for m in map(torch.from_numpy, groups)]).float()
    share = [1 / len(m) if config.aggregate == "mean" else 1.0 for m in groups]
    if ridge is not None and not config.leverage and config.divide == "none":
        weights = torch.zeros(rows.n, len(groups), dtype=torch.float64)
        for g, m in enumerate(groups):
            weights[m, g] = r[m].double() * share[g]
        return ridge.combine(weights).float()  # K^-1 of the groups' sums alone
    found = [w * item_vectors(config, rows, ridge, residual, m).sum(dim=0) for w, m in zip(share, groups, strict=True)]
    return torch.stack(found).float()


def item_vectors(
    config: GradientConfig, rows: Rows, ridge: Ridge | None, residual: np.ndarray, members: np.ndarray
) -> torch.Tensor:
    """[n_g, k]: w_i z_i of one group's images, in the order of `members`."""
    index = torch.from_numpy(members)
    phi = rows.take(index)
    z = phi if ridge is None else ridge.vectors_of(index, phi)
    w = torch.from_numpy(residual)[index].to(z.dtype)
    if config.leverage:
        w = w / (1 - checked_leverage((phi * z).sum(dim=1))) ** config.leverage
    if config.divide != "none":
        w = w / (z if config.divide == "influence" else phi).norm(dim=1).clamp(min=TINY)
    return z * w[:, None]


def query_vectors(config: GradientConfig, phi: torch.Tensor) -> torch.Tensor:
    """float64 [q, k]: the queries' side; of unit length where the score is a cosine."""
    phi = phi.double()
    if config.divide == "gradient" and config.kernel == "none":
        phi = phi / phi.norm(dim=1, keepdim=True).clamp(min=TINY)
    return phi


def item_scores(config: GradientConfig, phi: torch.Tensor, items: torch.Tensor) -> np.ndarray:
    """float64 [q] of one group from its images' vectors."""

    def influence(positions: np.ndarray) -> np.ndarray:
        a = (phi @ items[torch.from_numpy(positions)].double().T).numpy()
        return a**2 if config.square else a

    return aggregate(influence, np.arange(len(items)), config.aggregate)
