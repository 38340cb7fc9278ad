"""How long must a LOGO retraining be? The shortest budget whose retain validation loss is within 1 % of that
at twice the budget. Writes benchmarks/results/logo-budget.json; every training is kept, so it resumes.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/logo_budget.py        # about 15 minutes on one core

One group is left out and a tenth of the others held out; the recipe's own training with other numbers of steps.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from guda.data.sources import load_source
from guda.diffusion.loading import build_denoiser
from guda.diffusion.noise import generator
from guda.diffusion.training import train
from guda.evaluation.results import machine
from guda.files import read_json, write_json
from guda.run.recipe import builtin_recipe

ROOT = Path(__file__).parents[1]
BUDGETS = {"digits": (156, 312, 625, 1250, 2500, 5000), "fashion-mnist": (375, 750, 1500, 3000, 6000, 12000)}
WITHIN = 1.01


def validation_loss(denoiser, x0: torch.Tensor, repeats: int = 4) -> float:  # type: ignore[no-untyped-def]
    """E ||eps - eps_hat||^2 / D over held-out images and all timesteps, keyed noise."""
    g = generator(0, "validation")
    total = 0.0
    for _ in range(repeats):
        t = torch.from_numpy(g.integers(0, denoiser.schedule.T, len(x0)))
        eps = torch.from_numpy(g.standard_normal(x0.shape, dtype=np.float32))
        with torch.inference_mode():
            total += float((denoiser.eps(denoiser.schedule.add_noise(x0, eps, t), t) - eps).square().mean())
    return total / repeats


def measure(name: str, known: dict[str, float], keep) -> dict[str, float]:  # type: ignore[no-untyped-def]
    recipe = builtin_recipe(name)
    assert recipe.training is not None
    data = load_source(recipe.data.source, size=recipe.data.size, limit_per_group=recipe.data.limit_per_group)
    retain = data.groups.without(0)
    held = generator(0, "held-out").permutation(retain)[: len(retain) // 10]
    rest = np.setdiff1d(np.arange(data.n), held)
    denoiser = build_denoiser(recipe.model, data.shape)
    x0 = denoiser.encode(data.images[held])
    for steps in BUDGETS[name]:
        if str(steps) not in known:
            warmup = min(recipe.training.warmup, steps // 10)
            config = recipe.training.model_copy(update={"steps": steps, "warmup": warmup})
            trained = train(
                denoiser, data.images[rest], data.groups.take(rest), config, seed=1, leave_out=data.groups.names[0]
            )
            known[str(steps)] = validation_loss(denoiser.with_weights(trained.weights), x0)
            keep()
            print(name, steps, known[str(steps)], flush=True)
    return known


def shortest(losses: dict[str, float]) -> int | None:
    for steps in sorted(map(int, losses)):
        if str(2 * steps) in losses and losses[str(steps)] <= WITHIN * losses[str(2 * steps)]:
            return steps
    return None


def main() -> None:
    torch.set_num_threads(1)
    path = ROOT / "benchmarks" / "results" / "logo-budget.json"
    stored = read_json(path) if path.is_file() else {}
    found: dict[str, dict] = stored.get("losses", {}) if isinstance(stored, dict) else {}  # type: ignore[type-arg]

    def keep() -> None:
        write_json(
            path,
            {
                "command": "python benchmarks/logo_budget.py",
                "machine": machine().model_dump(mode="json"),
                "criterion": "retain validation loss within 1 % of the value at twice the steps",
                "losses": found,
                "shortest": {name: shortest(losses) for name, losses in found.items()},
            },
        )

    for name in BUDGETS:
        measure(name, found.setdefault(name, {}), keep)
    keep()


if __name__ == "__main__":
    main()
