"""Path divergence against the ELBO difference: which of them do two retrainings agree on, and methods with them?

    OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 python benchmarks/path.py [--runs FOLDER] [--only digits ...]     resumes

Data sets: digits (LOGO with four seeds), fashion-mnist, fashion-small (the same data, the small network of
recipes/fashion-small.yaml), emoji, cifar10-small, cifar10 (all ten classes, fine-tuned from a committed start that has
seen other images of them: recipes/cifar10.yaml; natural.py measures more of it),
fonts (a dozen of sixty families, by the small network of recipes/fonts-small.yaml), and digits-60: the digits cut into
sixty groups of about 30 images, of which a dozen is asked about. Each as in its recipe but for the plan: `stratified`,
so that both estimands are read from the same evaluations and neither has a pilot of its own. A data set whose
retrainings are not there yet is trained (hours); finished work is kept.

Figures of benchmarks/results/path.json; estimand: elbo, elbo-excess, path, path-excess, cross; intervals .lo, .hi:

reliability.E, reliability_top1.E   one retraining against the mean of the others: Spearman, Top-1. Of `cross`: the
                                    product of two seeds against that of two others (four seeds);
                                    methods by path-excess, against every pair.
reliability_null.E                  Spearman of a table that knows the other retraining's first group and, of every
                                    group, its mean over pictures where it is not the first: what is above it is
                                    information about the other groups
groups.E.ANSWER                     groups whose scores are attributable, pool_with_others or below_noise by the
                                    retrainings there are (docs/trust.md)
of_ceiling[_spearman].E.M           method M against the retrainings, over what one retraining reaches
evals_ratio_path                    M = the data set's first operator: evaluations of the ELBO difference with 12 x 3
                                    draws over those of path at the smallest plan whose first group is as stable (Top-1
                                    against an independent 12 x 3 estimate of the same scores)
known_group.E.M                     held-out real pictures: the share whose own group is first
function_cos.M, .own, .other        cosine of what M and what a retraining change, 32 pictures; logo: of two of them
function_width.M, top1_width.M      interval widths on the first 16 pictures: cosine, and Top-1 under elbo
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from guda import steps
from guda.data.images import ImageData
from guda.data.queries import Queries
from guda.diffusion.noise import generator
from guda.evaluation.attributable import attributable
from guda.evaluation.ceiling import Comparison, compare, stripped_null
from guda.evaluation.intervals import Figure, bootstrap_mean, clopper_pearson
from guda.evaluation.metrics import top1
from guda.evaluation.results import DatasetEntry, dataset_entry, keep_entry
from guda.files import write_text
from guda.methods.base import get_method
from guda.methods.terms import load_queries
from guda.run.data import load_data
from guda.run.recipe import Recipe, builtin_recipe
from guda.run.run import Run
from guda.scoring.scores import Scores
from guda.steps.evaluate import run_oracle
from guda.steps.fit import Engine

ROOT = Path(__file__).parents[1]
COMMAND = "OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 python benchmarks/path.py"
RESULTS = ROOT / "benchmarks" / "results"
ESTIMANDS = {"elbo": ("elbo", False), "elbo-excess": ("elbo", True), "path": ("path", False),
             "path-excess": ("path", True)}  # fmt: skip
PATH_FIRST = ("path", "path-excess", "elbo", "elbo-excess")  # it writes the terms of both
UNCONDITIONAL = ("retrack", "shift", "posterior", "hybrid", "similarity-pixel", "dtrak")
METHODS = {
    "digits": UNCONDITIONAL,
    "fashion-mnist": UNCONDITIONAL,
    "fashion-small": (*UNCONDITIONAL, "tangent"),
    "cifar10-small": UNCONDITIONAL,
    "cifar10": (
        *UNCONDITIONAL,
        "tangent",
        "continuation",
        "short",
        "esd",
        "trak",
        "das",
        "similarity-efficientnet",
    ),
    "digits-60": ("retrack", "shift", "posterior", "similarity-pixel", "dtrak"),
    "fonts": ("retrack", "shift", "posterior", "similarity-pixel", "dtrak"),
    "emoji": ("anchors-weighted", "similarity-pixel", "similarity-efficientnet-style", "dtrak"),
}
PLANS = ((1, 1), (2, 1), (3, 1), (4, 1), (6, 1), (12, 1), (12, 2), (12, 3))  # strata, rounds: growing cost
HELD, EACH, PICTURES, FEW = "held-out", 20, 32, 16
PIECES, ASKED_OF = 6, ("0", "1", "2", "3", "4", "5")  # groups of a digit; of these digits two each are asked about

# methods with settings that are not the recipe's, by the name that they have in the table; the last by path alone
VARIANTS: dict[str, dict[str, tuple[str, list[str]]]] = {
    "cifar10": {
        "shift-gaussians": ("shift", ["density=gaussians", "components=1", "shrink=0.6"]),
        "posterior-64": ("posterior", ["directions=64"]),  # as many as natural.py finds best for images of the start
        "posterior-patches": ("posterior", ["density=patches"]),
    }
}
PATH_ONLY = ("posterior-patches",)  # slow, and of no network where only its path is asked

RECIPES = {"fonts": "fonts-small"}  # other than that of the data set's own name
# what the full and LOGO models are fine-tuned from: committed, because it trains for long; or trained first
START = ROOT / "benchmarks" / "models" / "cifar10-start"
STARTS = {"emoji": "emoji-start"}

# the cross oracle's ceiling needs four; trust.py three
SEEDS = {"digits": [1, 2, 3, 4], "fashion-mnist": [1, 2, 3], "fashion-small": [1, 2, 3], "emoji": [1, 2, 3]}

Figures = dict[str, float]


def put(figures: Figures, name: str, value: Figure | float) -> None:
    if isinstance(value, Figure):
        figures |= {name: value.mean, f"{name}.lo": value.lo, f"{name}.hi": value.hi}
    else:
        figures[name] = value


def small_groups(root: Path) -> Recipe:
    """The digits with every class cut into six groups at random: groups of 1.7 % of the data that look alike."""
    from guda.data.digits import load_digits_data

    data, parts = load_digits_data(), dict[str, np.ndarray]()
    for k, digit in enumerate(data.groups.names):
        order = generator("small groups", digit).permutation(data.groups.members(k))
        parts |= {f"{digit}-{piece}": members for piece, members in enumerate(np.array_split(order, PIECES))}
    value = _regrouped_digits(root, "digits-60", data, parts)
    value["queries"]["n"] = 200
    value["scoring"]["groups"] = [f"{d}-{p}" for d in ASKED_OF for p in (0, 1)]
    value["methods"] = {m: s for m, s in value["methods"].items() if m != "hybrid"}
    value["evaluation"] |= {"placebos": 0, "health": False}
    return Recipe.from_dict(value, "small groups")


def random_groups(root: Path, name: str, n: int) -> Recipe:
    """The digits in `n` groups of equal size, drawn at random from all classes."""
    from guda.data.digits import load_digits_data

    data = load_digits_data()
    order = generator("random groups", n).permutation(len(data.ids))
    parts = {f"random-{k}": members for k, members in enumerate(np.array_split(order, n))}
    return Recipe.from_dict(_regrouped_digits(root, name, data, parts), "random groups")


def _regrouped_digits(root: Path, name: str, data: ImageData, parts: dict[str, np.ndarray]) -> dict[str, Any]:
    """The digits' recipe for a folder of the same images in other groups, which is written."""
    folder = root / f"{name}-images"
    for group, members in parts.items():
        (folder / group).mkdir(parents=True, exist_ok=True)
        for i in members:
            if not (file := folder / group / f"{int(i):04d}.png").is_file():
                Image.fromarray(data.images[i, 0]).save(file)
    value = builtin_recipe("digits").model_dump(mode="json")
    value["data"], value["name"] = {"source": str(folder), "mode": "L"}, name
    return value


def recipe_of(root: Path, name: str, engine: Engine) -> Recipe:
    """Of a data set, with what it is fine-tuned from, which is trained if it is not committed."""
    if name == "digits-60":
        return small_groups(root)
    builtin = name in ("digits", "fashion-mnist", "cifar10-small")
    recipe = builtin_recipe(name) if builtin else Recipe.read(ROOT / "benchmarks" / "recipes" / f"{name}.yaml")
    value = recipe.model_dump(mode="json")
    if name == "cifar10":
        value["model"]["start"] = str(START)
    if name in STARTS:
        first = Recipe.read(ROOT / "benchmarks" / "recipes" / f"{STARTS[name]}.yaml")
        start = steps.init(root / STARTS[name], first, keep_edits=True)
        if first.prompts is not None:
            steps.prompts_build(start)
        steps.train(start, engine)
        value["model"]["start"] = str(root / STARTS[name] / "models" / "full-s0")
    if name in SEEDS:
        value["methods"]["logo"]["seeds"] = SEEDS[name]
    return Recipe.from_dict(value, f"{name} benchmark")


def prepared(root: Path, name: str, engine: Engine) -> Run:
    """The run with everything trained and fitted; what is there is kept, whatever made it."""
    own = RECIPES.get(name, name)
    folder = root / own
    if (folder / "run.json").is_file():
        run = Run.open(folder)
    else:
        run = steps.init(folder, recipe_of(root, own, engine))
        if run.recipe.prompts is not None:
            steps.prompts_build(run)
    if name == "fonts":
        from fonts import DOZEN

        steps.change_groups(run, ",".join(DOZEN))
    for method in METHODS[name]:
        if method not in run.recipe.methods:
            steps.update_settings(run, method, {})
    steps.fit(run, ["logo", *METHODS[name]], engine)
    return run


@contextmanager
def scoring(run: Run, **changes: object) -> Iterator[None]:
    before = run.recipe.scoring.model_dump(mode="json")
    steps.change_scoring(run, **changes)
    try:
        yield
    finally:
        steps.change_scoring(run, **{k: before[k] for k in changes})


def tables(run: Run, queries: str, methods: list[str], engine: Engine) -> dict[str, Scores]:
    """By the run's present estimand; those of LOGO seed by seed."""
    found = steps.score(run, queries, methods, engine)
    if "logo" in methods:
        for seed in run_oracle(run).seed_sets():
            found[f"logo-s{seed}"] = Scores.read(steps.scores_path(run, queries, f"logo-s{seed}"))
    return found


def variant_tables(run: Run, name: str, queries: str, engine: Engine) -> dict[str, Scores]:
    """Of the methods with other settings, by the run's present estimand."""
    found = {}
    for label, (method, settings) in VARIANTS.get(name, {}).items():
        if label in PATH_ONLY and run.recipe.scoring.estimand != "path":
            continue
        asked = steps.override(run, methods=[method], settings=settings)
        steps.fit(asked, [method], engine)
        found[label] = steps.score(asked, queries, [method], engine)[method]
    return found


def agreement(figures: Figures, kind: str, found: Comparison) -> None:
    assert found.ceiling is not None
    put(figures, f"reliability.{kind}", found.ceiling.intervals["spearman"])
    put(figures, f"reliability_top1.{kind}", found.ceiling.intervals["top1"])
    method_figures(figures, kind, found)


def method_figures(figures: Figures, kind: str, found: Comparison) -> None:
    for method, row in found.methods.items():
        put(figures, f"top1.{kind}.{method}", row.intervals["top1"])
        put(figures, f"spearman.{kind}.{method}", row.intervals["spearman"])
        for metric, name in (("top1", "of_ceiling"), ("spearman", "of_ceiling_spearman")):
            if metric in row.ratio_to_ceiling:
                put(figures, f"{name}.{kind}.{method}", row.ratio_to_ceiling[metric])


def cross_figures(run: Run, queries: str, engine: Engine) -> Figures:
    """The cross-seed oracle; methods by the run's present estimand."""
    figures: Figures = {}
    found = steps.evaluate_cross(run, queries, engine)
    figures["systematic"] = found.systematic
    for metric, reliability, of in (
        ("top1", "reliability_top1", "of_ceiling"), ("spearman", "reliability", "of_ceiling_spearman"),
    ):  # fmt: skip
        if found.ceiling is not None:
            put(figures, f"{reliability}.cross", found.ceiling[metric])
        for m, row in found.methods.items():
            put(figures, f"{metric}.cross.{m}", row[metric])
            if metric in found.ratio_to_ceiling.get(m, {}):
                put(figures, f"{of}.cross.{m}", found.ratio_to_ceiling[m][metric])
    return figures


def cost(run: Run, queries: str, method: str, engine: Engine) -> Figures:
    """How many evaluations path saves at equal stability of the first group."""
    figures: Figures = {}

    def first(strata: int, rounds: int, seed: int, estimand: str, excess: bool) -> np.ndarray:
        with scoring(run, strata=strata, rounds=rounds, seed=seed, estimand=estimand, excess=excess):
            return steps.score(run, queries, [method], engine)[method].score

    for name in ("elbo", "path-excess"):
        settled = first(12, 3, 0, *ESTIMANDS[name])
        for strata, rounds in PLANS if name != "elbo" else ((12, 3),):
            value = bootstrap_mean(top1(first(strata, rounds, 1, *ESTIMANDS[name]), settled))
            put(figures, f"stable.{name}.{strata}x{rounds}", value)
    enough = [s * r for s, r in PLANS if figures[f"stable.path-excess.{s}x{r}"] >= figures["stable.elbo.12x3"]]
    if enough:
        figures["evals_ratio_path"] = 36 / min(enough)
    return figures


def held_out(run: Run, name: str) -> tuple[str, list[str]] | None:
    """Real pictures that were not trained on, and the group of each."""
    data = load_data(run)
    if name == "fonts":
        from fonts import DOZEN
        from fonts import held_out as of_fonts

        held, families = of_fonts(run)
        known = load_queries(run, held)
        keep = [i for i, family in zip(known.ids, families, strict=True) if family in DOZEN]
        return _kept(run, known.subset(keep), "held-out-dozen")[0], [i.rsplit(" ", 2)[0] for i in keep]
    if name in ("fashion-mnist", "fashion-small"):
        from guda.data.fashion import load_fashion

        every = load_fashion(run.recipe.data.size)
    elif name.startswith("cifar10"):
        from guda.data.cifar10 import load_cifar10

        every = load_cifar10(size=run.recipe.data.size, split="test")
    else:
        return None  # every image of digits is trained on; other objects of emoji have no prompts
    return _kept(run, unseen(data, every, EACH), HELD)


def unseen(data: ImageData, every: ImageData, each: int) -> Queries:
    """At most `each` pictures of every group that are not among `data`, by pixels; ids: "<group> <number>"."""
    seen = {image.tobytes() for image in data.images}
    ids, index = [], []
    for group in data.groups.names:
        members = every.groups.members(every.groups.index(group))
        fresh = [int(i) for i in generator("held-out", group).permutation(members)[: 3 * each]]
        for i in [i for i in fresh if every.images[i].tobytes() not in seen][:each]:
            ids.append(f"{group} {i}")
            index.append(i)
    return Queries(tuple(ids), every.images[index], None, HELD)


def _kept(run: Run, queries: Queries, name: str) -> tuple[str, list[str]]:
    if not run.has(f"queries/{name}/index.json"):
        Queries(queries.ids, queries.images, queries.prompts, name).save(run.path("queries", name))
    return name, [i.rpartition(" ")[0] for i in load_queries(run, name).ids]


def known_groups(run: Run, name: str, held: str, groups: list[str], methods: list[str], engine: Engine) -> Figures:
    figures: Figures = {}
    for kind in PATH_FIRST:
        estimand, excess = ESTIMANDS[kind]
        with scoring(run, estimand=estimand, excess=excess):
            found = steps.score(run, held, methods, engine) | variant_tables(run, name, held, engine)
            for method, scores in found.items():
                if excess and method in methods and not get_method(run, method).counterfactuals:
                    continue
                truth = np.array([scores.groups.index(g) for g in groups])
                hits = scores.rank.argmin(axis=1) == truth
                lo, hi = clopper_pearson(int(hits.sum()), len(hits))
                put(figures, f"known_group.{kind}.{method}", Figure(mean=float(hits.mean()), lo=lo, hi=hi))
    return figures


def measure(run: Run, name: str, engine: Engine, saved: bool = True) -> DatasetEntry:
    """`saved`: also how many evaluations path saves, which asks for many plans."""
    queries = steps.sample(run, engine)
    methods = list(METHODS[name])
    figures: Figures = {}
    found: dict[str, dict[str, Scores]] = {}
    seeds = [f"logo-s{s}" for s in run_oracle(run).seed_sets()]
    with scoring(run, plan="stratified", strata=12, rounds=3):
        for kind in PATH_FIRST:
            estimand, excess = ESTIMANDS[kind]
            with scoring(run, estimand=estimand, excess=excess):
                found[kind] = tables(run, queries, ["logo", *methods], engine)
                variants = variant_tables(run, name, queries, engine)
            gold = np.stack([found[kind][s].score for s in seeds])
            null = stripped_null(gold)
            assert null is not None
            rows = {m: found[kind][m] for m in methods} | variants
            comparison = compare(gold, {m: scores.score for m, scores in rows.items()})
            agreement(figures, kind, comparison)
            put(figures, f"reliability_null.{kind}", null)
            told = attributable(found[kind]["logo"].groups, gold)
            for answer in ("attributable", "pool with others", "below noise"):
                figures[f"groups.{kind}.{answer.replace(' ', '_')}"] = float(told.count(answer))
            if kind == "path-excess":
                entry = comparison, found[kind]["logo"]
        with scoring(run, estimand="path", excess=True):
            figures |= cross_figures(run, queries, engine)
            operators = [m for m in methods if get_method(run, m).counterfactuals and m != "hybrid"]
            function = steps.evaluate_function(run, queries, operators, engine, PICTURES)
            few = steps.evaluate_function(run, queries, operators, engine, FEW)
            for label, (method, settings) in VARIANTS.get(name, {}).items():
                asked = steps.override(run, methods=[method], settings=settings)
                row = steps.evaluate_function(asked, queries, [method], engine, PICTURES).rows[0]
                put(figures, f"function_cos.{label}.own", row.own[method])
                put(figures, f"function_cos.{label}.other", row.other[method])
        groups = len(found["elbo"]["logo"].groups)
        for m in ("logo", *operators):
            own, other = function.rows[0].own[m], function.rows[0].other[m]
            figures[f"function_cos.{m}"] = (own.mean + (groups - 1) * other.mean) / groups
            put(figures, f"function_cos.{m}.own", own)
            put(figures, f"function_cos.{m}.other", other)
        for m in operators:
            row = few.rows[0].own[m]
            figures[f"function_width.{m}"] = row.hi - row.lo
            gold = np.mean([found["elbo"][s].score for s in seeds], axis=0)[:FEW]
            narrow = bootstrap_mean(top1(found["elbo"][m].score[:FEW], gold))
            figures[f"top1_width.{m}"] = narrow.hi - narrow.lo
        figures |= cost(run, queries, operators[0], engine) if saved else {}
        if (held := held_out(run, name)) is not None:
            figures |= known_groups(run, name, *held, methods, engine)
    comparison, oracle = entry
    return dataset_entry(
        comparison, [int(s.rpartition("s")[2]) for s in seeds], oracle.estimand, figures=figures, unit=oracle.unit,
        sign=oracle.sign,
    )  # fmt: skip


def markdown(datasets: dict[str, DatasetEntry]) -> str:
    """The table of docs/scoring.md."""

    def cell(f: Figures, name: str) -> str:
        if name not in f:
            return ""
        return f"{f[name]:.2f}" + (f" [{f[name + '.lo']:.2f}, {f[name + '.hi']:.2f}]" if name + ".lo" in f else "")

    lines = ["# Path divergence", "", "Written by `make bench-path`; figures are explained in benchmarks/path.py.", ""]
    head = ["data set", "estimand", "Top-1 between retrainings", "Spearman (null)", "methods, Top-1 / ceiling"]
    lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, entry in datasets.items():
        f = entry.figures
        for kind in (*ESTIMANDS, "cross"):
            prefix = f"of_ceiling.{kind}."
            of = [
                f"{k.removeprefix(prefix)} {v:.2f}"
                for k, v in f.items()
                if k.startswith(prefix) and k[-3:] not in (".lo", ".hi")
            ]
            if f"reliability.{kind}" in f:
                nothing = f" ({f[f'reliability_null.{kind}']:.2f})" if f"reliability_null.{kind}" in f else ""
                row = [name, kind, cell(f, f"reliability_top1.{kind}"), cell(f, f"reliability.{kind}") + nothing]
                lines.append("| " + " | ".join([*row, ", ".join(of)]) + " |")
    lines += [
        "",
        "| data set | evaluations saved by path | cosine with a retraining, first / other groups |",
        "|---|---|---|",
    ]
    for name, entry in datasets.items():
        f = entry.figures
        names = [
            k.removeprefix("function_cos.").removesuffix(".own")
            for k in f
            if k.startswith("function_cos.") and k.endswith(".own")
        ]
        cosines = ", ".join(f"{m} {f[f'function_cos.{m}.own']:.2f} / {f[f'function_cos.{m}.other']:.2f}" for m in names)
        lines.append(f"| {name} | {f.get('evals_ratio_path', float('nan')):.1f} x | {cosines} |")
    known = {n: e for n, e in datasets.items() if any(k.startswith("known_group.") for k in e.figures)}
    if known:
        lines += [
            "",
            "| held-out real pictures: own group first | " + " | ".join(ESTIMANDS) + " |",
            "|---|" + "---|" * len(ESTIMANDS),
        ]
    for name, entry in known.items():
        for m in (*METHODS[name], *VARIANTS.get(name, {})):
            lines.append(
                f"| {name}, {m} | " + " | ".join(cell(entry.figures, f"known_group.{k}.{m}") for k in ESTIMANDS) + " |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "path")
    parser.add_argument("--only", nargs="*", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--without", nargs="*", default=[], help="methods to leave out")
    parser.add_argument("--workers", type=int)
    given = parser.parse_args()
    engine = steps.local_engine(given.workers)
    for name in given.only:
        METHODS[name] = tuple(m for m in METHODS[name] if m not in given.without)
        entry = measure(prepared(given.runs, name, engine), name, engine)
        datasets = keep_entry(RESULTS / "path.json", COMMAND, name, entry, METHODS)
        write_text(RESULTS / "path.md", markdown(datasets))
        print(name, "done", flush=True)


if __name__ == "__main__":
    main()
