"""The settings of TRAK and its kin, and what each name stands for (BASELINES 1 to 3).

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
from copy import copy
from typing import Any, Literal

from pydantic import Field, create_model, model_validator

from guda.baselines.features import FeatureConfig
from guda.baselines.gradients import Output
from guda.baselines.residuals import Residual
from guda.baselines.ridge import LamScale

REMOVAL = "removal"

LINEAR = ("sum", "mean", REMOVAL)  # one vector per group says all

AGGREGATE = r"^(sum|mean|max|median|top[1-9][0-9]*|removal)$"


class GradientConfig(FeatureConfig):
    query_output: Output | None = Field(None, description="f of the queries where it differs from the images'.")
    kernel: Literal["ridge", "none"] = Field("ridge", description="K^-1 between the features, or nothing (TracIn).")
    lam: float = Field(100.0, gt=0, description="Ridge, absolute, in the scale that lam_scale names.")
    lam_scale: LamScale = Field(
        "jl", description="jl: as it is; raw_gaussian: / dim; trace: in mean eigenvalues; per_n: times the images."
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
