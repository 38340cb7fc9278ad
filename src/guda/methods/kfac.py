"""K-FAC influence as a method: TracIn's products of gradients, preconditioned by the curvature of the loss.

    A_i = phi_q . phi_i,   phi = S (H + damping I)^{-1/2} grad f       sides: both
    A_i = phi_q . phi_i,   phi_q = S (H + damping I)^{-1} grad f       sides: query

Both estimate grad f(q)^T (H + damping I)^{-1} grad f(i) without bias. `query` shares the images' features with TRAK and
with every other damping, but the error of a sketch grows with the lengths of its two sides, and the inverse makes the
query's long where H is small: the smaller the damping, the more `both` is worth.

Positive = the image helps (removing it would raise the query's loss). What H is: baselines/kfac.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from guda.baselines.influence import GradientConfig
from guda.baselines.kfac import Draws, Through, curvature, need_library
from guda.files import digest
from guda.methods.base import method
from guda.methods.features import FeatureStore
from guda.methods.gradient import Gradient
from guda.run.data import prompt_files
from guda.run.models import load_model, model_digest, model_files, training_inputs
from guda.run.run import Run
from guda.run.task import Task


class KfacConfig(GradientConfig):
    kernel: Literal["none"] = Field("none", description="The curvature is the kernel.")
    damping: float = Field(0.1, gt=0, description="Added to every eigenvalue of H, in the scale damping_scale names.")
    damping_scale: Literal["relative", "absolute"] = Field(
        "relative", description="relative: in units of H's mean eigenvalue; absolute: as it is."
    )
    ekfac: bool = Field(False, description="EKFAC: eigenvalues from the layers' own gradients, in a second pass.")
    draws: int = Field(4096, ge=1, description="Draws (image, t, eps) that H is the mean of.")
    sides: Literal["both", "query"] = Field(
        "both", description="Half of the inverse before either sketch, or all of it before the query's."
    )  # fmt: skip


@method("kfac")
class Kfac(Gradient):
    Config: ClassVar[type[GradientConfig]] = KfacConfig
    summary = "K-FAC influence: gradients through the inverse curvature of the loss; + = the images help (a baseline)"

    # ---- names ----------------------------------------------------------------------------------------------

    def curvature_file(self, store: FeatureStore) -> str:
        config = self.config
        named = [config.draws, config.ekfac, config.weights, config.block, store.model, store.seed]
        return f"artifacts/curvature-{digest(named, 8)}/curvature.safetensors"

    def _seen(self, store: FeatureStore, power: float) -> FeatureStore:
        config = self.config
        relative = config.damping_scale == "relative"
        return replace(store, through=Through(self.curvature_file(store), config.damping, relative, power))

    def stores(self) -> list[FeatureStore]:
        found = super().stores()
        return [self._seen(s, -0.5) for s in found] if self.config.sides == "both" else found

    def _asked(self, store: FeatureStore) -> FeatureStore:
        asked = super()._asked(store)
        return asked if self.config.sides == "both" else self._seen(asked, -1.0)

    @property
    def _free(self) -> tuple[str, ...]:
        return super()._free + (() if self.config.sides == "both" else ("through",))

    # ---- tasks ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        super().check()
        if not all(self.run.has(self.curvature_file(store)) for store in self.stores()):
            need_library()

    def _before(self, store: FeatureStore) -> list[Task]:
        config, file = self.config, self.curvature_file(store)
        return [
            Task(
                name=f"curvature of {store.model}", stage=f"fit/{file.split('/')[1]}",
                fn="guda.methods.kfac:make_curvature", makes=(file,),
                args={"draws": config.draws, "ekfac": config.ekfac, "weights": config.weights, "block": config.block,
                      "model": store.model, "seed": store.seed, "file": file},
                needs=model_files(self.run, store.model) + prompt_files(self.run), cost=self._curvature_evals,
            )
        ]  # fmt: skip

    @property
    def estimand(self) -> str:
        config = self.config
        name = "EKFAC" if config.ekfac else "K-FAC"
        return (
            f"{config.aggregate} of influences, f = {config.output}, {name}, damping {config.damping:g} "
            f"({config.damping_scale}); {'squared, no sign' if config.square else 'positive = the images help'}"
        )

    # ---- cost -----------------------------------------------------------------------------------------------

    @property
    def _curvature_evals(self) -> float:
        return 3.0 * self.config.draws * (2 if self.config.ekfac else 1)


def make_curvature(
    run: Run, draws: int, ekfac: bool, weights: str, block: int, model: str, seed: int, file: str
) -> None:
    network = load_model(run, model)
    latents, prompts = training_inputs(run, network, False)
    found = curvature(network, Draws(network, latents, prompts, draws, block, seed), weights, corrected=ekfac)
    found.save(run.path(file), model_digest(run, model))
