"""The static figures of a run by name, and the paper's tables and figures of a finished run: arithmetic on its files.

Plots are written as SVG, PDF or PNG, grids of pictures as PNG only: their pixels are the pictures' own. The same run
gives the same bytes.

The paper has no table for what was not measured on the run: no likelihoods, no noisy twin, no sweep.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from guda.errors import GudaError, suggestion
from guda.evaluation.ceiling import CEILING
from guda.evaluation.paper_tables import (
    anchors_table,
    correlation_table,
    estimands_table,
    main_table,
    noisy_table,
    oracles_table,
    sweep_tables,
    timing_table,
)
from guda.evaluation.partition import PartitionFile
from guda.evaluation.results import DatasetEntry, read_entry, read_file
from guda.evaluation.sweep import read_sweep
from guda.evaluation.timing import Timing
from guda.methods.base import get_method
from guda.methods.terms import load_queries
from guda.report import figures, pictures
from guda.report.content import main_method
from guda.report.costs import timings
from guda.report.same_noise import same_noise, same_noise_tasks
from guda.report.trust import read_evaluation
from guda.run.data import load_data, scored_groups
from guda.run.recipe import Recipe
from guda.run.run import Run
from guda.scoring.scores import Scores
from guda.steps.evaluate import path_evaluation
from guda.steps.fit import Engine
from guda.steps.likelihood import COLUMNS, VARIANT, read_likelihood, reliability_sentence
from guda.steps.queries import choose_queries
from guda.steps.score import scores_folder, scores_path
from guda.table import Table, write_tables

PLOT, GRID = ("svg", "pdf", "png"), ("png",)


@dataclass(frozen=True)
class Request:
    """Of what a figure is drawn; what is None is chosen by the figure."""

    run: Run
    engine: Engine
    queries: str | None = None
    method: str | None = None
    query: str | None = None

    @property
    def set(self) -> str:
        from guda.steps import choose_queries

        return choose_queries(self.run, self.queries)

    @property
    def title(self) -> str:
        return self.run.recipe.name

    def scores(self, method: str | None = None) -> Scores:
        from guda.steps import scored_methods, scores_path

        name, method_id = self.set, method or str(self.method)
        if method_id not in (scored := scored_methods(self.run, name)):
            raise GudaError(
                "scores-missing",
                f"no scores of {name!r} by {method_id!r} in {self.run.root}; there are scores by "
                f"{', '.join(scored) or 'no method'}{suggestion(method_id, scored)}",
            )
        return Scores.read(scores_path(self.run, name, method_id))

    def evaluation(self) -> DatasetEntry:
        name = self.set
        entry = read_evaluation(self.run, name, load_queries(self.run, name).n, len(scored_groups(self.run)))
        if entry is None:
            fix = f"guda evaluate {self.run.root} --queries {name}"
            raise GudaError(
                "evaluation-missing", f"{name!r} of {self.run.root} is not evaluated against the oracle yet; run: {fix}"
            )
        return entry


# ---- which method, if none is named -------------------------------------------------------------------------------
def _main(request: Request) -> str:
    """The one that the report shows first."""
    from guda.steps import scored_methods

    name = request.set
    methods = scored_methods(request.run, name)
    if not methods:
        fix = f"guda score {request.run.root} --queries {name}"
        raise GudaError("scores-missing", f"no scores of {name!r} in {request.run.root}; run: {fix}")
    scores = [request.scores(m) for m in methods]
    entry = read_evaluation(request.run, name, len(scores[0].queries), len(scores[0].groups))
    return methods[main_method(request.run, scores, entry)]


def with_models(run: Run, methods: list[str]) -> list[str]:
    """Those that have one counterfactual model per group, so that pictures can be drawn from it."""
    every = (get_method(run, m) for m in methods)
    return [m.method_id for m in every if m.counterfactuals and len(m.parts()) == 1 and m.ranks_groups]


def _first_with_models(request: Request) -> str:
    methods = with_models(request.run, list(request.run.recipe.methods))
    if not methods:
        raise GudaError(
            "methods-none",
            f"the recipe of {request.run.root} names no method with counterfactual models; give --method",
        )
    return next((m for m in methods if m != CEILING), methods[0])


# ---- how each is drawn --------------------------------------------------------------------------------------------
def _cost_fidelity(request: Request, path: Path) -> Path:
    return figures.cost_fidelity(request.title, request.evaluation(), path, timings=_timings(request))


def _timings(request: Request) -> list[Timing]:
    return timings(request.run, request.set, list(request.evaluation().methods))


def _timing(request: Request, path: Path) -> Path:
    return figures.timing(request.title, _timings(request), path)


def _heat_map(request: Request, path: Path) -> Path:
    return figures.heatmap(request.scores(), path)


def _ranking(request: Request, path: Path) -> Path:
    from guda.steps import scored_methods

    scores, queries = request.scores(), load_queries(request.run, request.set)
    query = request.query or ""
    scores[query]  # an unknown id is refused, with the nearest there is
    first = None
    oracle = request.run.recipe.evaluation.against
    if oracle != request.method and oracle in scored_methods(request.run, request.set):
        first = request.scores(oracle)[query].ranked[0].group
    return figures.ranking(scores, query, queries.images[queries.ids.index(query)], path, first)


def _likelihood(request: Request, path: Path) -> Path:
    from guda.steps import likelihood_path

    file = likelihood_path(request.run, request.set, f"{request.method}.parquet")
    elbo = request.scores()
    if not file.is_file():
        fix = f"guda likelihood {request.run.root} --queries {request.set} --method {request.method}"
        raise GudaError("likelihoods-missing", f"no likelihoods of {request.set!r} by {request.method}; run: {fix}")
    likelihood = Scores.read(file)
    same = [elbo.queries.index(q) for q in likelihood.queries]
    correlations = read_likelihood(file.with_name("evaluation.json")).correlations.get(str(request.method), {})
    printed = {COLUMNS[k]: f.mean for k, f in correlations.items()}
    return figures.elbo_vs_likelihood(
        f"{request.title}, {request.method}", elbo.score[same], likelihood.score, path, printed
    )


def _exemplars(request: Request, path: Path) -> Path:
    return pictures.exemplars(load_data(request.run), path)


def _same_noise(request: Request, path: Path) -> Path:
    method = str(request.method)
    request.engine(request.run, same_noise_tasks(request.run, method), "draw pictures from the same noise")
    return same_noise(request.run, method, path=path)


# ---- the list -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Figure:
    about: str
    draw: Callable[[Request, Path], Path]
    file: str  # name of the file in RUN/figures, without its ending
    takes: tuple[str, ...] = ()  # of queries, method, query
    method: Callable[[Request], str] | None = None  # which, if none is named
    ends: tuple[str, ...] = PLOT


FIGURES = {
    "heat-map": Figure("scores of every picture and group by one method",
                       _heat_map, "scores-{method}", ("queries", "method"), _main),
    "ranking": Figure("one picture (--query ID): its groups as bars with intervals, by one method",
                      _ranking, "ranking-{method}-{query}", ("queries", "method", "query"), _main),
    "cost-fidelity": Figure("agreement of every method with the oracle, against what it costs",
                            _cost_fidelity, "cost-fidelity", ("queries",)),
    "timing": Figure("time of every method against the number of pictures",
                     _timing, "timing", ("queries",)),
    "likelihood": Figure("delta ELBO against delta log p (after guda likelihood)",
                         _likelihood, "elbo-likelihood", ("queries", "method"), lambda request: CEILING),
    "exemplars": Figure("training images of every group (PNG)", _exemplars, "exemplars", ends=GRID),
    "same-noise": Figure("pictures from the same noise by the full model and without each group (PNG)",
                         _same_noise, "same-noise-{method}", ("method",), _first_with_models, GRID),
}  # fmt: skip


def known_figure(name: str) -> Figure:
    if name not in FIGURES:
        raise GudaError(
            "figure-unknown",
            f"no figure {name!r}; there are: {', '.join(FIGURES)} (guda figure --list says what they show)"
            f"{suggestion(name, FIGURES)}",
        )
    return FIGURES[name]


def figure(
    run: Run,
    name: str,
    engine: Engine,
    out: Path | None = None,
    queries: str | None = None,
    method: str | None = None,
    query: str | None = None,
) -> Path:
    """Draw one figure of a run; RUN/figures/<its file>.svg (.png for pictures) unless `out` is given."""
    chosen, request = known_figure(name), Request(run, engine, queries, method, query)
    for option in ("queries", "method", "query"):
        if getattr(request, option) is not None and option not in chosen.takes:
            raise GudaError("figure-option-unsupported", f"the figure {name} takes no --{option}")
    if "query" in chosen.takes and query is None:
        example = load_queries(run, request.set).ids[0]
        raise GudaError(
            "figure-query-missing", f"the figure {name} is of one picture; give its id, e.g. --query {example}"
        )
    if out is not None and out.suffix.removeprefix(".") not in chosen.ends:
        why = "is a grid of pictures, written" if chosen.ends == GRID else "is written"
        raise GudaError(
            "figure-type-unsupported",
            f"the figure {name} {why} as {_either([f'.{e}' for e in chosen.ends])}, not as {out.name}",
        )
    if method is not None:
        get_method(run, method)  # an unknown one is refused with those there are
    elif chosen.method is not None:
        request = replace(request, method=chosen.method(request))
    return chosen.draw(request, out or run.path("figures", f"{_stem(chosen, request)}.{chosen.ends[0]}"))


def _stem(chosen: Figure, request: Request) -> str:
    """Ids and names of sets may be paths; a set that was requested by name has files of its own."""
    stem = chosen.file.format(method=request.method, query=request.query)
    stem += f"-{request.method}" if request.method not in (None, CEILING) and "{method}" not in chosen.file else ""
    stem += f"-{request.queries}" if request.queries else ""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", stem)


def _either(words: list[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


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
    if (other := path_evaluation(run, queries)).is_file():
        tables.append(estimands_table(name, entry, read_entry(other)))
    tables += _likelihood_tables(run, name, entry, queries, same)
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


def _likelihood_tables(run: Run, name: str, entry: DatasetEntry, queries: str, same: bool) -> list[Table]:
    path = run.path("scores", queries, VARIANT, "evaluation.json")
    if not path.is_file():
        return []
    evaluation = read_likelihood(path)
    tables = []
    if logo := evaluation.correlations.get(CEILING):
        note = f"{evaluation.estimand}. {reliability_sentence(evaluation)}"
        tables.append(correlation_table(name, logo, evaluation.n_queries, entry.n_groups or 0, note, same))
    if evaluation.oracles:
        tables.append(oracles_table(name, evaluation.oracles["elbo"], evaluation.oracles["likelihood"], same))
    return tables


def write_figures(run: Run, engine: Engine) -> list[Path]:
    """RUN/figures/: cost against fidelity, scores as a heat map, times, both oracles, training images, the same noise
    through every model."""

    queries = choose_queries(run)
    entry = read_entry(scores_folder(run, queries) / "evaluation.json")
    others = [m for m in entry.methods if m != CEILING]
    best = sorted(others, key=lambda m: -entry.methods[m].metrics["top1"].mean)[:1]  # none of LOGO alone
    drawn: list[tuple[str, str | None]] = [
        *([("cost-fidelity", None)] if others else []), ("timing", None), ("exemplars", None),
        *(("heat-map", m) for m in [CEILING, *best]),
        *(("same-noise", m) for m in [CEILING, *with_models(run, others)[:1]]),
    ]  # fmt: skip
    if scores_path(run, queries, CEILING, VARIANT).is_file():
        drawn.append(("likelihood", CEILING))
    return [figure(run, name, engine, method=method) for name, method in drawn]
