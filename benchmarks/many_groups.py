"""What 10, 100 and 1,000 groups cost: benchmarks/results/scale.json, datasets groups-10, groups-100, groups-1000.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/many_groups.py            # resumes; runs/many-groups-N
    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/many_groups.py 10         # one size

Synthetic groups: each has one pattern of 8x8 grey values (smooth noise), its images are that pattern, moved by up to
one pixel, with noise. Groups come in families of ten whose patterns share half of their variance, so that a group has
near relatives, as artists have. Of 100 groups the families are groups too, of 1,000 also their tens (which have nothing
in common): a tree. One small network is trained on all of them; retrack unlearns every group of every level (stored as
a low-rank change), those above with as many passes over their images, which was decided on pictures of seed 1; those
reported are of seed 2. Two screens: posterior keeps ten groups; tree:2 descends into the first two of each level.

evals_per_query      network evaluations of a picture: the posterior, and the race among the 10 groups it keeps
evals_per_query_tree the same of the descent, all levels
evals_per_query_all  the same without a screen: every group, the recipe's rounds
bank_bytes           the unlearned models on disk, of all levels
bank_bytes_whole     what whole copies would take
screen_recall_at_10  share of pictures whose first group by retrack over all groups is among the screen's first ten; at
                     50 and 200 too
tree_recall          the same of the groups that the descent raced
same_first(_tree)    share of pictures for which screen and race end at that group
same_first_noise     share for which retrack over all groups, scored again with other noise, does: the ceiling of those
..._lo, ..._hi       95 % intervals of shares (Clopper and Pearson) over the pictures
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from guda import steps
from guda.diffusion.noise import generator
from guda.evaluation.intervals import clopper_pearson
from guda.evaluation.results import DatasetEntry, keep_entry
from guda.methods.base import get_method
from guda.run.models import load_model
from guda.run.recipe import Recipe
from guda.run.run import Run
from guda.scoring.scores import Scores
from guda.scoring.screen import caught

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "scale.json"
COMMAND = "python benchmarks/scale.py && python benchmarks/many_groups.py && python benchmarks/screens.py"
EACH, FAMILY, SIDE, KEEP = 20, 10, 8, 10
STOP, DOWN = "top1@0.9,budget=4000", "tree:2"


def smooth(*key: Any) -> np.ndarray:
    """A pattern of variance one: noise without its high frequencies."""
    spectrum = np.fft.rfft2(generator(*key).standard_normal((SIDE, SIDE)))
    fy, fx = np.fft.fftfreq(SIDE)[:, None], np.fft.rfftfreq(SIDE)[None, :]
    field = np.fft.irfft2(spectrum * np.exp(-12 * (fy**2 + fx**2)), (SIDE, SIDE))
    return (field - field.mean()) / field.std()


def tiers(n: int) -> list[int]:
    """Sizes of the groups above, from the top."""
    return [size for size in (100, 10) if size < n]


def write_images(folder: Path, n: int) -> Path:
    """One sub-folder of PNGs per group."""
    for g in range(n):
        target = folder.joinpath(*(f"s{g // size:02d}-{size}" for size in tiers(n)), f"g{g:04d}")
        if len(list(target.glob("*.png"))) == EACH:
            continue
        target.mkdir(parents=True, exist_ok=True)
        pattern = np.sqrt(0.5) * (smooth("family", g // FAMILY) + smooth("group", g))
        rng = generator("images", g)
        for i in range(EACH):
            moved = np.roll(pattern, rng.integers(-1, 2, 2), axis=(0, 1)) + 0.25 * rng.standard_normal((SIDE, SIDE))
            pixels = np.clip(np.rint(127.5 + 50 * moved), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(target / f"{i:02d}.png")
    return folder


def recipe(folder: Path, n: int) -> Recipe:
    return Recipe.from_dict(
        {
            "name": f"groups-{n}",
            "data": {"source": str(folder), "group_by": "/".join(f"level:{i + 1}" for i in range(len(tiers(n)) + 1))},
            "model": {"net": "mlp", "options": {"width": 256, "depth": 3}, "scheduler": "squaredcos_cap_v2:1000"},
            "training": {"steps": 4000, "batch": 128, "lr": 1.0e-3, "warmup": 100, "ema": 0.999, "seed": 0},
            "methods": {
                # the digits' settings at a quarter of the steps, beforehand: nothing here was chosen by these results
                "retrack": {"steps": 25, "lr": 3.0e-4, "decay": True, "batch_forget": 16, "batch_retain": 16,
                            "lambda_forget": 0.3, "window": [0.1, 1.0], "store": "lowrank:4:bf16"},
                "posterior": {"components": 1, "shrink": 0.6},
            },
            "queries": {"n": 50, "seed": 2, "steps": 100},
            "scoring": {"strata": 12, "rounds": 3, "block": 256, "shard": 50},
        },
        f"groups-{n}",
    )  # fmt: skip


def measure(n: int) -> dict[str, float]:
    root = ROOT / "runs" / f"many-groups-{n}"
    run = steps.init(root, recipe(write_images(ROOT / "runs" / "many-groups-data" / str(n), n), n), keep_edits=True)
    engine = steps.local_engine()
    steps.fit(run, ["retrack", "posterior"], engine)
    queries = steps.sample(run, engine)
    scores = steps.score(run, queries, ["retrack", "posterior"], engine)
    keep = min(KEEP, n)
    first = scores["retrack"].rank.argmin(axis=1)
    tree: dict[str, float] = {}
    if n > KEEP:
        raced = steps.score(run, queries, ["retrack"], engine, stop=STOP, screen=f"posterior:{keep}")["retrack"]
        screen_evals = get_method(run, "posterior").score_evals()
        down = steps.score(run, queries, ["retrack"], engine, stop=STOP, screen=DOWN)["retrack"]
        above = steps.upper_levels(run, queries, "retrack", steps.variant(run, STOP, None, screen=DOWN))
        started = np.asarray(down.n_evals) > 0
        tree = {f"evals_per_query_tree_{n}": float(sum(steps.evals_per_picture(run, s) for s in (*above, down)))}
        tree |= share(f"tree_recall_{n}", started[np.arange(len(first)), first])
        tree |= share(f"same_first_tree_{n}", down.rank.argmin(axis=1) == first)
    else:  # nothing to screen
        raced, screen_evals = steps.score(run, queries, ["retrack"], engine, stop=STOP)["retrack"], 0.0
    steps.change_scoring(run, seed=1)
    again = steps.score(run, queries, ["retrack"], engine)["retrack"]
    steps.change_scoring(run, seed=0)
    steps.score(run, queries, ["retrack"], engine)  # the tables of the recipe's own seed, from terms that are there
    bank = sum(p.stat().st_size for p in _bank(run).glob("*.safetensors"))
    fitted = len(list(_bank(run).glob("*.safetensors")))
    weights = sum(p.numel() * p.element_size() for p in load_model(run, "base").module.state_dict().values())
    return {
        f"evals_per_query_{n}": float(steps.evals_per_picture(run, raced) + screen_evals),
        f"evals_per_query_all_{n}": float(get_method(run, "retrack").score_evals()),
        f"bank_bytes_{n}": float(bank),
        f"bank_bytes_whole_{n}": float(weights * fitted),
        **recalls(n, scores["posterior"], scores["retrack"]),
        **share(f"same_first_{n}", raced.rank.argmin(axis=1) == first),
        **share(f"same_first_noise_{n}", again.rank.argmin(axis=1) == first),
        **tree,
        f"fit_seconds_per_group_{n}": (run.seconds("fit/retrack") or 0.0) / fitted,
    }


def recalls(n: int, screen: Scores, settled: Scores) -> dict[str, float]:
    """At ten, and at more where there are more."""
    found: dict[str, float] = {}
    for k in (KEEP, *(k for k in (50, 200) if k < n)):
        found |= share(f"screen_recall_at_{k}_{n}", caught({screen.method: screen}, settled, min(k, n)))
    return found


def share(name: str, hits: np.ndarray) -> dict[str, float]:
    lo, hi = clopper_pearson(int(hits.sum()), len(hits))
    return {name: float(hits.mean()), f"{name}_lo": lo, f"{name}_hi": hi}


def _bank(run: Run) -> Path:
    return run.path(get_method(run, "retrack").artifact())


def main() -> None:
    for n in [int(a) for a in sys.argv[1:]] or [10, 100, 1000]:
        figures = measure(n)
        print("\n".join(f"{name:<32}{value:,.4g}" for name, value in figures.items()), flush=True)
        entry = DatasetEntry(n_queries=50, n_groups=n, seeds=[0], ceiling=None, methods={}, figures=figures)
        keep_entry(RESULTS, COMMAND, f"groups-{n}", entry)


if __name__ == "__main__":
    main()
