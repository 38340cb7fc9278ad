"""The paper's tables and figures of a finished run: arithmetic on its files, the same bytes every time.

A question that was not asked of the run has no table: no likelihoods, no noisy twin, no sweep.
"""

from __future__ import annotations

from pathlib import Path

from guda.evaluation.ceiling import CEILING
from guda.evaluation.likelihood import read_likelihood, reliability_sentence
from guda.evaluation.paper_tables import (
    anchors_table,
    correlation_table,
    main_table,
    noisy_table,
    oracles_table,
    sweep_tables,
    timing_table,
)
from guda.evaluation.partition import PartitionFile
from guda.evaluation.results import DatasetEntry, read_entry, read_file
from guda.evaluation.sweep import read_sweep
from guda.run.recipe import Recipe
from guda.run.run import Run
from guda.steps.fit import Engine
from guda.steps.likelihood import VARIANT
from guda.steps.queries import choose_queries
from guda.steps.score import scores_folder, scores_path
from guda.steps.timing import timings
from guda.table import Table, write_tables

SIZES = {"cifar10": (None, 32), "unlearncanvas": (512,)}  # data.size of the paper's own pictures

ANCHORS = ("anchors-weighted", "anchors-uniform", "anchors-removed")


def write_paper_tables(run: Run, published: str, noisy: Run | None = None) -> list[Path]:
    """RUN/tables/<table>.{md,csv,tex}. `published`: which of the paper's data sets stands beside."""
    queries = choose_queries(run)
    entry, name = read_entry(scores_folder(run, queries) / "evaluation.json"), run.recipe.name
    same = whole_data(run.recipe) == published
    beside = f"main.{published}"
    costs = timings(run, queries, list(entry.methods))
    tables = [
        main_table(name, entry, costs, beside, same),
        timing_table(name, costs, beside, same),
    ]
    if any(m in entry.methods for m in ANCHORS):
        tables.append(anchors_table(name, entry, same, costs))
    for path in sorted(run.path("ablations").glob("*.json")):
        tables += sweep_tables(name, read_sweep(path), same)
    tables += _likelihood(run, name, entry, queries, same)
    if noisy is not None and noisy.has("partition.json"):
        tables.append(noisy_table(name, read_file(noisy.path("partition.json"), PartitionFile), same))
    return write_tables(run.path("tables"), tables)


def whole_data(recipe: Recipe) -> str | None:
    """The published data set that a recipe is about; None where it takes a part of it or pictures of another size."""
    data = recipe.data
    name = data.source.partition(":")[0]
    cut = (data.groups, data.limit_per_group, data.limit_contents, data.partition)
    whole = data.size in SIZES.get(name, ()) and data.split != "test" and all(c is None for c in cut)
    return name if whole else None


def _likelihood(run: Run, name: str, entry: DatasetEntry, queries: str, same: bool) -> list[Table]:
    path = run.path("scores", queries, VARIANT, "evaluation.json")
    if not path.is_file():
        return []
    found = read_likelihood(path)
    tables = []
    if logo := found.correlations.get(CEILING):
        note = f"{found.estimand}. {reliability_sentence(found)}"
        tables.append(correlation_table(name, logo, found.n_queries, entry.n_groups or 0, note, same))
    if found.oracles:
        tables.append(oracles_table(name, found.oracles["elbo"], found.oracles["likelihood"], same))
    return tables


def write_figures(run: Run, engine: Engine) -> list[Path]:
    """RUN/figures/: cost against fidelity, scores as a heat map, times, both oracles, training images, the same noise
    through every model."""
    from guda.report.catalogue import figure, with_models

    queries = choose_queries(run)
    entry = read_entry(scores_folder(run, queries) / "evaluation.json")
    others = [m for m in entry.methods if m != CEILING]
    best = sorted(others, key=lambda m: -entry.methods[m].metrics["top1"].mean)[:1]  # none of LOGO alone
    asked: list[tuple[str, str | None]] = [
        *([("cost-fidelity", None)] if others else []), ("timing", None), ("exemplars", None),
        *(("heat-map", m) for m in [CEILING, *best]),
        *(("same-noise", m) for m in [CEILING, *with_models(run, others)[:1]]),
    ]  # fmt: skip
    if scores_path(run, queries, CEILING, VARIANT).is_file():
        asked.append(("likelihood", CEILING))
    return [figure(run, name, engine, method=method) for name, method in asked]
