"""Subset models: what they say that LOGO cannot, whether scores add up to them, shares, and opt-outs.

    OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 python benchmarks/coalitions.py [--only digits ...] [--models 128]    resumes

Data sets: digits (128 models), fashion-mnist (64), fonts (128; sixty families, LOGO of a dozen), the latter two with
small networks, because a hundred of them are trained (recipes/fashion-small.yaml, fonts-small.yaml), and cifar10 (64,
fine-tuned from the committed start of recipes/cifar10.yaml). Runs are those of benchmarks/path.py, where they exist
(--runs), so that LOGO is not trained twice; what is missing is trained (hours).
Scored with 12 strata in 3 rounds. Figures of benchmarks/results/coalitions.json; intervals .lo and .hi:

trainings                   M, subset models
reliability_datamodel       of datamodel scores by M trainings: correlation of two halves of the pairs, scores centred
                            for every picture, mean over 20 divisions, Spearman-Brown to all pairs
reliability_logo            of LOGO with as many trainings, M / (G + 1) seeds, by Spearman-Brown from those that there
                            are. Both of the groups that LOGO was trained for; intervals over pictures
reliability_datamodel_all   of all groups (fonts)
..._path                    the same of path divergence against the average picture
predicted_gain              G / 4: variance of a LOGO score over that of a datamodel score, by design
lds.M, lds_ceiling          docs/evaluation.md; ELBO differences
share_correlation           of shares by posterior and by subsets, over pictures and groups, centred for every picture
                            (at most twelve groups)
share_error, share_size     their mean absolute difference and the mean absolute share by subsets, nats
without_r2.E, without_spearman.E   predicted against measured ELBO of every subset model, by engine E (subsets: by pairs
                            that the regression has not seen)
known_group.M               held-out real pictures: the share whose own group is first (ELBO differences)
train_seconds               of one subset model, median
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from guda import steps
from guda.diffusion.noise import generator
from guda.evaluation.attributable import spearman_brown
from guda.evaluation.ceiling import compare
from guda.evaluation.intervals import Figure, clopper_pearson, percentile_interval, query_counts
from guda.evaluation.results import DatasetEntry, dataset_entry, keep_entry
from guda.files import write_text
from guda.methods.base import get_method
from guda.methods.datamodel import DatamodelMethod
from guda.methods.subsets import find_subsets
from guda.methods.terms import load_queries
from guda.run.data import scored_groups
from guda.run.run import Run
from guda.scoring.scores import Scores
from guda.steps import ShareOptions
from guda.steps.fit import Engine
from guda.steps.lds import evaluated_subsets, lds_figures
from guda.steps.without import check_prediction
from path import METHODS as METHODS_OF
from path import Figures, held_out, put, recipe_of

ROOT = Path(__file__).parents[1]
COMMAND = "OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 python benchmarks/coalitions.py"
RESULTS = ROOT / "benchmarks" / "results"
MODELS = {"digits": 128, "fashion-mnist": 64, "fonts": 128, "cifar10": 64}
OPERATORS = ("retrack", "shift", "posterior", "hybrid", "retain", "ascent", "siss", "erasediff")
BASELINES = ("similarity-pixel", "trak", "dtrak", "das")
METHODS = {
    "digits": (*OPERATORS, *BASELINES),
    "fashion-mnist": (*OPERATORS, *BASELINES),
    "fonts": ("retrack", "shift", "posterior", "similarity-pixel", "dtrak"),
    "cifar10": METHODS_OF["cifar10"],
}
RECIPES = {"fashion-mnist": "fashion-small", "fonts": "fonts-small"}
SPLITS, RESAMPLES, EXACT = 20, 500, 4096
PLAN = {"plan": "stratified", "strata": 12, "rounds": 3}
KINDS = {"": {"estimand": "elbo", "excess": False}, "_path": {"estimand": "path", "excess": True}}


def prepared(root: Path, name: str, models: int, methods: tuple[str, ...], engine: Engine) -> Run:
    """The run with everything trained and fitted. Subset models are drawn over all groups, whatever LOGO covers."""
    folder = root / RECIPES.get(name, name)
    if (folder / "run.json").is_file():
        run = Run.open(folder)
    else:
        run = steps.init(folder, recipe_of(root, RECIPES.get(name, name), engine))
    steps.update_settings(run, "subsets", {"models": models})
    for method in methods:
        if method not in run.recipe.methods:
            steps.update_settings(run, method, {})
    steps.fit(whole(run), ["subsets", *methods], engine)
    steps.fit(of_logo(run, name), ["logo"], engine)
    return run


def whole(run: Run, **scoring: object) -> Run:
    """All groups."""
    return steps.override(run, groups="all", scoring=PLAN | scoring)


def of_logo(run: Run, name: str, **scoring: object) -> Run:
    """The groups that LOGO is trained for."""
    groups = "all"
    if name == "fonts":
        from fonts import DOZEN

        groups = ",".join(DOZEN)
    return steps.override(run, groups=groups, scoring=PLAN | scoring)


# ---- reliability ----------------------------------------------------------------------------------------------------
def repeated(pairs: list[tuple[np.ndarray, np.ndarray]], factor: float) -> Figure:
    """Mean correlation of two tables [Q, G] of the same scores, centred for every picture, by Spearman-Brown to
    `factor` times as many trainings; interval over pictures."""

    def centred(x: np.ndarray) -> np.ndarray:
        return x - x.mean(axis=1, keepdims=True)

    sums = [[(u * v).sum(axis=1) for u, v in ((a, b), (a, a), (b, b))] for a, b in
            ((centred(x), centred(y)) for x, y in pairs)]  # fmt: skip

    def of(weights: np.ndarray) -> np.ndarray:  # [n, Q] -> [n]
        r = np.mean([(weights @ ab) / np.sqrt((weights @ aa) * (weights @ bb)) for ab, aa, bb in sums], axis=0)
        return r if factor == 1 else np.array([spearman_brown(float(x), factor) for x in r])  # type: ignore[arg-type]

    n = len(sums[0][0])
    drawn = np.concatenate([of(w) for w in query_counts(n, RESAMPLES, 0)])
    return percentile_interval(float(of(np.ones((1, n)))[0]), drawn)


def split_halves(found: DatamodelMethod, queries: str, columns: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Scores of the groups `columns` by random halves of the pairs."""
    values = found.read(load_queries(found.run, queries))
    tables = []
    for number in range(SPLITS):
        order = generator("split halves", number).permutation(values.pairs)
        half = values.pairs // 2
        tables.append(
            tuple(
                values.fit(found.config.ridge, np.sort(part)).coefficients[:, columns]
                for part in (order[:half], order[half : 2 * half])
            )
        )
    return tables  # type: ignore[return-value]


def reliabilities(run: Run, name: str, queries: str, kind: str, engine: Engine) -> Figures:
    """Of both by the same number of trainings, for the groups of LOGO."""
    figures: Figures = {}
    every, some = whole(run, **KINDS[kind]), of_logo(run, name, **KINDS[kind])
    steps.score(every, queries, ["datamodel"], engine)
    seeds = steps.score(some, queries, ["logo"], engine) and get_method(some, "logo").replicates()
    gold = [Scores.read(steps.scores_path(some, queries, f"logo-s{s}")).score for s in seeds]
    groups, asked = scored_groups(every), scored_groups(some)
    model = get_method(every, "datamodel")
    assert isinstance(model, DatamodelMethod)
    models = find_subsets(every).config.models
    per_seed = len(groups) + 1  # what LOGO of all groups would train for one seed
    pairs = [(a, b) for i, a in enumerate(gold) for b in gold[i + 1 :]]
    put(figures, f"reliability_logo{kind}", repeated(pairs, models / per_seed))
    put(figures, f"reliability_logo_one{kind}", repeated(pairs, 1.0))
    halves = split_halves(model, queries, [groups.index(g) for g in asked])
    put(figures, f"reliability_datamodel{kind}", repeated(halves, 2.0))
    if asked != groups:
        halves = split_halves(model, queries, list(range(len(groups))))
        put(figures, f"reliability_datamodel_all{kind}", repeated(halves, 2.0))
    return figures


# ---- shares and opt-outs --------------------------------------------------------------------------------------------
def share_figures(run: Run, queries: str, engine: Engine) -> Figures:
    figures: Figures = {}
    tables = []
    for by in ("posterior", "subsets"):
        found = steps.shares(run, queries, ShareOptions(engine=by, value="elbo", pool=False), engine)  # type: ignore[arg-type]
        tables.append(np.array([[r.mean for r in p.rows] for p in found.pictures]))
        put(figures, f"share_total.{by}", found.total)
    ours, theirs = tables
    put(figures, "share_correlation", repeated([(ours, theirs)], 1.0))
    off = np.abs(ours - theirs).mean(axis=1)
    drawn = np.concatenate([w @ off / len(off) for w in query_counts(len(off), RESAMPLES, 0)])
    put(figures, "share_error", percentile_interval(float(off.mean()), drawn))
    figures["share_size"] = float(np.abs(theirs).mean())
    return figures


def without_figures(run: Run, queries: str, engine: Engine) -> Figures:
    figures: Figures = {}
    pictures = load_queries(run, queries)
    for by in ("posterior", "subsets"):
        found = check_prediction(run, pictures, by, None, engine)  # type: ignore[arg-type]
        assert found is not None
        put(figures, f"without_r2.{by}", found.r2)
        put(figures, f"without_spearman.{by}", found.spearman)
        figures["without_subsets"] = float(found.subsets)
    return figures


def known_figures(run: Run, name: str, methods: list[str], engine: Engine) -> Figures:
    """Right first groups of held-out pictures; nothing where every picture was trained on."""
    if name == "fonts":
        from fonts import held_out as of_fonts

        held = of_fonts(run)
    elif (found := held_out(run, name)) is not None:
        held = found
    else:
        return {}
    figures: Figures = {}
    for method, scores in steps.score(run, held[0], methods, engine).items():
        truth = np.array([scores.groups.index(g) for g in held[1]])
        hits = scores.rank.argmin(axis=1) == truth
        lo, hi = clopper_pearson(int(hits.sum()), len(hits))
        put(figures, f"known_group.{method}", Figure(mean=float(hits.mean()), lo=lo, hi=hi))
    return figures


def measure(run: Run, name: str, methods: tuple[str, ...], engine: Engine) -> DatasetEntry:
    queries = steps.sample(run, engine)
    subsets = find_subsets(whole(run))
    groups = len(subsets.groups)
    figures: Figures = {"trainings": float(subsets.config.models), "predicted_gain": groups / 4}
    for kind in ("_path", ""):  # path first: it leaves the terms of both
        figures |= reliabilities(run, name, queries, kind, engine)
    plain = whole(run, **KINDS[""])
    scores = steps.score(plain, queries, [*methods, "datamodel"], engine)
    some = of_logo(run, name, **KINDS[""])
    seeds = get_method(some, "logo").replicates()
    logo = steps.score(some, queries, ["logo"], engine)["logo"]
    gold = np.stack([Scores.read(steps.scores_path(some, queries, f"logo-s{s}")).score for s in seeds])
    columns = [scores["datamodel"].groups.index(g) for g in logo.groups]
    comparison = compare(gold, {m: s.score[:, columns] for m, s in scores.items()})
    assert evaluated_subsets(plain, load_queries(plain, queries)) is not None
    with_logo = scores | ({"logo": logo} if len(columns) == groups else {})
    figures |= lds_figures(plain, load_queries(plain, queries), with_logo)
    if 2**groups <= EXACT:  # beyond, random orders of sixty groups take hours
        figures |= share_figures(plain, queries, engine)
    figures |= without_figures(plain, queries, engine)
    figures |= known_figures(plain, name, [*methods, "datamodel"], engine)
    times = sorted(run.path("timings", "fit", "subsets").glob("*.json"))
    if times:
        figures["train_seconds"] = float(np.median([json.loads(p.read_text())["seconds"] for p in times]))
    return dataset_entry(comparison, list(seeds), logo.estimand, figures=figures, unit=logo.unit, sign=logo.sign)


def markdown(datasets: dict[str, DatasetEntry]) -> str:
    """The tables of docs/coalitions.md."""

    def cell(f: Figures, name: str) -> str:
        if name not in f:
            return ""
        return f"{f[name]:.2f}" + (f" [{f[name + '.lo']:.2f}, {f[name + '.hi']:.2f}]" if name + ".lo" in f else "")

    rows = (
        ("trainings", "trainings"), ("reliability of LOGO, as many trainings", "reliability_logo"),
        ("reliability of datamodel", "reliability_datamodel"),
        ("the same by path, LOGO", "reliability_logo_path"),
        ("the same by path, datamodel", "reliability_datamodel_path"),
        ("LDS ceiling", "lds_ceiling"), ("shares, posterior against subsets: correlation", "share_correlation"),
        ("mean absolute difference, nats", "share_error"), ("opt-out, R2 by subsets", "without_r2.subsets"),
        ("opt-out, R2 by posterior", "without_r2.posterior"),
        ("opt-out, Spearman by subsets", "without_spearman.subsets"),
        ("opt-out, Spearman by posterior", "without_spearman.posterior"),
    )  # fmt: skip
    lines = [
        "# Coalitions",
        "",
        "Written by `make bench-coalitions`; figures are explained in benchmarks/coalitions.py.",
        "",
    ]
    lines += ["| | " + " | ".join(datasets) + " |", "|---|" + "---|" * len(datasets)]
    lines += [
        f"| {label} | " + " | ".join(cell(e.figures, key) for e in datasets.values()) + " |" for label, key in rows
    ]
    for title, prefix in (("LDS", "lds."), ("held-out pictures: own group first", "known_group.")):
        named = dict.fromkeys(
            k for e in datasets.values() for k in e.figures if k.startswith(prefix) and k[-3:] not in (".lo", ".hi")
        )
        if named:
            lines += ["", f"| {title} | " + " | ".join(datasets) + " |", "|---|" + "---|" * len(datasets)]
            lines += [
                f"| {k.removeprefix(prefix)} | " + " | ".join(cell(e.figures, k) for e in datasets.values()) + " |"
                for k in named
            ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "path")
    parser.add_argument("--only", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--models", type=int, help="subset models; default: of the data set")
    parser.add_argument("--without", nargs="*", default=[], help="methods to leave out")
    parser.add_argument("--workers", type=int)
    given = parser.parse_args()
    engine = steps.local_engine(given.workers)
    for name in given.only:
        methods = tuple(m for m in METHODS[name] if m not in given.without)
        run = prepared(given.runs, name, given.models or MODELS[name], methods, engine)
        entry = measure(run, name, methods, engine)
        datasets = keep_entry(RESULTS / "coalitions.json", COMMAND, name, entry, MODELS)
        write_text(RESULTS / "coalitions.md", markdown(datasets))
        print(name, "done", flush=True)


if __name__ == "__main__":
    main()
