"""Natural images: which method tells them apart, and which density describes a model of them?

    OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 python benchmarks/natural.py [--runs FOLDER] [--only cifar10]     resumes

cifar10 (recipes/cifar10.yaml): all ten classes of true CIFAR-10 at 16x16, 100 images of each, fine-tuned from a
committed start that has seen other images, LOGO with three seeds. Everything that path.py measures (of_ceiling.E.M,
known_group.E.M, function_cos.M, ...), and

fit_ratio.M       evaluation units of one retraining over those of fitting M for one group
fit_seconds.M     seconds of the fit, per group; logo: of one retraining, without its start
E-t100, E-t300    in place of an estimand E above: the terms at t >= 100 (300) only, methods with the recipe's settings
classifier.test   accuracy of a small convolutional classifier on the test split, which it has not seen
classifier.KIND   its mean largest probability: on test pictures (real) and on the model's samples (samples)
confident.KIND    the share of pictures where it is above one half
and the figures below; a sheet of samples beside training images goes to benchmarks/results/natural.png.

cifar10-small (six classes at 16x16, its full model alone) and cifar10. `posterior` believes that the model's prediction
moves as the optimal denoiser of a density does; so the density's own posterior mean m should be near what the model
predicts. Compared on images of the test split, twelve of each class, at ten noise levels:

r2.D.LEVEL        1 - |m - x0_hat|^2 / |x_t / a - x0_hat|^2 for density D (gaussians, images, patches): the share of
                  what the model changes in x_t that the density explains; LEVEL: the SNR
r2.D              its mean over the levels
known_group.D     posterior with D, by path divergence: 20 held-out images of each class, the share whose own class is
                  first; Clopper and Pearson's intervals .lo, .hi (cifar10-small)
half.LEVEL        patches: pixels of the fitted window on each side of its centre

Of cifar10, how many principal directions the Gaussians have, which `posterior-64` takes from here:

directions.known_group.N   posterior with N directions (all: whole covariances), by path divergence against the average
                           picture: of 400 images of the start's, forty of each class, the share whose class is first
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from guda import steps
from guda.data.cifar10 import load_cifar10
from guda.diffusion.noise import generator
from guda.evaluation.ceiling import compare
from guda.evaluation.intervals import clopper_pearson
from guda.evaluation.results import DatasetEntry, keep_entry
from guda.methods.base import get_method
from guda.methods.terms import load_queries
from guda.run.data import load_data
from guda.run.models import load_model
from guda.run.recipe import builtin_recipe
from guda.run.run import Run
from guda.scoring.bands import Bands
from guda.scoring.scores import Scores
from guda.steps.evaluate import method_cost, run_oracle
from guda.unlearning.density import GaussianDensity, ImageDensity
from guda.unlearning.patches import PatchDensity, halves_at, posterior_mean
from guda.unlearning.rule import RuleConfig, fit_rule
from path import ESTIMANDS, METHODS, VARIANTS, Figures, _kept, agreement, prepared, scoring, unseen
from path import measure as measure_path

ROOT = Path(__file__).parents[1]
COMMAND = "OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 python benchmarks/natural.py"
HIGH = (100, 300)  # timesteps of T = 1,000
LEVELS = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03)  # SNR
DIRECTIONS, TUNING = (None, 16, 32, 64, 128), 40
EACH, DENSITIES = 12, ("gaussians", "images", "patches")
DATASETS = ("cifar10", "cifar10-small")
RESULTS = ROOT / "benchmarks" / "results"


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
        figures |= own_first(f"known_group.{name}", scores, groups)
    return figures


def directions(run: Run, engine: steps.Engine) -> Figures:
    """On pictures that nothing else here is measured with."""
    others = load_cifar10(size=run.recipe.data.size, skip=5000 - TUNING)  # of each class; the start has seen them
    held, groups = _kept(run, unseen(load_data(run), others, TUNING), "of-the-start")
    figures: Figures = {}
    for n in DIRECTIONS:
        scoring = {"estimand": "path", "excess": True, "plan": "stratified", "rounds": 2, "foreign": "skip"}
        setting = f"directions={'null' if n is None else n}"
        asked = steps.override(run, scoring=scoring, methods=["posterior"], settings=[setting])
        scores = steps.score(asked, held, ["posterior"], engine)["posterior"]
        figures |= own_first(f"directions.known_group.{n or 'all'}", scores, groups)
    return figures


def own_first(name: str, scores: Scores, groups: list[str]) -> Figures:
    hits = scores.rank.argmin(axis=1) == np.array([scores.groups.index(g) for g in groups])
    lo, hi = clopper_pearson(int(hits.sum()), len(hits))
    print(name, hits.mean(), flush=True)
    return {name: float(hits.mean()), f"{name}.lo": lo, f"{name}.hi": hi}


class Classifier(torch.nn.Module):
    """Three convolutions; enough to tell whether samples show anything."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        sizes = (3, 48, 96, 128)
        self.body = torch.nn.Sequential(*[
            layer
            for i, o in pairwise(sizes)
            for layer in (torch.nn.Conv2d(i, o, 3, padding=1), torch.nn.BatchNorm2d(o), torch.nn.ReLU(),
                          torch.nn.MaxPool2d(2))
        ])  # fmt: skip
        self.head = torch.nn.Linear(sizes[-1] * 4, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.body(x).flatten(1))
        return out


def train_classifier(x: torch.Tensor, y: torch.Tensor, classes: int, epochs: int = 8, batch: int = 128) -> Classifier:
    torch.manual_seed(0)
    found = Classifier(classes)
    steps_ = epochs * (len(x) // batch)
    optimizer = torch.optim.AdamW(found.parameters(), 2e-3, weight_decay=1e-2)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps_)
    for step in range(steps_):
        chosen = torch.from_numpy(generator("classifier", step).integers(0, len(x), batch))
        images = x[chosen].flip(-1) if step % 2 else x[chosen]
        loss = torch.nn.functional.cross_entropy(found(images), y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.step()
    return found.eval()


def recognisable(run: Run, queries: str) -> dict[str, float]:
    """Would a classifier of real pictures know what the samples show?"""
    size, names = run.recipe.data.size, load_data(run).groups.names

    def images_of(split: str) -> tuple[torch.Tensor, torch.Tensor]:
        every = load_cifar10(size=size, split=split)
        labels = np.array([names.index(n) if n in names else -1 for n in every.groups.names])[every.groups.labels]
        return as_floats(every.images[labels >= 0]), torch.from_numpy(labels[labels >= 0])

    def as_floats(images: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(images.astype(np.float32) / 127.5 - 1)

    model = train_classifier(*images_of("train"), len(names))
    test, truth = images_of("test")
    kinds = {
        "real": test,
        "samples": as_floats(load_queries(run, queries).images),
    }
    figures: dict[str, float] = {}
    with torch.no_grad():
        figures["classifier.test"] = float((model(test).argmax(dim=1) == truth).float().mean())
        for kind, x in kinds.items():
            largest = model(x).softmax(dim=1).amax(dim=1)
            figures |= {f"classifier.{kind}": float(largest.mean()),
                        f"confident.{kind}": float((largest > 0.5).float().mean())}  # fmt: skip
    return figures


def sheet(run: Run, queries: str, path: Path, columns: int = 16, rows: int = 4) -> None:
    """The first samples, and below them training images, two rows of every group's first."""
    from PIL import Image

    data = load_data(run)
    samples = load_queries(run, queries).images[: columns * rows]
    real = np.concatenate([data.images[data.groups.members(k)[: columns // 2]] for k in range(len(data.groups))])
    blank = np.full((columns, *samples.shape[1:]), 255, np.uint8)
    every = np.concatenate([samples, blank, real])
    side = samples.shape[-1]
    tiles = every.reshape(-1, columns, 3, side, side).transpose(0, 3, 1, 4, 2).reshape(-1, columns * side, 3)
    Image.fromarray(tiles).resize((tiles.shape[1] * 3, tiles.shape[0] * 3), Image.Resampling.NEAREST).save(path)


def at_high_noise(run: Run, queries: str, methods: tuple[str, ...]) -> Figures:
    """By the terms of large t alone, where retrainings differ least."""
    figures: Figures = {}
    pictures, every = load_queries(run, queries), load_model(run, "base").schedule.T
    bands = [Bands(((t, every, 1.0),)) for t in HIGH]
    for kind, (estimand, excess) in ESTIMANDS.items():
        with scoring(run, plan="stratified", strata=12, rounds=3, estimand=estimand, excess=excess):
            gold = run_oracle(run).seed_values(pictures, bands)
            values = {m: get_method(run, m).values(pictures, bands) for m in methods}
        for i, t in enumerate(HIGH):
            agreement(figures, f"{kind}-t{t}", compare(gold[i], {m: v[i] for m, v in values.items()}))
    return figures


def cifar10(root: Path, engine: steps.Engine) -> DatasetEntry:
    name = "cifar10"
    run = prepared(root, name, engine)
    queries = steps.sample(run, engine)
    sheet(run, queries, RESULTS / "natural.png")
    retraining, groups = get_method(run, "logo"), len(load_data(run).groups)
    spent: dict[str, float] = {}
    # a variant's seconds are booked under its method's name, so those of the method itself are not known
    variants = VARIANTS[name]
    mixed = {m for m, _ in variants.values()}
    for m in ("logo", *METHODS[name]):
        found = get_method(run, m)
        seconds = None if mixed & {m, *found.parts()} else method_cost(run, queries, found).fit_seconds
        if seconds is not None:
            spent[f"fit_seconds.{m}"] = seconds / groups
    spent["fit_seconds.logo"] /= len(run.recipe.settings("logo")["seeds"])
    entry = measure_path(run, name, engine, saved=False)
    figures = entry.figures | spent | recognisable(run, queries) | at_high_noise(run, queries, METHODS[name])
    figures |= directions(run, engine) | (described(run) if "posterior-patches" in variants else {})
    asked = {m: (m, run) for m in METHODS[name]} | {
        label: (m, steps.override(run, methods=[m], settings=settings)) for label, (m, settings) in variants.items()
    }
    for label, (m, where) in asked.items():
        if (evals := get_method(where, m).fit_evals()) > 0:
            figures[f"fit_ratio.{label}"] = retraining.fit_evals() / evals
    return entry.model_copy(update={"figures": figures})


def cifar10_small(root: Path, engine: steps.Engine) -> DatasetEntry:
    folder = root / "cifar10-small"
    run = Run.open(folder) if (folder / "run.json").is_file() else steps.init(folder, builtin_recipe("cifar10-small"))
    steps.train(run, engine)
    return DatasetEntry(
        n_queries=120, n_groups=6, seeds=[], ceiling=None, methods={},
        figures=described(run) | known_groups(run, engine),
        note="the full model alone: which density describes it, and which finds the class of held-out pictures",
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "path")
    parser.add_argument("--only", nargs="*", choices=DATASETS, default=DATASETS)
    parser.add_argument("--without", nargs="*", default=[], help="methods to leave out")
    parser.add_argument("--workers", type=int)
    given = parser.parse_args()
    engine = steps.local_engine(given.workers)
    METHODS["cifar10"] = tuple(m for m in METHODS["cifar10"] if m not in given.without)
    VARIANTS["cifar10"] = {label: v for label, v in VARIANTS["cifar10"].items() if label not in given.without}
    for name in given.only:
        entry = (cifar10 if name == "cifar10" else cifar10_small)(given.runs, engine)
        keep_entry(RESULTS / "natural.json", COMMAND, name, entry, DATASETS)
        print(name, "done", flush=True)


if __name__ == "__main__":
    main()
