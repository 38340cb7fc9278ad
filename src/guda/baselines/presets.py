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

from typing import Literal

from pydantic import Field, model_validator

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
        if any(m != "base" and not m.removeprefix("full-s").isdigit() for m in self.models):
            raise ValueError("models are base or full-s<seed>, full models of this run")
        return self


class TrakConfig(GradientConfig):
    lam_scale: LamScale = "raw_gaussian"


class DtrakConfig(GradientConfig):
    output: Output = "squared_norm"
    lam: float = Field(1000.0, gt=0)
    lam_scale: LamScale = "raw_gaussian"


class DasConfig(GradientConfig):
    output: Output = "mean_output"
    normalize: bool = True
    lam: float = Field(0.01, gt=0)
    residual: Residual = "normalized"
    leverage: Literal[0, 1, 2] = 1
    aggregate: str = Field("mean", pattern=AGGREGATE)


class DasPublicConfig(DasConfig):
    leverage: Literal[0, 1, 2] = 0


class DasSquaredConfig(DasPublicConfig):
    square: bool = True


class TracinConfig(GradientConfig):
    kernel: Literal["ridge", "none"] = "none"


class RelatifConfig(TrakConfig):
    divide: Literal["none", "influence", "gradient"] = "influence"
