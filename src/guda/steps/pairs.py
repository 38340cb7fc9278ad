"""Leave-two-out: a few pairs of groups, retrained and unlearned together, against the sum of their singles."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from guda.errors import GudaError
from guda.evaluation.additivity import Additivity, PairsFile, additivity, pair_row, pairs_table
from guda.files import write_json, write_text
from guda.methods.base import get_method
from guda.methods.elbo import ElboMethod, Reader, has_counterfactuals
from guda.methods.regroup import Pair, in_order, joined, pair_name, pairs_of, takes_pairs
from guda.methods.terms import load_queries
from guda.run.data import load_data, scored_groups
from guda.run.plan import run_plan
from guda.run.run import Run
from guda.run.task import Task
from guda.steps.fit import Engine, ready
from guda.steps.oracle import run_oracle
from guda.steps.score import prepared, scored_methods, up_to_date


def parse_pairs(run: Run, texts: Sequence[str]) -> list[Pair]:
    """`a,b` each; a comma may be part of a name."""
    names = set(load_data(run).groups.names)
    found: list[Pair] = []
    for text in texts:
        cuts = [(text[:i].strip(), text[i + 1 :].strip()) for i, c in enumerate(text) if c == ","]
        if not cuts:
            raise GudaError("pair-invalid", f"--pair {text!r}: write two groups with a comma between them")
        found.append(next((cut for cut in cuts if set(cut) <= names), cuts[0]))
    return checked_pairs(run, found)


def checked_pairs(run: Run, asked: Sequence[Sequence[str]]) -> list[Pair]:
    """Each in the data's order and once: files are named so. Only groups that are scored have singles to compare
    with."""
    groups, scored = load_data(run).groups, scored_groups(run)
    found = [in_order(groups, pair) for pair in asked]
    for pair in found:
        joined(groups, pair).check_rest()
        if missing := [g for g in pair if g not in scored]:
            raise GudaError(
                "group-not-scored",
                f"pair {','.join(pair)}: {missing[0]!r} is not among the recipe's scoring.groups; add it there",
            )
    return list(dict.fromkeys(found))


def pairs(run: Run, name: str, asked: Sequence[Pair], methods: Sequence[str] | None, engine: Engine) -> PairsFile:
    """Fit, score and compare the pairs, in either order; RUN/pairs.json and pairs.md hold those asked for in this call.

    `methods`: beside LOGO, which comes first where the recipe can train; default: the scored operators."""
    if not asked:
        raise GudaError("pair-not-given", "give at least one pair of groups, e.g. --pair cat,dog")
    asked = checked_pairs(run, asked)
    queries = load_queries(run, name)
    oracle = run_oracle(run) if run.recipe.training is not None else None
    if methods is None:
        methods = [m for m in scored_methods(run, name) if takes_pairs(get_method(run, m))]
    chosen = [m for m in map(partial(get_method, run), dict.fromkeys(methods)) if not m.oracle]
    doubles = [pairs_of(m, asked) for m in [*([] if oracle is None else [oracle]), *chosen]]
    singles = [m for m in [*([] if oracle is None else [oracle]), *chosen] if has_counterfactuals(m)]
    if not doubles:
        raise GudaError(
            "methods-none", f"nothing in {run.root} takes groups out of a model; give --method and fit it first"
        )
    for single in singles:
        if not up_to_date(run, queries, single):
            m = single.method_id
            raise GudaError(
                "scores-missing",
                f"no {m} scores of {name!r} for single groups; run: guda fit {run.root} --method {m}, then "
                f"guda score {run.root} --queries {name} --method {m}",
            )

    def work() -> None:
        engine(run, ready(run, [task for d in doubles for task in d.fit()]), "fit pairs")
        planned: set[str] = set()
        tasks: list[Task] = []
        for double in doubles:
            tasks += double.score(queries, planned)
        engine(run, tasks, f"score {name} by pairs")

    prepared(run, singles, engine, work)
    rows = []
    config, grid = run.recipe.evaluation, bool(run_plan(run).grid)
    options = {"grid": grid, "n": config.resamples, "seed": config.seed}
    of_logo: dict[Pair, Additivity] = {}
    for single, double in zip(singles, doubles, strict=True):
        read = single.reader(queries, estimand="elbo")
        ones, twos = single.contributions(single.sets(), read), double.contributions(double.sets(), read)
        for i, pair in enumerate(asked):
            a, b = (single.groups.index(g) for g in pair)
            found = additivity(twos[:, :, i], ones[:, :, a], ones[:, :, b], **options)  # type: ignore[arg-type]
            excesses: list[np.ndarray] = []
            logo = of_logo.get(pair)
            if single.oracle:
                of_logo[pair] = found
                excesses = _by_seed(single, double, pair, read)
            rows.append(pair_row(single.method_id, pair, found, logo, excesses, config.resamples, config.seed))
    rows.sort(key=lambda r: list(asked).index((r.a, r.b)))  # the methods of a pair together, LOGO first
    result = PairsFile(
        queries=name, n_queries=queries.n, seeds=[] if oracle is None else list(oracle.seed_sets()),
        estimand=run_plan(run).estimand, rows=tuple(rows),
    )  # fmt: skip
    write_json(run.path("pairs.json"), result.model_dump(mode="json"))
    write_text(run.path("pairs.md"), pairs_table(result).markdown())
    return result


def _by_seed(single: ElboMethod, double: ElboMethod, pair: Pair, read: Reader) -> list[np.ndarray]:
    """The excess of every retraining by itself, [Q] each."""
    found = []
    of_pairs = double.seed_sets()
    for seed, (full, without) in single.seed_sets().items():
        both = of_pairs[seed][1][pair_name(pair)]
        kl = [read(m).kl for m in (both, without[pair[0]], without[pair[1]], full)]
        found.append((kl[0] - kl[1] - kl[2] + kl[3]).mean(axis=0).sum(axis=-1))
    return found
