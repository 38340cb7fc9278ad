"""Every scored method against the oracle, with intervals and ceiling; also band by band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from guda.data.queries import Queries
from guda.errors import GudaError
from guda.evaluation.attributable import Attributability, attributable
from guda.evaluation.ceiling import CEILING, Comparison, compare, query_noise_floor, stripped_null
from guda.evaluation.intervals import bootstrap_mean
from guda.evaluation.results import NULL, Cost, DatasetEntry, GroupAverage, dataset_entry
from guda.evaluation.tables import separation
from guda.files import write_json
from guda.methods.base import METHODS, Method, get_method
from guda.methods.elbo import has_counterfactuals, run_oracle
from guda.methods.prompt import prompted_groups
from guda.methods.regroup import placebos_of, takes_placebos
from guda.methods.terms import load_queries, terms_folder
from guda.run.data import prompt_files, scored_groups
from guda.run.models import need_training, run_schedule
from guda.run.run import Run
from guda.run.samples import collect_samples, sample_tasks
from guda.scoring.answer_set import covered
from guda.scoring.bands import Bands, default_edges
from guda.scoring.reference import SUBTRACTED
from guda.scoring.scores import Scores
from guda.scoring.training_noise import left_out_coverage
from guda.steps.calibrate import calibrate
from guda.steps.calibration import calibration_state
from guda.steps.fit import Engine, fit_tasks, ready
from guda.steps.health import health
from guda.steps.lds import lds_figures
from guda.steps.prompts import prompts_build
from guda.steps.queries import tuned_on
from guda.steps.score import parse_bands, placebo_null, publish, score, scored_methods, scores_folder, up_to_date
from guda.steps.settings import override

PROMPT = "prompt"  # the baseline that every table of a conditional model has


def evaluate(
    run: Run, name: str, band: str | None = None, own: bool = True, only: Sequence[str] | None = None
) -> DatasetEntry:  # fmt: skip
    """Compare on one query set; written to scores/<set>/ and, if it is the run's own comparison, to evaluation.json.

    `only`: these methods; default: all that are scored."""
    queries, oracle, methods = _checked(run, name)
    methods = [m for m in methods if only is None or m.method_id in (*only, PROMPT)]
    bands = parse_bands(run, band)
    scores: dict[str, Scores] = {}
    for method in [oracle, *methods]:
        scores |= publish(run, queries, method, bands)
    seeds, notes = _seeds(oracle)
    gold = np.stack([scores[f"{oracle.method_id}-s{s}"].score for s in seeds])
    listed = {m.method_id: RETRAINED if m.method_id == CEILING else m.method_id for m in methods}
    found = _compare(run, gold, {listed[m.method_id]: scores[m.method_id].score for m in methods})
    by_logo = has_counterfactuals(oracle)
    notes = [found.note if by_logo else HALVES_NOTE, *notes]
    if less := [m.method_id for m in methods if scores[m.method_id].estimand.endswith(SUBTRACTED)]:
        notes.append(f"Scores of {', '.join(less)} are less their drift.")
    tuned = set(tuned_on(run, queries))
    if flattered := [m.method_id for m in methods if tuned & {m.method_id, *m.parts()}]:
        notes.append(f"Settings of {', '.join(flattered)} were chosen on some of these queries: such figures flatter.")
    answered, spoken = _answered(run, gold, {listed[m.method_id]: scores[m.method_id] for m in methods})
    notes += spoken
    split, spoken = _prompted(run, queries, gold, {listed[m.method_id]: scores[m.method_id].score for m in methods})
    notes += spoken
    trust: dict[str, float] = {}
    if bands is None and by_logo:
        trust = _trust(run, queries, oracle, gold, {m.method_id: scores[m.method_id] for m in methods})
    found = replace(found, note=" ".join(notes + _held(trust)))
    costs, figures = {}, answered | split | trust | _null(run, gold)
    figures |= lds_figures(run, queries, {m.method_id: scores[m.method_id] for m in [*methods, oracle]}, bands)
    for method in [*methods, oracle]:
        m = method.method_id
        costs[CEILING if method is oracle else listed[m]] = method_cost(run, name, method)
        if method is not oracle and by_logo and method.fit_evals() > 0:
            figures[f"evals_ratio_vs_logo.{m}"] = oracle.fit_evals() / method.fit_evals()
            # other methods may have steps too, but not of a training
            if method.counterfactuals and (steps := getattr(method.config, "steps", None)):
                figures[f"steps_ratio_vs_logo.{m}"] = need_training(run).steps / steps
    asked = run.recipe.evaluation
    rounds = oracle.round_values(queries, bands) if run.recipe.scoring.rounds > 1 else None
    entry = dataset_entry(
        found, seeds, scores[oracle.method_id].estimand, costs, figures,
        pairs=separation(found, seed=asked.seed),
        floor=None if rounds is None else query_noise_floor(rounds, asked.resamples, asked.seed),
        unit=scores[oracle.method_id].unit, sign=scores[oracle.method_id].sign,
        oracle=None if by_logo else oracle.method_id,
        averages=_averages(queries, [oracle, *methods], bands) if run.recipe.scoring.excess else None,
        attributable=_attributable(run, name, [oracle, *methods], scores, bands),
    )  # fmt: skip
    value = entry.model_dump(mode="json")
    other = run.recipe.evaluation.against != run.stored_recipe.evaluation.against
    file = f"evaluation-against-{oracle.method_id}.json" if other else "evaluation.json"
    if bands is not None:
        write_json(scores_folder(run, name, bands.slug) / file, value)
        return entry
    write_json(scores_folder(run, name) / file, value)
    if own and not run.changes:
        write_json(run.path("evaluation.json"), value)
    return entry


def _trust(
    run: Run, queries: Queries, oracle: Method, gold: np.ndarray, scores: dict[str, Scores]
) -> dict[str, float]:  # fmt: skip
    """How often answer sets and predictive intervals held, on pictures that they were not calibrated on: of one
    retraining, whichever it is. A retraining is predicted from the others."""
    config, found = run.recipe.evaluation, dict[str, np.ndarray]()
    if len(gold) >= 3:  # two others have a spread
        found[f"predictive_coverage.{oracle.method_id}"] = left_out_coverage(gold)
    for name, table in scores.items():
        state, made = calibration_state(run, get_method(run, name))
        if state != "valid" or made is None or table.answer is None or _shares(run, queries, made.queries):
            continue
        found[f"answer_set_coverage.{name}"] = covered(table.answer > 0, gold)
        found[f"answer_set_size.{name}"] = table.answer.sum(axis=1)
        if made.reach is not None and table.predicted_lo is not None and table.predicted_hi is not None:
            inside = (table.predicted_lo <= gold) & (gold <= table.predicted_hi)
            found[f"predictive_coverage.{name}"] = inside.mean(axis=(0, 2))
    figures: dict[str, float] = {}
    for name, values in found.items():
        figure = bootstrap_mean(values, config.resamples, config.seed)
        figures |= {name: figure.mean, f"{name}.lo": figure.lo, f"{name}.hi": figure.hi}
    return figures


def _answered(run: Run, gold: np.ndarray, scores: dict[str, Scores]) -> tuple[dict[str, float], list[str]]:
    """Top-1 on the pictures that get an answer: the table counts every picture, also those whose verdict is that the
    model does not make them, for which no group is named. Nothing where there are no such pictures."""
    origins = next((s.origins for s in scores.values()), None)
    kept = np.array([not o.foreign for o in origins or ()], bool)
    if kept.all() or kept.sum() < 2:
        return {}, []
    found = _compare(run, gold[:, kept], {m: s.score[kept] for m, s in scores.items()})
    rows = {m: row.intervals["top1"] for m, row in found.methods.items()}
    if found.ceiling is not None:
        rows[CEILING] = found.ceiling.intervals["top1"]
    figures = {"answered": float(kept.sum())}
    for m, figure in rows.items():
        name = f"top1_answered.{m}"
        figures |= {name: figure.mean, f"{name}.lo": figure.lo, f"{name}.hi": figure.hi}
    told = ", ".join(f"{m} {figure.mean:.1%}".replace("%", " %") for m, figure in rows.items())
    return figures, [
        f"The table counts all {len(kept)} pictures, also {len(kept) - int(kept.sum())} foreign ones, which get no "
        f"answer. Top-1 on the other {int(kept.sum())}: {told}."
    ]


def _prompted(
    run: Run, queries: Queries, gold: np.ndarray, values: dict[str, np.ndarray]
) -> tuple[dict[str, float], list[str]]:
    """Agreement apart for pictures whose first group, by the mean retraining, is the one that their prompt asks for,
    and for those where it is another: reading the prompt finds all of the former and none of the latter."""
    asked = prompted_groups(run, queries)
    if asked is None:
        return {}, []
    names = scored_groups(run)
    first = gold.mean(axis=0).argmax(axis=1)
    own = np.array([name is not None and names[k] == name for name, k in zip(asked, first, strict=True)])
    figures, lines = {"prompted_first": float(own.mean())}, []
    for what, which in (("prompted", own), ("cross", ~own)):
        figures[f"pictures_{what}"] = float(which.sum())
        if which.sum() < 2:
            continue
        found = _compare(run, gold[:, which], {m: v[which] for m, v in values.items()})
        rows = {} if found.ceiling is None else {CEILING: found.ceiling}
        for m, row in (rows | found.methods).items():
            for metric in ("top1", "spearman"):
                figure, name = row.intervals[metric], f"{metric}_{what}.{m}"
                figures |= {name: figure.mean, f"{name}.lo": figure.lo, f"{name}.hi": figure.hi}
        said = ", ".join(f"{m} {row.intervals['top1'].mean:.2f}" for m, row in (rows | found.methods).items())
        is_ = "is" if what == "prompted" else "is not"
        lines.append(f"Top-1 on {int(which.sum())} pictures whose first group {is_} the prompted one: {said}.")
    return figures, lines


def _null(run: Run, gold: np.ndarray) -> dict[str, float]:
    """What rank correlations of excess scores are read against."""
    config = run.recipe.evaluation
    found = stripped_null(gold, config.resamples, config.seed) if run.recipe.scoring.excess else None
    return {} if found is None else {NULL: found.mean, f"{NULL}.lo": found.lo, f"{NULL}.hi": found.hi}


def _held(trust: dict[str, float]) -> list[str]:
    """The same in words, of what should hold for 95 %."""

    def told(name: str) -> str:
        return f"{trust[name]:.1%} [{trust[f'{name}.lo']:.1%}, {trust[f'{name}.hi']:.1%}]".replace("%", " %")

    lines = []
    for name in [name for name in trust if not name.endswith((".lo", ".hi"))]:
        kind, _, method = name.partition(".")
        if kind == "answer_set_coverage":
            size = trust[f"answer_set_size.{method}"]
            lines.append(f"95 % answer sets of {method} ({size:.1f} groups on average) held for {told(name)}.")
        elif kind == "predictive_coverage":
            lines.append(f"95 % predictive intervals of {method} held for {told(name)}.")
    return lines


def _shares(run: Run, queries: Queries, other: str) -> bool:
    """Whether some picture is in both sets."""
    seen = {image.tobytes() for image in queries.images}
    return other in run.query_sets() and any(i.tobytes() in seen for i in load_queries(run, other).images)


RETRAINED = "logo (retrained)"  # LOGO's row where another oracle has the ceiling

HALVES_NOTE = (
    "The oracle is the average marginal contribution of a group to random halves of the others (Banzhaf at one half), "
    "not LOGO. Ceiling: the regression on the even pairs of subset models against that on the odd ones; methods face "
    "each of them. Intervals are over queries, given these models."
)


def _seeds(oracle: Method) -> tuple[list[int], list[str]]:
    """The oracle's seeds that are retrainings of their own, and a sentence where others are not counted."""
    every, own = list(oracle.replicates()), list(oracle.independent_seeds())
    if len(own) == len(every):
        return every, []
    shared = next(s for s in every if s not in own)
    why = f"LOGO seed {shared} is the training seed of the model under study, which is not an independent retraining"
    if not own:
        return every, [f"{why}: figures against it flatter."]
    return own, [f"{why}: it is left out."]


def _averages(
    queries: Queries, methods: Sequence[Method], bands: Bands | None
) -> dict[str, dict[str, GroupAverage]]:  # fmt: skip
    """What excess scores leave out, by method and group."""
    found = {}
    for method in filter(has_counterfactuals, methods):
        columns = method.excess(queries, method.sets(), bands).constants()
        rows = zip(*(columns[name].tolist() for name in columns), strict=True)
        cells = [GroupAverage(**dict(zip(columns, row, strict=True))) for row in rows]
        found[method.method_id] = dict(zip(method.groups, cells, strict=True))
    return found


def _attributable(
    run: Run, name: str, methods: Sequence[Method], scores: Mapping[str, Scores], bands: Bands | None
) -> dict[str, Attributability]:
    """By every method with trainings to compare or placebos; the oracle is listed even where it cannot say."""
    config, found = run.recipe.evaluation, {}
    for method in filter(has_counterfactuals, methods):
        m = method.method_id
        seeds = [f"{m}-s{s}" for s in method.independent_seeds()]
        several = np.stack([scores[s].score for s in (seeds if len(seeds) > 1 else [m])])
        null = placebo_null(run, name, m, None if bands is None else bands.slug)
        placebos = None if null is None else null.scores.score
        told = attributable(method.groups, several, placebos, config.resamples, config.seed)
        if method.oracle or told.count("unknown") == 0:
            found[m] = told
    return found


def method_cost(run: Run, queries: str, method: Method) -> Cost:
    terms = terms_folder(run).removeprefix("terms/")
    return Cost(
        fit_evals=method.fit_evals(), fit_seconds=stage_seconds(run, method.fit_stages()),
        score_evals=method.score_evals(), score_seconds=stage_seconds(run, method.score_stages(queries, terms)),
    )  # fmt: skip


def stage_seconds(run: Run, stages: list[str]) -> float | None:
    found = [s for stage in stages if (s := run.seconds(stage)) is not None]
    return sum(found) if found else None


def evaluate_bands(run: Run, name: str) -> dict[str, dict[str, float]]:
    """Top-1 in every noise band, against that band's own oracle: {band: {"ceiling": x, method: y, ...}}."""
    queries, oracle, methods = _checked(run, name)
    bands = [Bands(((low, high, 1.0),)) for low, high in pairwise(default_edges(run_schedule(run).T))]
    gold, values = oracle.seed_values(queries, bands), {m.method_id: m.values(queries, bands) for m in methods}
    table = {}
    for i, band in enumerate(bands):
        found = _compare(run, gold[i], {m: v[i] for m, v in values.items()})
        row = {} if found.ceiling is None else {"ceiling": found.ceiling.intervals["top1"].mean}
        table[band.name] = row | {m: a.intervals["top1"].mean for m, a in found.methods.items()}
    return table


def _checked(run: Run, name: str) -> tuple[Queries, Method, list[Method]]:
    config = run.recipe.evaluation
    oracle = get_method(run, config.against)
    if not oracle.oracle or not oracle.ranks_groups:
        oracle = run_oracle(run)  # says why not
    if config.reference is not None and config.reference not in METHODS:
        known = ", ".join(METHODS)
        raise GudaError(
            "method-unknown", f"evaluation.reference = {config.reference!r} is not a method; known: {known}"
        )
    queries = load_queries(run, name)
    names = scored_methods(run, name)
    if run.changes:  # what the recipe's settings have scored may be there by these as well
        own = scored_methods(Run(run.root, run.info, run.address), name)
        names += [m for m in own if m not in names and up_to_date(run, queries, get_method(run, m))]
    if PROMPT not in names and prompted_groups(run, queries) is not None:
        names = [*names, PROMPT]  # in every table of a model that is told what to draw; it costs nothing
    methods = [get_method(run, m) for m in names if m != config.against]
    for found in [oracle, *methods]:
        # settings may have been edited since: only terms under the present settings' names count
        if not up_to_date(run, queries, found):
            m = found.method_id
            why = f"methods are compared with {m}, and there are no" if found.oracle else f"there are no {m}"
            fit = "" if found.fitted() else f"guda fit {run.root} --method {m} && "
            raise GudaError(
                "scores-missing",
                f"{why} scores of {name!r} by the recipe's present settings; run: "
                f"{fit}guda score {run.root} --queries {name} --method {m}",
            )
    return queries, oracle, methods


def _compare(run: Run, gold: np.ndarray, values: dict[str, np.ndarray]) -> Comparison:
    """`gold`: of the oracle's seeds, [S, Q, G]; `values`: of the methods, [Q, G]."""
    config = run.recipe.evaluation
    reference = config.reference if config.reference in values else None
    return compare(gold, values, reference=reference, n=config.resamples, seed=config.seed)


def run_methods(run: Run, methods: Sequence[str] | None = None) -> list[str]:
    """What `run_all` works with: these, or the recipe's that the run can have (without a `training` section nothing is
    retrained)."""
    names = run.recipe.methods if methods is None else methods
    return [m for m in names if run.recipe.training is not None or not METHODS.find(m).trains]


def pipeline(run: Run, engine: Engine) -> DatasetEntry:
    """Everything a recipe asks for, with its comparison with the oracle."""
    name, entry = run_all(run, engine)
    return evaluate(run, name) if entry is None else entry


def run_all(
    run: Run, engine: Engine, methods: Sequence[str] | None = None, queries: str | None = None
) -> tuple[str, DatasetEntry | None]:
    """Everything a recipe asks for that is missing: prompts, train, fit, sample, score, look at the counterfactuals,
    and if its oracle is among the methods, evaluate. `queries`: a set of the run instead of new samples. Returns the
    name of the set, and the comparison."""
    names, asked = run_methods(run, methods), run.recipe.evaluation
    tasks = fit_tasks(run, names)
    found = [get_method(run, m) for m in names]
    if asked.placebos:
        for method in filter(takes_placebos, found):
            tasks += placebos_of(method, asked.placebos).fit()
    if run.recipe.prompts is not None and not all(run.has(file) for file in prompt_files(run)):
        prompts_build(run)
    drawn = sample_tasks(run, run.recipe.queries) if queries is None else []
    engine(run, ready(run, tasks + drawn), "train, fit and sample" if queries is None else "train and fit")
    name = collect_samples(run, run.recipe.queries) if queries is None else queries
    judged = asked.against in names
    if asked.calibration and judged:
        calibrate(run, engine, [m.method_id for m in found if m.ranks_groups and not m.oracle], asked.calibration)
    score(run, name, [m.method_id for m in found if m.scored], engine)
    if asked.health:
        checked = [m for m in found if m.counterfactuals and m.ranks_groups and not m.oracle]
        health(run, [m.method_id for m in checked], engine)
    return name, evaluate(run, name) if judged else None


# ---- Under another estimand, beside the run's own: path divergence, in excess of the average picture. The
# scores and their evaluation go to folders of their own; the recipe and the run's evaluation.json stay.
OTHER = {"estimand": "path", "excess": True, "drift": "keep"}

FOLDER = "path-excess"


def path_methods(run: Run) -> list[str]:
    """Those of the recipe that have counterfactuals; for others there is only one kind of score."""
    found = [get_method(run, m) for m in run.recipe.methods]
    return [m.method_id for m in found if m.counterfactuals and m.ranks_groups]


def evaluate_by_path(run: Run, name: str, engine: Engine) -> DatasetEntry:
    """Score one query set under the other estimand, by the same methods, and compare with the oracle's own."""
    other = override(run, scoring=OTHER)
    score(other, name, methods := path_methods(other), engine)
    return evaluate(other, name, own=False, only=methods)


def path_evaluation(run: Run, name: str) -> Path:
    """Where its evaluation is."""
    return run.path("scores", name, FOLDER, "evaluation.json")
