"""The same initial noise through the full model and through every counterfactual: what leaving a group out does to a
picture (paper, figure of generations under group removal).

DDIM, 100 steps, eta = 0; column i starts from the noise of (seed, i) in every row. Text-to-image: column i has the same
evaluation prompt in every row too, of the i-th scored group, so its own group's row is where it should
change. One task per model, kept in RUN/figures/same-noise/, so that an interrupted drawing resumes.

On the page every picture is a symbol (report/pictures.py), paid once per model and noise, however many cards show it. A
method that combines others (hybrid) has no model of its own that draws: the pictures of its first part that does stand
for it, and say so. Text-to-image: a column is a prompt of one group, and a card shows its first group's own prompt
first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from guda.config import Config
from guda.diffusion.noise import generator
from guda.errors import GudaError, Mismatch
from guda.files import digest, read_tensors, write_tensors
from guda.methods.base import get_method
from guda.methods.elbo import has_counterfactuals
from guda.methods.terms import ModelRef, load_counterfactual
from guda.report.pictures import SMALLEST, Symbols, grid, side_for
from guda.run.data import load_data, load_prompts, prompt_files, scored_groups
from guda.run.models import load_model
from guda.run.run import Run
from guda.run.task import Task, pending, tick

BLOCK = 16  # pictures drawn together; part of what makes their last bits


class SameNoise(Config):
    n: int = Field(default=8, ge=1, description="Pictures of every model, one per initial noise.")
    seed: int = Field(default=0, ge=0, description="Names the noises, and the objects of the prompts.")
    steps: int = Field(default=100, ge=1, description="DDIM steps.")
    groups: tuple[str, ...] | None = Field(
        default=None, description="Counterfactuals of these groups only; default: all."
    )


def models(run: Run, method: str, config: SameNoise) -> list[tuple[str, ModelRef]]:
    """(name of the row, model): the full model first. LOGO shows its first seed, beside that seed's full model."""
    drawing = get_method(run, method)
    if not has_counterfactuals(drawing) or len(drawing.parts()) > 1:
        why = (
            f"combines {' and '.join(drawing.parts())}" if len(drawing.parts()) > 1 else "has no counterfactual models"
        )
        raise GudaError(
            "method-draws-nothing", f"{method} {why}, so it draws no pictures; name an unlearning method or logo"
        )
    full, others = drawing.sets()[0]
    for group in config.groups or ():
        load_data(run).groups.index(group)  # an unknown name is refused with those there are
        if group not in others:
            raise GudaError(
                "counterfactual-missing",
                f"{method} has no counterfactual without {group!r}; it has {', '.join(others)}",
            )
    chosen = config.groups or tuple(others)
    return [("full model", full), *((f"without {group}", others[group]) for group in chosen)]


def columns(run: Run, config: SameNoise) -> list[tuple[str, str | None]]:
    """(name, prompt) of every column; prompts are None for unconditional models."""
    if run.recipe.prompts is None:
        classes = load_model(run, "base").n_classes
        if classes is None:
            return [(f"noise {i}", None) for i in range(config.n)]
        return [(f"class {i % classes}", str(i % classes)) for i in range(config.n)]
    evaluation, styles = load_prompts(run).evaluation, scored_groups(run)
    prompted: list[tuple[str, str | None]] = []
    for i in range(config.n):
        style = styles[i % len(styles)]
        objects = sorted(o for s, o in evaluation if s == style)
        thing = objects[int(generator(config.seed, "same noise", style, i).integers(len(objects)))]
        prompted.append((f"{style}: {thing}", evaluation[style, thing]))
    return prompted


def _part(run: Run, ref: ModelRef, config: SameNoise) -> str:
    # the groups that are shown do not change a model's pictures
    made = [config.n, config.seed, config.steps, BLOCK, run.recipe.queries.guidance if run.recipe.prompts else None]
    key = digest([ref.key, made, list(scored_groups(run)) if run.recipe.prompts else None])
    return f"figures/same-noise/{key}.safetensors"


def same_noise_tasks(run: Run, method: str, config: SameNoise | None = None) -> list[Task]:
    config = config or SameNoise()
    networks = 2 if run.recipe.prompts is not None and run.recipe.queries.guidance > 1 else 1
    return [
        Task(
            name=f"draw {ref.key} from the same noise, {_part(run, ref, config)[-24:-12]}", stage="figures/same-noise",
            fn="guda.report.same_noise:draw", args={"model": ref.as_json(), "config": config.model_dump(mode="json")},
            makes=(_part(run, ref, config),), needs=ref.needs(run) + prompt_files(run),
            cost=float(networks * config.steps * config.n),
        )
        for _, ref in models(run, method, config)
    ]  # fmt: skip


def draw(run: Run, model: list[Any], config: dict[str, Any]) -> None:
    """The task: one model's pictures."""
    import torch

    from guda.diffusion.sampling import ddim, initial_noise

    ref, settings = ModelRef(*model), SameNoise.model_validate(config)
    denoiser = load_counterfactual(run, ref)
    prompts = [prompt for _, prompt in columns(run, settings)]
    images = ddim(
        denoiser, initial_noise(denoiser.shape, settings.seed, range(settings.n)), steps=settings.steps,
        prompts=None if prompts[0] is None else [str(p) for p in prompts], block=min(BLOCK, settings.n), tick=tick,
        guidance=run.recipe.queries.guidance if run.recipe.prompts is not None else 1.0,
    )  # fmt: skip
    write_tensors(
        run.path(_part(run, ref, settings)), {"images": torch.from_numpy(images)}, {"model": ref.identity(run)}
    )


def read(run: Run, ref: ModelRef, config: SameNoise) -> np.ndarray:
    """uint8 [n, C, H, W]; refused if the model has changed since."""
    file = run.path(_part(run, ref, config))
    tensors, header = read_tensors(file)
    if header.get("model") != ref.identity(run):
        raise Mismatch(
            "drawing-stale",
            f"{file} shows another model",
            header.get("model"),
            ref.identity(run),
            "delete it and draw again",
        )
    return np.asarray(tensors["images"].numpy())


def same_noise(run: Run, method: str, config: SameNoise | None = None, path: Path | None = None) -> Path:
    """The grid, once the tasks are done; RUN/figures/same-noise-<method>.png unless `path` is given."""
    config = config or SameNoise()
    rows = models(run, method, config)
    labelled = columns(run, config)
    title = f"{method}: the same initial noise in every column, DDIM {config.steps} steps, eta 0, seed {config.seed}"
    if labelled[0][1] is not None and run.recipe.prompts is not None:
        title += f",\nthe same prompt too (its group and object above), guidance {run.recipe.queries.guidance:g}"
    return grid(
        [read(run, ref, config) for _, ref in rows], path or run.path("figures", f"same-noise-{method}.png"),
        [name for name, _ in rows], [name for name, _ in labelled], title,
    )  # fmt: skip


SHOWN = 4  # noises on a card

PROMPTS = 12  # text-to-image: columns drawn at most, one per group

BUDGET = 4_000_000  # bytes of base64 for all drawings together; methods beyond it are left out

LARGEST = 64  # pixels


@dataclass(frozen=True)
class Drawn:
    """Symbols of one method's pictures: `full` of the full model, `without` of each group's counterfactual."""

    by: str  # the method whose models draw
    full: tuple[str, ...]
    without: tuple[tuple[str, ...], ...]  # in order of the groups


@dataclass(frozen=True)
class Drawings:
    columns: tuple[str, ...]  # what each column is: a noise, or a prompt
    own: bool  # text-to-image: column i is a prompt of group i
    methods: dict[str, Drawn]
    missing: tuple[str, ...]  # methods without pictures

    def chosen(self, group: int) -> list[int]:
        """Columns for a card whose first group this is: its own prompt first."""
        if not self.own or group >= len(self.columns):
            return list(range(min(SHOWN, len(self.columns))))
        return [group, *(c for c in range(len(self.columns)) if c != group)][:SHOWN]

    def to_json(self) -> dict[str, Any]:
        return {
            "columns": self.columns, "own": self.own, "shown": SHOWN,
            "methods": {m: {"by": d.by, "full": d.full, "without": d.without} for m, d in self.methods.items()},
        }  # fmt: skip


def config(run: Run) -> SameNoise:
    """Four noises; for a text-to-image model one per group, up to PROMPTS."""
    return SameNoise(n=SHOWN if run.recipe.prompts is None else max(SHOWN, min(PROMPTS, len(scored_groups(run)))))


def drawn_by(run: Run, method: str) -> str | None:
    """The method whose models draw for this one: itself or the first of its parts; None where nobody does."""
    for part in dict.fromkeys((method, *get_method(run, method).parts())):
        try:
            models(run, part, config(run))
        except GudaError:
            continue
        if get_method(run, part).fitted():
            return part
    return None


def drawing_tasks(run: Run, methods: Iterable[str]) -> list[Task]:
    """What the report's drawings need, of all methods that can be drawn; a full model they share is drawn once."""
    drawing = dict.fromkeys(by for m in methods if (by := drawn_by(run, m)) is not None)
    tasks = [task for m in drawing for task in same_noise_tasks(run, m, config(run))]
    return list({task.makes: task for task in tasks}.values())


def draw_missing(run: Run, methods: Iterable[str], engine: Callable[[Run, list[Task], str], object]) -> None:
    """Draw what is not there yet."""
    if left := pending(run, drawing_tasks(run, methods)):
        engine(run, left, "draw from the same noise")


def read_drawings(run: Run, methods: list[str], symbols: Symbols) -> Drawings | None:
    """Of the methods that are drawn, in this order while the budget lasts; None where nothing is drawn."""
    settings, groups = config(run), scored_groups(run)
    drawn: dict[str, str] = {}
    for m in methods:
        try:
            by = drawn_by(run, m)
            if by is not None and not pending(run, same_noise_tasks(run, by, settings)):
                drawn[m] = by
        except GudaError:  # e.g. a run of given scores without a model
            continue
    most = BUDGET // (4 * SMALLEST**2) // (settings.n * (1 + len(groups)))
    kept = list(dict.fromkeys(drawn.values()))[: max(most, 1)]
    if not kept:
        return None
    side = min(LARGEST, side_for(len(kept) * settings.n * (1 + len(groups)), BUDGET))
    drawings = {}
    for by in kept:
        rows = [
            tuple(symbols.add(image, side) for image in read(run, ref, settings))
            for _, ref in models(run, by, settings)
        ]
        drawings[by] = Drawn(by, rows[0], tuple(rows[1:]))
    labelled = columns(run, settings)
    shown = {m: drawings[by] for m, by in drawn.items() if by in drawings}
    return Drawings(
        tuple(name for name, _ in labelled), run.recipe.prompts is not None, shown,
        tuple(m for m in methods if m not in shown),
    )  # fmt: skip
