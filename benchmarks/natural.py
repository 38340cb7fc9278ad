"""Which density describes a model of natural images? No retraining is asked: benchmarks/results/natural.json.

    OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 python benchmarks/natural.py [--runs FOLDER]     resumes

cifar10-small (six classes of CIFAR-10 at 16x16), its full model only. `posterior` believes that the model's prediction
moves as the optimal denoiser of a density does; so the density's own posterior mean m should be near what the model
predicts. Compared on images of the test split, twelve of each class, at ten noise levels:

r2.D.LEVEL        1 - |m - x0_hat|^2 / |x_t / a - x0_hat|^2 for density D (gaussians, images, patches): the share of
                  what the model changes in x_t that the density explains; LEVEL: the SNR
r2.D              its mean over the levels
known_group.D     posterior with D, by path divergence: 20 held-out images of each class, the share whose own class is
                  first; Clopper and Pearson's intervals .lo, .hi
half.LEVEL        patches: pixels of the fitted window on each side of its centre
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from guda import steps
from guda.data.cifar10 import load_cifar10
from guda.diffusion.noise import generator
from guda.evaluation.intervals import clopper_pearson
from guda.evaluation.results import DatasetEntry, keep_entry
from guda.run.data import load_data
from guda.run.models import load_model
from guda.run.recipe import builtin_recipe
from guda.run.run import Run
from guda.unlearning.density import GaussianDensity, ImageDensity
from guda.unlearning.patches import PatchDensity, halves_at, posterior_mean
from guda.unlearning.rule import RuleConfig, fit_rule
from path import _kept, unseen

ROOT = Path(__file__).parents[1]
COMMAND = "OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 python benchmarks/natural.py"
LEVELS = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03)  # SNR
EACH, DENSITIES = 12, ("gaussians", "images", "patches")


def described(run: Run) -> dict[str, float]:
    """How much of the model's predictions each density explains."""
    base, data, schedule = load_model(run, "base"), load_data(run), load_model(run, "base").schedule
    x0, labels = base.encode(data.images), torch.from_numpy(data.groups.atoms[0])
    pictures = base.encode(unseen(data, load_cifar10(size=run.recipe.data.size, split="test"), EACH).images)
    settings = run.recipe.settings("posterior")
    gaussians = GaussianDensity(fit_rule(base, data, RuleConfig(**settings)), schedule, "cpu")
    windows = fit_rule(base, data, RuleConfig(density="patches"))  # type: ignore[call-arg]
    halves = halves_at(schedule, windows["log_snr"].numpy(), windows["half"].numpy())
    patches, images = PatchDensity(x0, labels, schedule, halves), ImageDensity(x0, labels, schedule)
    figures: dict[str, float] = {}
    for snr in LEVELS:
        t = int(np.abs(schedule.log_snr - np.log(snr)).argmin())
        noise = generator("natural", t).standard_normal(tuple(pictures.shape), dtype=np.float32)
        at = torch.full((len(pictures),), t)
        x_t = schedule.add_noise(pictures, torch.from_numpy(noise), at)
        with torch.no_grad():
            predicted = base.x0(x_t, at)
        a, s = schedule.coefficients(at, x_t.flatten(1).double())
        logs, means = images.components(x_t.flatten(1), a, s)
        found = {
            "gaussians": gaussians.posterior_mean(x_t, at),
            "images": torch.einsum("bm,mbd->bd", logs.softmax(dim=1), means).float(),
            "patches": torch.stack([posterior_mean(patches.exponents(x, t, int(halves[t])), x0)[0] for x in x_t]),
        }
        moved = float((x_t / float(schedule.a[t]) - predicted).square().mean())
        for name, m in found.items():
            figures[f"r2.{name}.{snr:g}"] = 1 - float((m.reshape(x_t.shape) - predicted).square().mean()) / moved
        figures[f"half.{snr:g}"] = float(halves[t])
        print(f"SNR {snr:g}", {k: round(v, 3) for k, v in figures.items() if k.endswith(f".{snr:g}")}, flush=True)
    for name in DENSITIES:
        figures[f"r2.{name}"] = float(np.mean([figures[f"r2.{name}.{snr:g}"] for snr in LEVELS]))
    return figures


def known_groups(run: Run, engine: steps.Engine) -> dict[str, float]:
    held, groups = _kept(
        run, unseen(load_data(run), load_cifar10(size=run.recipe.data.size, split="test"), 20), "held-out"
    )
    figures: dict[str, float] = {}
    for name in DENSITIES:
        scoring = {"estimand": "path", "excess": False, "plan": "stratified", "rounds": 2, "foreign": "skip"}
        asked = steps.override(run, scoring=scoring, methods=["posterior"], settings=[f"density={name}"])
        scores = steps.score(asked, held, ["posterior"], engine)["posterior"]
        hits = scores.rank.argmin(axis=1) == np.array([scores.groups.index(g) for g in groups])
        lo, hi = clopper_pearson(int(hits.sum()), len(hits))
        key = f"known_group.{name}"
        figures |= {key: float(hits.mean()), f"{key}.lo": lo, f"{key}.hi": hi}
        print(key, hits.mean(), flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "path")
    parser.add_argument("--workers", type=int)
    given = parser.parse_args()
    folder, engine = given.runs / "cifar10-small", steps.local_engine(given.workers)
    run = Run.open(folder) if (folder / "run.json").is_file() else steps.init(folder, builtin_recipe("cifar10-small"))
    steps.train(run, engine)
    figures = described(run) | known_groups(run, engine)
    entry = DatasetEntry(
        n_queries=120, n_groups=6, seeds=[], ceiling=None, methods={}, figures=figures,
        note="the full model alone: which density describes it, and which finds the class of held-out pictures",
    )  # fmt: skip
    keep_entry(ROOT / "benchmarks" / "results" / "natural.json", COMMAND, "cifar10-small", entry)


if __name__ == "__main__":
    main()
