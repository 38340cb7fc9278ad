"""What emoji.py and classes.py measure alike: methods of a conditional model against retraining, and against reading
the prompt.

Figures, E = elbo, elbo-excess, path, path-excess, each also over t >= 100 only (E-t100); intervals .lo, .hi:

ceiling.E, ceiling_spearman.E       one retraining against the mean of the others: Top-1, Spearman
ceiling_null.E                      Spearman of a table that knows the other's first group and the groups' means
top1.E.M, spearman.E.M              method M against the retrainings
of_ceiling[_spearman].E.M           the same over the ceiling
minus_prompt.E.M                    Top-1 of M minus that of `prompt`, paired
top1_minus.E.M.N, spearman_minus.E.M.N   M minus N, paired: anchors-weighted minus uniform, minus removed
prompted_first.E                    share of pictures whose first group, by the mean retraining, is the prompted one
top1_prompted.E.M, top1_cross.E.M   Top-1 on these, and on the others (M = logo: the ceiling's)
of_ceiling_cross.E.M                top1_cross.E.M over that of logo
function_cos.M.prompted, .other     cosine of what M and what a retraining change: the prompted group, the others
evals_ratio_vs_logo.M               evaluations of one retraining over those of fitting M, per group
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from guda import steps
from guda.evaluation.ceiling import compare, stripped_null
from guda.evaluation.results import DatasetEntry, dataset_entry
from guda.methods.base import Method, get_method, make_method
from guda.methods.elbo import has_counterfactuals, run_oracle
from guda.methods.prompt import prompted_groups
from guda.methods.terms import load_queries
from guda.run.data import scored_groups
from guda.run.models import run_schedule
from guda.run.run import Run
from guda.scoring.bands import Bands, default_edges
from guda.steps.fit import Engine
from guda.steps.function import changes_function, fidelity, product_tasks, products_of
from path import ESTIMANDS, Figures, method_figures, put, scoring

Variants = dict[str, tuple[str, dict[str, Any]]]  # label -> method, settings

PAIRS = (("anchors-weighted", "anchors-uniform"), ("anchors-weighted", "anchors-removed"))
LOW = 100  # of a thousand timesteps: below, luck dominates
PICTURES = 60  # of function-space cosines


def measure(
    run: Run, queries: str, methods: Sequence[str], engine: Engine, variants: Variants | None = None
) -> DatasetEntry:
    """The table of one data set; the entry's own rows are those of path-excess. `variants`: methods with settings that
    are not the recipe's, by the name that they have in the table."""
    figures: Figures = {}
    pictures, oracle = load_queries(run, queries), run_oracle(run)
    seeds, T = list(oracle.seed_sets()), run_schedule(run).T
    ranges = {"": Bands(((0, T, 1.0),)), f"-t{LOW}": Bands(((round(LOW / 1000 * T), T, 1.0),))}
    asked = prompted_groups(run, pictures)
    assert asked is not None
    names = scored_groups(run)
    prompted = np.array([-1 if name is None else names.index(name) for name in asked])
    every = [*methods, *([] if "prompt" in methods else ["prompt"])]
    with scoring(run, plan="stratified"):
        for kind in ("path", "path-excess", "elbo", "elbo-excess"):  # path first: it writes the terms of both
            estimand, excess = ESTIMANDS[kind]
            with scoring(run, estimand=estimand, excess=excess):
                told = steps.score(run, queries, ["logo", *every], engine)["logo"]
                bands = list(ranges.values())
                gold = oracle_values(run, queries, bands)
                values = {m: get_method(run, m).values(pictures, bands) for m in every}
                for label, found in made(run, variants).items():
                    engine(run, found.fit(), f"fit {label}")
                    engine(run, found.score(pictures, set()), f"score {label}")
                    values[label] = found.values(pictures, bands)
            for i, end in enumerate(ranges):
                own = {m: v[i] for m, v in values.items()}
                found = table(figures, kind + end, gold[i], own, prompted)
                if kind + end == "path-excess":
                    entry = found, told
        cosines(figures, run, queries, [m for m in methods if m != "prompt"], prompted, engine)
    for m in methods:
        if (evals := get_method(run, m).fit_evals()) > 0:
            figures[f"evals_ratio_vs_logo.{m}"] = oracle.fit_evals() / evals
    for label, one in made(run, variants).items():
        figures[f"evals_ratio_vs_logo.{label}"] = oracle.fit_evals() / one.fit_evals()
    found, told = entry
    return dataset_entry(found, seeds, told.estimand, figures=figures, unit=told.unit, sign=told.sign)


def made(run: Run, variants: Variants | None) -> dict[str, Method]:
    """With the run's present scoring."""
    return {label: make_method(run, name, settings) for label, (name, settings) in (variants or {}).items()}


def oracle_values(run: Run, queries: str, bands: Sequence[Bands]) -> list[np.ndarray]:
    """[seeds, Q, G] for each of `bands`, by the run's present estimand."""
    return run_oracle(run).seed_values(load_queries(run, queries), bands)


def table(figures: Figures, kind: str, gold: np.ndarray, values: dict[str, np.ndarray], prompted: np.ndarray):  # type: ignore[no-untyped-def]
    found = compare(gold, values, reference="prompt")
    assert found.ceiling is not None
    put(figures, f"ceiling.{kind}", found.ceiling.intervals["top1"])
    put(figures, f"ceiling_spearman.{kind}", found.ceiling.intervals["spearman"])
    if (null := stripped_null(gold)) is not None:
        put(figures, f"ceiling_null.{kind}", null)
    method_figures(figures, kind, found)
    for m, row in found.methods.items():
        if "top1" in row.difference:
            put(figures, f"minus_prompt.{kind}.{m}", row.difference["top1"])
    for one, two in PAIRS:
        if one in values and two in values:
            pair = compare(gold, {one: values[one], two: values[two]}, reference=two).methods[one].difference
            for metric in ("top1", "spearman"):
                put(figures, f"{metric}_minus.{kind}.{one}.{two}", pair[metric])
    own = gold.mean(axis=0).argmax(axis=1) == prompted
    figures[f"prompted_first.{kind}"] = float(own.mean())
    for what, which in (("prompted", own), ("cross", ~own)):
        if which.sum() < 2:
            continue
        part = compare(gold[:, which], {m: v[which] for m, v in values.items()})
        assert part.ceiling is not None
        for m, row in {"logo": part.ceiling, **part.methods}.items():
            put(figures, f"top1_{what}.{kind}.{m}", row.intervals["top1"])
            if what == "cross" and "top1" in row.ratio_to_ceiling:
                put(figures, f"of_ceiling_cross.{kind}.{m}", row.ratio_to_ceiling["top1"])
    return found


def cosines(
    figures: Figures, run: Run, queries: str, methods: Sequence[str], prompted: np.ndarray, engine: Engine
) -> None:  # fmt: skip
    """In function space, for the prompted group and for the others."""
    found = [get_method(run, m) for m in methods]
    simple = [m for m in found if has_counterfactuals(m) and changes_function(m)]
    pictures, oracle = load_queries(run, queries), run_oracle(run)
    # spread over the set, whose pictures come group by group
    keep = np.unique(np.linspace(0, pictures.n - 1, min(PICTURES, pictures.n)).round().astype(int))
    some = pictures.subset([pictures.ids[i] for i in keep])
    own = np.zeros((len(keep), len(scored_groups(run))), bool)
    place = {name: i for i, name in enumerate(pictures.ids)}
    for row, name in enumerate(some.ids):
        own[row, prompted[place[name]]] = True
    products, named = products_of(run, simple, oracle)
    engine(run, product_tasks(run, some, products, 1), f"changes of {queries}")
    p, t = products.read(some, 1)
    edges = default_edges(run_schedule(run).T)
    for row in fidelity(p, t, named, len(oracle.seed_sets()), edges, own):
        end = "" if row.band == "all" else f".{row.band}"
        for m in row.own:
            put(figures, f"function_cos.{m}.prompted{end}", row.own[m])
            put(figures, f"function_cos.{m}.other{end}", row.other[m])


def markdown(name: str, entry: DatasetEntry, kinds: Sequence[str] = ("path-excess", "elbo")) -> str:
    """Tables for people."""
    f, lines = entry.figures, []

    def cell(key: str) -> str:
        return f"{f[key]:.2f} [{f[key + '.lo']:.2f}, {f[key + '.hi']:.2f}]" if key + ".lo" in f else ""

    for kind in [k + end for k in kinds for end in ("", f"-t{LOW}")]:
        lines += [
            f"{name}, {kind}: ceiling Top-1 {cell(f'ceiling.{kind}')}, Spearman {cell(f'ceiling_spearman.{kind}')}; "
            f"first is the prompted group for {f[f'prompted_first.{kind}']:.0%}; Top-1 of a retraining on the others "
            f"{cell(f'top1_cross.{kind}.logo')}.",
            "",
            "| method | Top-1 | Spearman | of ceiling, Top-1 | Spearman | minus prompt | Top-1, prompted first | not |",
            "|---|---|---|---|---|---|---|---|",
        ]
        rows = [
            k.removeprefix(f"top1.{kind}.") for k in f if k.startswith(f"top1.{kind}.") and k[-3:] not in (".lo", ".hi")
        ]
        for m in rows:
            columns = ("top1", "spearman", "of_ceiling", "of_ceiling_spearman", "minus_prompt", "top1_prompted")
            cells = [cell(f"{column}.{kind}.{m}") for column in (*columns, "top1_cross")]
            lines.append("| " + " | ".join([m, *cells]) + " |")
        lines.append("")
    found = [k.split(".")[1] for k in f if k.startswith("function_cos.") and k.endswith(".prompted")]
    lines += ["| cosine with a retraining's change | prompted group | other groups |", "|---|---|---|"]
    lines += [f"| {m} | {cell(f'function_cos.{m}.prompted')} | {cell(f'function_cos.{m}.other')} |" for m in found]
    return "\n".join(lines)
