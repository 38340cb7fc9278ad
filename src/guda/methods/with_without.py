"""A picture of a run with and without a group: inverted to noise through the full model, and denoised from that same
noise through the full model and through the counterfactual (see diffusion/inversion.py).

    RUN/inversions/<settings>/<picture>/<full model>.safetensors       noise, image: the reconstruction
    RUN/inversions/<settings>/<picture>/<counterfactual>.safetensors   image: without the group

Of several sets of counterfactuals (seeds) the first is shown. A method that combines others (hybrid) has no model of
its own that draws: the first of its parts stands for it, and is named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from guda.data.queries import Queries
from guda.diffusion.inversion import REFINE, STEPS, denoise, invert, levels, psnr
from guda.files import digest
from guda.methods.base import get_method
from guda.methods.elbo import ElboMethod, has_counterfactuals
from guda.methods.terms import ModelRef, load_counterfactual, load_queries
from guda.parts import FolderParts
from guda.run.models import run_schedule
from guda.run.run import Run
from guda.run.task import Task, tick


@dataclass(frozen=True, eq=False)
class WithWithout:
    """uint8 [C, H, W] each."""

    picture: np.ndarray
    full: np.ndarray  # reconstructed by the full model
    without: np.ndarray  # from the same noise, without the group
    by: str  # the method whose counterfactual it is

    @property
    def psnr(self) -> float:
        """Of the reconstruction, dB: how far the inversion itself is to be trusted."""
        return psnr(self.full, self.picture)

    @property
    def change(self) -> np.ndarray:
        """Without less full, in pixel values: float64 [C, H, W], -255..255."""
        return self.without.astype(np.float64) - self.full


def drawing_models(method: ElboMethod, group: str) -> tuple[str, ModelRef, ModelRef]:
    """(method, full model, counterfactual) that draw."""
    parts = method.parts()
    drawing = method if len(parts) == 1 else get_method(method.run, parts[0])
    assert has_counterfactuals(drawing)
    full, others = drawing.sets()[0]
    return drawing.method_id, full, others[group]


def _part(picture: Queries, model: ModelRef) -> str:
    return f"inversions/{digest([STEPS, REFINE], 8)}/{picture.digest[:16]}/{model.key}.safetensors"


def with_without_tasks(method: ElboMethod, queries: Queries, picture: str, group: str) -> list[Task]:
    run, one = method.run, queries.subset([picture])
    _, full, other = drawing_models(method, group)
    steps = len(levels(run_schedule(run), STEPS)) - 1
    args = {"queries": queries.name, "picture": picture}
    return [
        Task(
            name=f"invert {queries.name}/{picture} by {full.key}", stage=f"inversions/{queries.name}",
            fn="guda.methods.with_without:invert_picture", args=args | {"model": full.as_json()},
            makes=(_part(one, full),), needs=full.needs(run), cost=float(steps * (REFINE + 1)),
        ),
        Task(
            name=f"draw {queries.name}/{picture} by {other.key}", stage=f"inversions/{queries.name}",
            fn="guda.methods.with_without:draw_without",
            args=args | {"full": full.as_json(), "model": other.as_json()},
            makes=(_part(one, other),), needs=(_part(one, full), *other.needs(run)), cost=float(steps),
        ),
    ]  # fmt: skip


def invert_picture(run: Run, queries: str, picture: str, model: list[Any]) -> None:
    ref, one = ModelRef(*model), load_queries(run, queries).subset([picture])
    denoiser = load_counterfactual(run, ref)
    cond = denoiser.condition(one.prompts)
    noise = invert(denoiser, denoiser.encode(one.images), cond=cond, tick=tick)
    image = denoiser.decode(denoise(denoiser, noise, cond=cond))[0]
    content = {"noise": noise, "image": torch.from_numpy(image)}
    FolderParts(run.root).write(_part(one, ref), content, {"model": ref.identity(run)})


def draw_without(run: Run, queries: str, picture: str, full: list[Any], model: list[Any]) -> None:
    before, ref, one = ModelRef(*full), ModelRef(*model), load_queries(run, queries).subset([picture])
    parts, reference = FolderParts(run.root), before.identity(run)
    noise = parts.read(_part(one, before), {"model": reference}, "inversion-stale")["noise"]
    denoiser = load_counterfactual(run, ref)
    image = denoiser.decode(denoise(denoiser, noise, cond=denoiser.condition(one.prompts), tick=tick))[0]
    header = {"model": ref.identity(run), "reference": reference}
    parts.write(_part(one, ref), {"image": torch.from_numpy(image)}, header)


def with_without(method: ElboMethod, queries: Queries, picture: str, group: str) -> WithWithout:
    """From finished parts; refused if a model has changed since."""
    run, one, parts = method.run, queries.subset([picture]), FolderParts(method.run.root)
    by, full, other = drawing_models(method, group)
    reference = full.identity(run)
    kept = parts.read(_part(one, full), {"model": reference}, "inversion-stale")
    made = parts.read(_part(one, other), {"model": other.identity(run), "reference": reference}, "inversion-stale")
    return WithWithout(one.images[0], kept["image"].numpy(), made["image"].numpy(), by)
