"""Scoring a query set: by a fixed plan, or by a race; whole, or by noise bands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count, takewhile
from pathlib import Path
from typing import TypeVar

import numpy as np

from guda.data.queries import Queries
from guda.errors import GudaError
from guda.methods.base import METHODS, Method, get_method
from guda.methods.elbo import ElboMethod, has_counterfactuals
from guda.methods.origin import draws_samples, origin_tasks, origins, origins_asked
from guda.methods.race import check_descent, check_race, descend, iter_rounds, run_race
from guda.methods.regroup import PLACEBO, fitted_placebos, placebo_size
from guda.methods.terms import load_queries
from guda.run.data import load_data, scored_groups
from guda.run.models import load_model, run_schedule
from guda.run.plan import halve_block, pilot_tasks, probe
from guda.run.run import UPLOAD, Run
from guda.run.samples import average_name, collect_samples, sample_tasks, set_name
from guda.run.task import Task, pending
from guda.scoring.bands import Bands, by_band, default_edges
from guda.scoring.plan import OutOfMemory
from guda.scoring.race import RaceResult, StopRule
from guda.scoring.reference import Null, check_drift
from guda.scoring.scores import Scores
from guda.scoring.screen import Screen, Screened
from guda.steps.calibration import calibrated
from guda.steps.fit import Engine, check_fitted, check_scorable, fit_free

T = TypeVar("T")


def score(
    run: Run, name: str, methods: Sequence[str], engine: Engine, stop: str | None = None, band: str | None = None,
    screen: str | None = None,
) -> dict[str, Scores]:  # fmt: skip
    """Scores of one query set by each method, also written to scores/<set>/<method>.parquet.

    `stop` races to a stop rule instead of the recipe's fixed rounds; `screen` lets only the first groups by a cheap
    method start, or descends a tree of groups; `band` counts some timesteps only."""
    queries = load_queries(run, name)
    variant(run, stop, band, screen=screen)  # refuses what cannot be asked
    rule, bands = None if stop is None else StopRule.parse(stop), parse_bands(run, band)
    check_scorable(run, methods)
    chosen = [get_method(run, m) for m in methods]
    if rule is None:
        fit_free(run, methods, engine)
        return prepared(run, chosen, engine, lambda: _score(run, queries, chosen, engine, bands))
    racing = [check_race(m) for m in chosen]  # all of them before the first is raced
    asked = None if screen is None else Screen.parse(screen)
    screeners: list[Method] = []
    if asked is not None:
        asked.check(rule)
        screeners = [] if asked.tree else check_screen(run, asked)
    fit_free(run, [*methods, *(m.method_id for m in screeners)], engine)

    def raced() -> dict[str, Scores]:
        ask_origins(run, queries, engine)
        if asked is not None and asked.tree:
            for found in racing:
                check_descent(found, rule, asked.keep)  # all of them before the first is raced; needs the pilot
            return {m.method_id: _descend(run, queries, m, rule, asked, engine) for m in racing}
        first = None
        if asked is not None:
            first = Screened.by(asked, _score(run, queries, screeners, engine, None))
        name = variant(run, rule.name, None, screen=screen)
        return {m.method_id: _race(run, queries, m, rule, engine, first, name) for m in racing}

    return prepared(run, [*screeners, *chosen], engine, raced)


def _race(
    run: Run, queries: Queries, found: ElboMethod, rule: StopRule, engine: Engine, screened: Screened | None,
    name: str | None,
) -> Scores:  # fmt: skip
    scores = run_race(found, queries, rule, lambda tasks, title: engine(run, tasks, title), screened)
    scores = replace(scores, origins=origins(run, queries), floor=_floor(run, found, queries))
    scores.write(scores_path(run, queries.name, found.method_id, name))
    return scores


def _descend(run: Run, queries: Queries, found: ElboMethod, rule: StopRule, screen: Screen, engine: Engine) -> Scores:
    """The last level where all scores of this kind are, the levels above it in folders of their own beside it."""
    name = variant(run, rule.name, None, screen=screen.name)
    levels = descend(found, queries, rule, screen.keep, lambda tasks, title: engine(run, tasks, title))
    come, floor = origins(run, queries), _floor(run, found, queries)
    *above, last = [replace(scores, origins=come, floor=floor) for scores in levels]
    for path in reversed(_level_paths(run, queries.name, found.method_id, name)):
        run.remove(path)  # of other groups that were asked about: perhaps there were more levels above those
    for depth, scores in enumerate(above, start=1):
        scores.write(scores_path(run, queries.name, found.method_id, f"{name}/level-{depth}"))
    last.write(scores_path(run, queries.name, found.method_id, name))
    return last


def _level_paths(run: Run, queries: str, method: str, variant: str | None) -> list[Path]:
    """Existing files of the levels above, from the top."""
    paths = (scores_path(run, queries, method, f"{variant}/level-{depth}") for depth in count(1))
    return list(takewhile(lambda path: path.is_file(), paths))


def upper_levels(run: Run, queries: str, method: str, variant: str | None) -> list[Scores]:
    """Of scores by a descent, those of the levels above, from the top; of others, none."""
    return [Scores.read(path) for path in _level_paths(run, queries, method, variant)]


def check_screen(run: Run, screen: Screen) -> list[Method]:
    """The methods that choose who races. The first must answer in nats: those that do not race keep its score."""
    found = [get_method(run, name) for name in screen.methods]
    first = found[0]
    if not has_counterfactuals(first) or first.oracle:
        raise GudaError(
            "screen-method-unsupported",
            f"--screen {screen.name}: {first.method_id} has no cheap scores in nats; put posterior first, e.g. "
            f"posterior:{screen.keep}",
        )
    for method in found:
        if method.oracle or not method.ranks_groups:
            raise GudaError(
                "screen-method-unsupported",
                f"--screen {screen.name}: {method.method_id} is not a cheap method that ranks groups; leave it out",
            )
    check_scorable(run, screen.methods)
    if screen.keep > len(first.groups):
        raise GudaError(
            "screen-keeps-all",
            f"--screen {screen.name}: there are {len(first.groups)} groups; leave --screen, or keep fewer",
        )
    return found


def prepared(run: Run, methods: Sequence[Method], engine: Engine, work: Callable[[], T]) -> T:
    """`work()` once the machine is probed and the pilot made, again with smaller blocks where one does not fit."""
    [found] = _prepared(run, methods, engine, lambda: iter([work()]))
    return found


def _prepared(run: Run, methods: Sequence[Method], engine: Engine, work: Callable[[], Iterator[T]]) -> Iterator[T]:
    """The same of work that tells how far it is; it begins again with smaller blocks."""
    by_models = any(m.by_terms for m in methods)
    if by_models:
        probe(run, load_model(run, "base"))
    while True:
        try:
            if by_models and run.recipe.scoring.excess:
                engine(run, sample_tasks(run, run.recipe.queries), "sample the average picture")
                collect_samples(run, run.recipe.queries, average_name(run))
            engine(run, pilot_tasks(run) if by_models else [], "pilot")
            yield from work()
            return
        except OutOfMemory:
            halve_block(run)  # the terms of the smaller block go under a key of their own


def _score(run: Run, queries: Queries, chosen: list[Method], engine: Engine, bands: Bands | None) -> dict[str, Scores]:
    tasks: list[Task] = []
    planned: set[str] = set()
    for found in chosen:
        tasks += found.score(queries, planned)
        if null := fitted_placebos(found):
            tasks += null.score(queries, planned)
    engine(run, tasks, f"score {queries.name}")
    ask_origins(run, queries, engine)  # afterwards: scoring may have left what it needs
    return {m.method_id: publish(run, queries, m, bands)[m.method_id] for m in chosen}


def ask_origins(run: Run, queries: Queries | None, engine: Engine) -> None:
    """Compute what tells where the pictures come from (methods/origin.py), unless the recipe skips it. `queries` None:
    only what pictures are compared with."""
    if not origins_asked(run):
        return
    if draws_samples(run):
        engine(run, sample_tasks(run, run.recipe.queries), "sample pictures to compare with")
        collect_samples(run, run.recipe.queries, average_name(run))
    engine(run, origin_tasks(run, queries), "check where the pictures come from")


def watch(run: Run, name: str, method: str, engine: Engine, stop: str) -> Iterator[tuple[Scores, RaceResult]]:
    """Race one method as `score` does, and tell what is known after each round; the last is written."""
    queries, rule = load_queries(run, name), StopRule.parse(stop)
    variant(run, stop, None)
    check_fitted(run, [method])
    found = check_race(get_method(run, method))

    def raced() -> Iterator[tuple[Scores, RaceResult]]:
        ask_origins(run, queries, engine)
        come, floor = origins(run, queries), _floor(run, found, queries)
        for scores, result in iter_rounds(found, queries, rule, lambda tasks, title: engine(run, tasks, title)):
            latest = replace(scores, origins=come, floor=floor)
            yield latest, result
        latest.write(scores_path(run, name, method, rule.name))

    yield from _prepared(run, [found], engine, raced)


def publish(run: Run, queries: Queries, found: Method, bands: Bands | None = None) -> dict[str, Scores]:
    """Scores from finished terms by the run's present settings, written; an oracle's seeds by themselves too."""
    several = found.all_scores(queries, bands)
    come = origins(run, queries)
    several = {name: replace(scores, origins=come) for name, scores in several.items()}
    _publish_placebos(run, queries, found, bands)
    if null := placebo_null(run, queries.name, found.method_id, bands.slug if bands else None):
        several[found.method_id] = replace(several[found.method_id], floor=null.quantile())
    if bands is None:  # what is calibrated counts all timesteps
        several[found.method_id] = calibrated(run, found, several[found.method_id])
    for name, scores in several.items():
        scores.write(scores_path(run, queries.name, name, bands.slug if bands else None))
    return several


def _publish_placebos(run: Run, queries: Queries, found: Method, bands: Bands | None) -> None:
    """The null beside the scores; none is better than one of other settings."""
    path = scores_path(run, queries.name, found.method_id + PLACEBO, bands.slug if bands else None)
    null = fitted_placebos(found)
    if null is None or pending(run, null.score(queries, set())):
        run.remove(path)
    else:
        null.scores(queries, bands).write(path)


def placebo_null(run: Run, queries: str, method: str, variant: str | None = None) -> Null | None:
    """What the method's placebos score on this set; None where none were scored."""
    path = scores_path(run, queries, method + PLACEBO, variant)
    if not path.is_file():
        return None
    scores = Scores.read(path)
    if scores.queries != load_queries(run, queries).ids:
        raise GudaError(
            "scores-other-queries", f"{path} is of other pictures; run: guda score {run.root} --queries {queries}"
        )
    return Null(scores, placebo_size(load_data(run).groups, scored_groups(run)))


def placebo_set(run: Run, method: str, queries: str | None = None) -> str | None:
    """The query set with placebo scores of the method: `queries` itself, else the recipe's, else any but uploads."""
    likely = [name for name in (queries, set_name(run, run.recipe.queries)) if name is not None]
    for name in [*likely, *(s for s in run.query_sets() if not s.startswith(UPLOAD))]:
        if scores_path(run, name, method + PLACEBO).is_file():
            return name
    return None


def _floor(run: Run, found: Method, queries: Queries) -> float:
    """Of a race, which scores no placebos itself: the line of those that were scored with all rounds."""
    name = placebo_set(run, found.method_id, queries.name)
    null = None if name is None else placebo_null(run, name, found.method_id)
    return 0.0 if null is None else null.quantile()


def variant(
    run: Run, stop: str | None, band: str | None, drift: str | None = None, screen: str | None = None
) -> str | None:
    """Sub-folder of scores that are not the plain estimand by the recipe's rounds."""
    bands = parse_bands(run, band)
    if stop is not None and bands is not None:
        raise GudaError("stop-with-band", "--stop races over the whole bound; give either --stop or --band")
    if stop is not None and (drift or run.recipe.scoring.drift) == "subtract":
        raise GudaError(
            "stop-with-drift", "--stop races scores as they are; give --drift keep with it, or leave --stop"
        )
    check_drift(run.recipe.scoring, drift)
    if screen is not None and stop is None:
        raise GudaError(
            "screen-without-stop", "--screen chooses who starts a race; give --stop too, e.g. --stop top1@0.95"
        )
    if stop is None:
        return bands.slug if bands else None
    # no colon: it cannot be part of a file's name everywhere
    return StopRule.parse(stop).name + ("" if screen is None else f"+{Screen.parse(screen).name.replace(':', '=')}")


def parse_bands(run: Run, band: str | None) -> Bands | None:
    if band is None:
        return None
    schedule = run_schedule(run)
    found = Bands.parse(band, schedule.T)
    last = schedule.t_max if run.recipe.scoring.estimand != "paper" else schedule.T - 1
    if not found.factors(schedule.T)[1 : last + 1].any():
        raise GudaError("band-empty", f"band {band!r} counts no timestep of the sum, which goes over 1 <= t <= {last}")
    return found


def evals_per_picture(run: Run, scores: Scores) -> float:
    """Network evaluations that a picture took on average, where it is scored by this method alone."""
    method = get_method(run, scores.method)
    networks = method.networks() if has_counterfactuals(method) else (1, 1)
    return float(scores.evals_per_query(*networks).mean())


def up_to_date(run: Run, queries: Queries, found: Method) -> bool:
    """Whether everything its scores need is there, by the present settings."""
    return found.fitted() and not pending(run, found.score(queries, set()))


def scores_folder(run: Run, queries: str, variant: str | None = None) -> Path:
    """Scores of different estimands lie apart. `variant`: the stop rule or the bands, if not the recipe's rounds."""
    scoring = run.recipe.scoring
    folder = run.path("scores", queries)
    if run.set_apart is not None:  # by options of one command that are not the recipe's
        folder /= run.set_apart
    if scoring.estimand == "path" or scoring.excess:
        folder /= scoring.estimand + ("-excess" if scoring.excess else "")
    return folder if variant is None else folder / variant


def scores_path(run: Run, queries: str, method: str, variant: str | None = None) -> Path:
    return scores_folder(run, queries, variant) / f"{method}.parquet"


def scored_methods(run: Run, queries: str, variant: str | None = None) -> list[str]:
    """Methods with scores of this set, recipe order first; LOGO's single seeds and reference rows are not methods."""
    found = {p.stem for p in scores_folder(run, queries, variant).glob("*.parquet")}
    names = [*run.recipe.methods, *sorted(found)]
    return [m for m in dict.fromkeys(names) if m in found and m in METHODS and METHODS[m].ranks_groups]


def band_shares(run: Run, name: str, method: str) -> dict[str, float]:
    """Noise-band view: the share of the scores' absolute size that comes from each band of t."""
    found = get_method(run, method)
    if not has_counterfactuals(found):
        raise GudaError("band-method-unsupported", f"{method} has no timesteps, so no noise bands")
    queries = load_queries(run, name)
    read, sets = found.reader(queries), found.sets()
    edges = default_edges(run_schedule(run).T)
    d, t = found.contributions(sets, read), read.times(sets)
    sizes = np.sum([np.abs(by_band(d[:, :, g], t, edges)).sum(axis=1) for g in range(d.shape[2])], axis=0)
    return {f"{a}:{b}": float(x) for a, b, x in zip(edges, edges[1:], sizes / sizes.sum(), strict=False)}
