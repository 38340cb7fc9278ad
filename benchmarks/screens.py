"""Screens of many groups against planted truth: benchmarks/results/screens.json.

    OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 python benchmarks/screens.py [--runs FOLDER] [--only fonts ...]     resumes

A screen must keep the group that a picture comes from. Held-out pictures of known groups say whether it does, without
asking another method: 240 pictures of sixty font families (recipes/fonts-small.yaml), and 200 of a thousand synthetic
groups with near relatives (many_groups.py). Screens are cheap methods alone and together, fused by reciprocal ranks
(src/guda/scoring/screen.py; nothing is fitted). posterior by both estimands. Of the synthetic groups also retrack over
all groups, by both estimands, so that planted truth can say which of the two errs where they differ; groups-100: a
hundred groups, a picture of each. Figures, shares of the pictures with Clopper and Pearson's intervals .lo, .hi:

known_group_first.S     the picture's own group is first by screen S
screen_recall_at_10.S   it is among the first ten
of_retrack.S            where retrack (path excess) has the own group first: the share that S has among its first ten
gain.fused.M            paired difference of recall at ten, all three together less M alone; bootstrap over pictures
evals.S                 network evaluations of a picture
"""

from __future__ import annotations

import argparse
from itertools import combinations
from pathlib import Path

import numpy as np

import many_groups
from guda import steps
from guda.data.queries import Queries
from guda.diffusion.noise import generator
from guda.evaluation.intervals import bootstrap_mean
from guda.evaluation.results import DatasetEntry, keep_entry
from guda.methods.base import get_method
from guda.run.recipe import Recipe
from guda.run.run import Run
from guda.scoring.scores import Scores
from guda.scoring.screen import fused_ranks
from many_groups import EACH, FAMILY, share, smooth

ROOT = Path(__file__).parents[1]
COMMAND = "OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 python benchmarks/screens.py"
CHEAP = ("posterior", "dtrak", "similarity-pixel")
FULL = "retrack"  # of the synthetic groups
KEEP, HELD, PICTURES = 10, "held-out", 200


def fonts(root: Path) -> tuple[Run, list[str]]:
    from fonts import held_out

    folder = root / "fonts-small"
    known = (folder / "run.json").is_file()
    run = Run.open(folder) if known else steps.init(
        folder, Recipe.read(ROOT / "benchmarks" / "recipes" / "fonts-small.yaml")
    )  # fmt: skip
    steps.change_groups(run, "all")
    return run, held_out(run)[1]


def synthetic(root: Path, n: int) -> tuple[Run, list[str]]:
    folder = root / f"many-groups-{n}"
    if (folder / "run.json").is_file():
        run = Run.open(folder)
    else:
        run = steps.init(folder, many_groups.recipe(many_groups.write_images(root / f"many-groups-data-{n}", n), n))
    chosen = generator("held-out groups", n).permutation(n)[:PICTURES]
    names = [name for name in run_groups(run) if name.rpartition("/")[2].startswith("g")]
    images = []
    for g in chosen.tolist():
        pattern, rng = np.sqrt(0.5) * (smooth("family", g // FAMILY) + smooth("group", g)), generator("held-out", g)
        moved = np.roll(pattern, rng.integers(-1, 2, 2), axis=(0, 1)) + 0.25 * rng.standard_normal(pattern.shape)
        images.append(np.clip(np.rint(127.5 + 50 * moved), 0, 255).astype(np.uint8)[None])
    assert EACH == 20
    truth = [next(name for name in names if name.endswith(f"g{g:04d}")) for g in chosen.tolist()]
    if not run.has(f"queries/{HELD}/index.json"):
        ids = tuple(f"{i:03d}" for i in range(len(images)))
        Queries(ids, np.stack(images), None, HELD).save(run.path("queries", HELD))
    return run, truth


def run_groups(run: Run) -> tuple[str, ...]:
    from guda.run.data import scored_groups

    return scored_groups(run)


def unlearned(run: Run, engine: steps.Engine) -> dict[str, Scores]:
    """By the full method; path divergence against the average picture, and the ELBO difference."""
    steps.fit(run, [FULL], engine)
    found = {}
    for name, estimand, excess in ((f"{FULL}-path", "path", True), (FULL, "elbo", False)):
        asked = steps.override(run, scoring={"estimand": estimand, "excess": excess, "foreign": "skip"})
        found[name] = steps.score(asked, HELD, [FULL], engine)[FULL]
    return found


def measure(run: Run, truth: list[str], engine: steps.Engine) -> DatasetEntry:
    for method in CHEAP:
        if method not in run.recipe.methods:
            steps.update_settings(run, method, {})
    steps.fit(run, CHEAP, engine)
    tables: dict[str, Scores] = {}
    evals: dict[str, float] = {}
    for estimand in ("path", "elbo"):
        asked = steps.override(run, scoring={"estimand": estimand, "excess": False, "foreign": "skip"})
        methods = CHEAP if estimand == "elbo" else ("posterior",)
        for method, scores in steps.score(asked, HELD, methods, engine).items():
            name = f"{method}-path" if estimand == "path" else method
            tables[name], evals[name] = scores, get_method(asked, method).score_evals()
    groups = next(iter(tables.values())).groups
    own = np.array([groups.index(name) for name in truth])
    figures: dict[str, float] = {}
    hits: dict[str, np.ndarray] = {}
    cheap = tuple(tables)
    if FULL in run.recipe.methods and run.recipe.name.startswith("groups-"):
        tables |= unlearned(run, engine)
        evals |= dict.fromkeys((f"{FULL}-path", FULL), get_method(run, FULL).score_evals())
    screens = [(name,) for name in tables]
    screens += [s for size in (2, 3) for s in combinations(("posterior-path", "dtrak", "similarity-pixel"), size)]
    for screen in screens:
        name = "+".join(screen)
        rank = fused_ranks({m: tables[m] for m in screen})[np.arange(len(own)), own]
        hits[name] = rank <= KEEP
        for figure, value in ((f"known_group_first.{name}", rank == 1), (f"screen_recall_at_10.{name}", hits[name])):
            figures |= {k.replace("_lo", ".lo").replace("_hi", ".hi"): v for k, v in share(figure, value).items()}
        figures[f"evals.{name}"] = float(sum(evals[m] for m in screen))
    if f"{FULL}-path" in tables:
        right = fused_ranks({FULL: tables[f"{FULL}-path"]})[np.arange(len(own)), own] == 1
        for name in cheap:
            kept = share(f"of_retrack.{name}", hits[name][right])
            figures |= {k.replace("_lo", ".lo").replace("_hi", ".hi"): v for k, v in kept.items()}
    together = "posterior-path+dtrak+similarity-pixel"
    for name in cheap:
        found = bootstrap_mean(hits[together].astype(float) - hits[name])
        key = f"gain.fused.{name}"
        figures |= {key: found.mean, f"{key}.lo": found.lo, f"{key}.hi": found.hi}
    return DatasetEntry(
        n_queries=len(own), n_groups=len(groups), seeds=[], ceiling=None, methods={}, figures=figures,
        note="posterior-path: by path divergence, which evaluates no network; posterior: by the ELBO difference",
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "path")
    parser.add_argument("--only", nargs="*", default=["fonts", "groups-100", "groups-1000"])
    parser.add_argument("--workers", type=int)
    given = parser.parse_args()
    engine = steps.local_engine(given.workers)
    for name in given.only:
        found = fonts(given.runs) if name == "fonts" else synthetic(given.runs, int(name.rpartition("-")[2]))
        entry = measure(*found, engine)
        keep_entry(ROOT / "benchmarks" / "results" / "screens.json", COMMAND, name, entry)
        for key in sorted(k for k in entry.figures if not k.endswith((".lo", ".hi"))):
            print(f"{name} {key:<70}{entry.figures[key]:,.3f}", flush=True)


if __name__ == "__main__":
    main()
