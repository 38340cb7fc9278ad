"""Screens of many groups against planted truth: benchmarks/results/scale.json, datasets planted-fonts, -100, -1000.

    OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 python benchmarks/screens.py [--runs FOLDER] [--only fonts ...]     resumes

A screen must keep the group that a picture comes from. Held-out pictures of known groups say whether it does, without
asking another method: 240 pictures of sixty font families (recipes/fonts-small.yaml), and 200 of a thousand synthetic
groups with near relatives (many_groups.py). Screens are cheap methods alone and together, fused by reciprocal ranks
(src/guda/scoring/screen.py; nothing is fitted) or `learned`: scores over their spread within the picture, added up with
weights >= 0 that make the own groups of four fifths of the pictures likeliest (conditional logit); each fifth is ranked
by the weights of the others. posterior by both estimands. Of the synthetic groups also retrack over
all groups, by both estimands, so that planted truth can say which of the two errs where they differ; groups-100: a
hundred groups, a picture of each. `race`: posterior (path) keeps ten groups and retrack races them, as many_groups.py
does, by path divergence against the average picture. Figures, shares of the pictures with Clopper and Pearson's
intervals .lo, .hi:

known_group_first_N.S     the picture's own group is first by screen S; N: fonts, 100, 1000
screen_recall_at_10_N.S   it is among the first ten
of_retrack_N.S            where retrack (path excess) has the own group first: the share that S has among its first ten
gain_N.H.M                paired difference of recall at ten, all three together (H: fused, learned) less M alone;
                          bootstrap over pictures
weight_N.M                of `learned`, mean over the fifths
evals_per_query_N.S       network evaluations of a picture
same_first_N.race         the race ends at the group that retrack (path excess) has first of all groups
same_first_N.noise        retrack, asked about all groups again with other noise, has that first: what same_first can be
seconds_N.retrack-path    of a picture, all groups, the average picture's share included: workers' time
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
from guda.steps.evaluate import method_cost
from many_groups import COMMAND, EACH, FAMILY, RESULTS, STOP, share, smooth

Figures = dict[str, float]

ROOT = Path(__file__).parents[1]
CHEAP = ("posterior", "dtrak", "similarity-pixel")
STACKED = ("posterior-path", "dtrak", "similarity-pixel")
FULL = "retrack"  # of the synthetic groups
KEEP, HELD, PICTURES, FOLDS = 10, "held-out", 200, 5


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


def unlearned(run: Run, engine: steps.Engine) -> tuple[dict[str, Scores], Figures]:
    """By the full method; path divergence against the average picture, and the ELBO difference."""
    steps.fit(run, [FULL], engine)
    found, figures = {}, Figures()
    for name, estimand, excess in ((f"{FULL}-path", "path", True), (FULL, "elbo", False)):
        asked = steps.override(run, scoring={"estimand": estimand, "excess": excess, "foreign": "skip"})
        found[name] = steps.score(asked, HELD, [FULL], engine)[FULL]
        if excess and (spent := method_cost(asked, HELD, get_method(asked, FULL)).score_seconds) is not None:
            figures[f"seconds.{name}"] = spent / len(found[name].queries)
    asked = steps.override(run, scoring={"estimand": "path", "excess": True, "foreign": "skip"})
    found["race"] = steps.score(asked, HELD, [FULL], engine, stop=STOP, screen=f"posterior:{KEEP}")[FULL]
    figures["evals_per_query.race"] = float(steps.evals_per_picture(asked, found["race"]))
    other = steps.override(asked, scoring={"seed": run.recipe.scoring.seed + 1})
    again = steps.score(other, HELD, [FULL], engine)[FULL]
    first = found[f"{FULL}-path"].rank.argmin(axis=1)
    for name, scores in (("race", found["race"]), ("noise", again)):
        figures |= put_share(f"same_first.{name}", scores.rank.argmin(axis=1) == first)
    return found, figures


def put_share(name: str, hits: np.ndarray) -> Figures:
    return {k.replace("_lo", ".lo").replace("_hi", ".hi"): v for k, v in share(name, hits).items()}


def learned_ranks(tables: dict[str, Scores], own: np.ndarray) -> tuple[np.ndarray, Figures]:
    """Rank of every picture's own group, and the weights of the methods."""
    from scipy.optimize import minimize
    from scipy.special import logsumexp

    score = np.stack([t.score for t in tables.values()], axis=2)  # [Q, G, M]
    spread = score.std(axis=1, keepdims=True)
    x = (score - score.mean(axis=1, keepdims=True)) / np.where(spread > 0, spread, 1)
    fold = generator("folds", len(own)).permutation(len(own)) % FOLDS
    rank, weights = np.zeros(len(own), int), []
    for k in range(FOLDS):
        known, truth = x[fold != k], own[fold != k]
        right = known[np.arange(len(truth)), truth]

        def loss(w: np.ndarray, known: np.ndarray = known, right: np.ndarray = right) -> float:
            return float((logsumexp(known @ w, axis=1) - right @ w).mean())

        w = minimize(loss, np.ones(x.shape[2]), bounds=[(0, None)] * x.shape[2]).x
        weights.append(w)
        fused = x[fold == k] @ w
        rank[fold == k] = 1 + (fused > fused[np.arange(len(fused)), own[fold == k]][:, None]).sum(axis=1)
    return rank, dict(zip(tables, np.mean(weights, axis=0).tolist(), strict=True))


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
    figures = Figures()
    hits: dict[str, np.ndarray] = {}
    cheap = tuple(tables)
    if FULL in run.recipe.methods and run.recipe.name.startswith("groups-"):
        full, figures = unlearned(run, engine)
        tables |= full
        evals |= dict.fromkeys((f"{FULL}-path", FULL), get_method(run, FULL).score_evals())
        evals["race"] = figures["evals_per_query.race"]
    screens = [(name,) for name in tables]
    screens += [s for size in (2, 3) for s in combinations(STACKED, size)]
    for screen in screens:
        name = "+".join(screen)
        rank = fused_ranks({m: tables[m] for m in screen})[np.arange(len(own)), own]
        hits[name] = rank <= KEEP
        for figure, value in ((f"known_group_first.{name}", rank == 1), (f"screen_recall_at_10.{name}", hits[name])):
            figures |= put_share(figure, value)
        figures[f"evals_per_query.{name}"] = float(sum(evals[m] for m in screen))
    if f"{FULL}-path" in tables:
        right = fused_ranks({FULL: tables[f"{FULL}-path"]})[np.arange(len(own)), own] == 1
        for name in cheap:
            figures |= put_share(f"of_retrack.{name}", hits[name][right])
    rank, weights = learned_ranks({m: tables[m] for m in STACKED}, own)
    hits["learned"] = rank <= KEEP
    figures |= put_share("known_group_first.learned", rank == 1) | {f"weight.{m}": w for m, w in weights.items()}
    figures |= put_share("screen_recall_at_10.learned", hits["learned"])
    figures["evals_per_query.learned"] = float(sum(evals[m] for m in STACKED))
    for how, together in (("fused", "+".join(STACKED)), ("learned", "learned")):
        for name in cheap:
            found = bootstrap_mean(hits[together].astype(float) - hits[name])
            key = f"gain.{how}.{name}"
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
        entry, n = measure(*found, engine), name.removeprefix("groups-")
        numbered = {k.replace(".", f"_{n}.", 1): v for k, v in entry.figures.items()}
        entry = entry.model_copy(update={"figures": numbered})
        keep_entry(RESULTS, COMMAND, f"planted-{n}", entry)
        for key in sorted(k for k in entry.figures if not k.endswith((".lo", ".hi"))):
            print(f"{name} {key:<70}{entry.figures[key]:,.3f}", flush=True)


if __name__ == "__main__":
    main()
