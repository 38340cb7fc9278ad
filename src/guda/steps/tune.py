"""Choosing a method's settings by agreement with LOGO, on queries that no reported figure has seen.

    by rank:      value = top1 + mrr / (2 S Q)        S seeds, Q queries, both averaged over the golds of all seeds
    by function:  value = (cos_first + cos_other) / 2  cosine of what method and retraining change, of each picture's
                                                       first group and of its other groups (steps/function.py)

top1 moves in steps of 1 / (S Q) and mrr is at most 1, so mrr decides between equal top1 and never against it; what is
still equal goes to the setting that is cheaper to fit, then to the earlier one. A cosine needs far fewer pictures than
ranks do. Only some groups are fitted and compared, because fitting is what costs.

Suggestions come from optuna's TPE sampler. A study is stored as its trace, a line per finished trial; every suggestion
is a function of the trace before it and of its own number, which seeds the sampler, so a study that was killed resumes
with the trials it would have had. Optuna's journal storage cannot promise that: a killed trial stays in it as running,
with some of its parameters drawn, and the next one gets another number; its times and worker ids also make every file
differ. An optuna study therefore lives only as long as one suggestion.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from guda.diffusion.noise import generator, torch_seed
from guda.errors import GudaError, NotFinite
from guda.evaluation.intervals import Figure
from guda.evaluation.sweep import Trial
from guda.files import digest, write_json, write_text
from guda.methods.base import Method, get_method
from guda.run.data import load_data, scored_groups
from guda.run.plan import run_plan
from guda.run.recipe import Recipe
from guda.run.run import Run
from guda.run.samples import collect_samples, sample_tasks
from guda.steps.fit import Engine, base_tasks
from guda.steps.queries import refuse_shared, tuning_queries
from guda.steps.search_space import Space, check_space, default_space
from guda.steps.setting_trial import Trials, fitted_oracle, method_class
from guda.steps.settings import update_settings

SEED = 0  # of the groups and of the sampler

GROUPS = 5  # compared unless told otherwise

STARTUP = 8  # trials drawn at random before TPE has anything to model

OBJECTIVES = {
    "rank": "top1 + mrr / (2 S Q): top1, ties by mrr, then by cost",
    "function": "mean cosine with a retraining's change, of the first group and of the others, half each; then cost",
}


class TuneTrial(Trial):
    """A line of the trace; no times in it, so that two studies can be compared by their bytes."""

    number: int = Field(ge=0)
    params: dict[str, Any] = Field(description="what the sampler suggested")
    value: float = Field(description="the objective; 0, the worst, where it failed")


@dataclass(frozen=True)
class Tuned:
    folder: Path
    method: str
    queries: str
    groups: tuple[str, ...]
    trials: tuple[TuneTrial, ...]  # all finished ones, in order
    ran: int  # how many of them are new
    ranking: tuple[TuneTrial, ...]  # different settings, best first
    chosen: dict[str, Any]  # the best one's values of the searched settings
    lead: Figure | None  # top1 of the best minus that of the second, paired; None: there is no second
    recipe: Path  # chosen.yaml
    ceiling: float | None  # top1 of one LOGO retraining on these queries and groups
    objective: str

    @property
    def separated(self) -> bool:
        return self.lead is not None and self.lead.separated


def tune(
    run: Run,
    method: str,
    trials: int,
    engine: Engine,
    *,
    queries_seed: int | None = None,
    n: int = 200,
    groups: int | Sequence[str] | None = None,
    space: Space | None = None,
    apply: bool = False,
    by: str = "rank",
) -> Tuned:
    """Try settings until the study has `trials`, and write the best as RUN/tune/<study>/chosen.yaml.

    `apply` also puts them into the run's recipe; `by`: rank or function."""
    _need_optuna()
    if by not in OBJECTIVES:
        raise GudaError("objective-unknown", f"--by {by}: settings are chosen by {' or '.join(OBJECTIVES)}")
    cls = method_class(method)
    if trials < 1:
        raise GudaError("trials-too-few", f"{trials} trials find nothing; give at least 1")
    base = run.recipe.settings(method)
    space = default_space(cls, base) if space is None else space
    check_space(space, cls, base)
    config = tuning_queries(run, queries_seed, n)
    chosen_groups = choose_groups(run, groups)
    fitted_oracle(run, chosen_groups)  # before anything is drawn
    engine(run, base_tasks(run) + sample_tasks(run, config), "sample tuning queries")
    queries = collect_samples(run, config)
    refuse_shared(run, queries)
    study = Trials(run, queries, chosen_groups)
    study.prepare(engine)
    identity = _identity(study, method, space, by)
    folder = run.path("tune", f"{method}-{digest(identity)}")
    write_json(folder / "study.json", identity)
    trace = read_trace(folder / "trace.jsonl")
    before = len(trace)
    while len(trace) < trials:
        params = suggest(space, trace, len(trace))
        settings = {**base, **{k: d.setting(params[k]) for k, d in space.items()}}
        found = study.method(method, settings, f"trial {len(trace)} of {method}")
        trace = [*trace, _measure(study, found, params, len(trace), engine, by)]
        write_text(folder / "trace.jsonl", "".join(t.model_dump_json() + "\n" for t in trace))
    return _conclude(study, method, space, folder, trace, len(trace) - before, apply, by)


def _need_optuna() -> None:
    try:
        import optuna
    except ImportError:
        raise GudaError(
            "package-missing", "tuning needs optuna, which is not installed; run: pip install 'guda[tune]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)


# ---- what is tuned on -------------------------------------------------------------------------------------
def choose_groups(run: Run, groups: int | Sequence[str] | None) -> tuple[str, ...]:
    """By name, or so many in the order of a keyed permutation: asking for more keeps those chosen before."""
    names = scored_groups(run)
    if groups is None:
        groups = min(GROUPS, len(names))
    if isinstance(groups, int):
        wanted = {names[int(k)] for k in generator(SEED, "tune", "groups").permutation(len(names))[: max(0, groups)]}
    else:
        for name in groups:
            load_data(run).groups.index(name)  # refuses an unknown one, naming those there are
        if other := [name for name in groups if name not in names]:
            raise GudaError(
                "group-not-scored",
                f"--groups: {other[0]!r} is not among the groups this run asks about (scoring.groups)",
            )
        wanted = set(groups)
    if len(wanted) < 2 or (isinstance(groups, int) and groups > len(names)):
        raise GudaError(
            "groups-too-few",
            f"--groups: a ranking needs at least 2 groups, and the run has {len(names)}; name several, or give their "
            "number",
        )
    return tuple(name for name in names if name in wanted)


def _identity(study: Trials, method: str, space: Space, by: str) -> dict[str, Any]:
    """Everything that a trial's value depends on; the searched settings of the recipe are not among it."""
    run, config = study.run, study.run.recipe.evaluation
    first = {k: d.ends()[0] for k, d in space.items()}
    plain = study.method(method, {**run.recipe.settings(method), **first}, f"methods.{method}").config
    fixed = {k: v for k, v in plain.model_dump(mode="json").items() if k not in space}
    scoring = run.recipe.scoring
    subtracted = {"drift": scoring.drift, "reference": scoring.reference} if scoring.drift == "subtract" else {}
    halves, models = _halves(study, method, space), [m.identity(run) for m in study.oracle.models()]
    return {
        "method": method,
        "objective": OBJECTIVES[by],
        "space": {k: d.to_json() for k, d in space.items()},
        "fixed": fixed,
        **({"halves": halves} if halves else {}),
        "sampler": {"name": "tpe", "seed": SEED, "startup": STARTUP},
        "queries": {"name": study.queries.name, "digest": study.queries.digest},
        "groups": list(study.groups),
        "oracle": {"seeds": list(study.oracle.config.seeds), "models": digest(models)},
        "scoring": {"plan": run_plan(run).key, "rounds": scoring.rounds} | subtracted,
        "bootstrap": {"resamples": config.resamples, "seed": config.seed},
    }


def _halves(study: Trials, method: str, space: Space) -> dict[str, Any]:
    """Settings of the methods that a trial may be made of, where it is made of others."""
    base = study.run.recipe.settings(method)
    tried = [{}, *({k: end} for k, d in space.items() for end in d.ends())]
    names = {p for t in tried for p in study.method(method, {**base, **t}, f"methods.{method}").parts()} - {method}
    return {name: get_method(study.run, name).config.model_dump(mode="json") for name in sorted(names)}


# ---- trials -----------------------------------------------------------------------------------------------
def suggest(space: Space, trace: Sequence[TuneTrial], number: int) -> dict[str, Any]:
    """The sampler's parameters for trial `number`, after `trace`: a new study is filled from it each time."""
    import optuna

    distributions = {k: d.distribution() for k, d in space.items()}
    sampler = optuna.samplers.TPESampler(n_startup_trials=STARTUP, seed=torch_seed(SEED, "tune", number) % 2**32)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of optuna's own deprecations
        for past in trace:
            study.add_trial(
                optuna.trial.create_trial(params=past.params, distributions=distributions, value=past.value)
            )
        return dict(study.ask(distributions).params)


def _measure(study: Trials, method: Method, params: dict[str, Any], number: int, engine: Engine, by: str) -> TuneTrial:
    try:
        study.carry_out(method, engine)
        comparison = study.compare({"trial": method})
        cosines = study.fidelity(method, engine) if by == "function" else None
    except NotFinite as e:
        return TuneTrial(number=number, params=params, value=0.0, metrics={}, failed=str(e), **study.cost(method))
    figures = study.figures(method, comparison, "trial")
    if cosines is not None:
        own, other = cosines.own[method.method_id], cosines.other[method.method_id]
        figures["metrics"] |= {"cos_first": own, "cos_other": other}
        return TuneTrial(number=number, params=params, value=(own.mean + other.mean) / 2, **figures)
    top1, mrr = figures["metrics"]["top1"].mean, figures["metrics"]["mrr"].mean
    value = top1 + mrr / (2 * comparison.n_seeds * comparison.n_queries)
    return TuneTrial(number=number, params=params, value=value, **figures)


def read_trace(path: Path) -> list[TuneTrial]:
    """The finished trials of a study, none where there is no trace yet."""
    if not path.is_file():
        return []
    try:
        trace = [TuneTrial.model_validate_json(line) for line in path.read_text().splitlines()]
        if [t.number for t in trace] != list(range(len(trace))):
            raise ValueError("trials are missing")
    except ValueError as e:
        reason = str(e).splitlines()[0]
        raise GudaError(
            "trace-damaged", f"{path} is damaged ({reason}); delete it: finished fits and scores are kept"
        ) from None
    return trace


# ---- conclusion -------------------------------------------------------------------------------------------
def ranked(trace: Sequence[TuneTrial]) -> list[TuneTrial]:
    """Different settings that worked, best first: by value, then the cheaper, then the earlier."""
    order = sorted((t for t in trace if not t.failed), key=lambda t: (-t.value, t.fit_evals or 0.0, t.number))
    first: dict[str, TuneTrial] = {}
    for trial in order:
        first.setdefault(digest(trial.settings), trial)
    return list(first.values())


def _conclude(
    study: Trials, method: str, space: Space, folder: Path, trace: list[TuneTrial], ran: int, apply: bool,
    by: str,
) -> Tuned:  # fmt: skip
    ranking = ranked(trace)
    if not ranking:
        raise GudaError(
            "trials-all-failed",
            f"all {len(trace)} trials of {method} failed, the first: {trace[0].failed}; search elsewhere",
        )
    two = {str(i): study.method(method, t.settings, method) for i, t in enumerate(ranking[:2])}
    comparison = study.compare(two, reference="1" if len(two) == 2 else None)
    lead = comparison.methods["0"].difference.get("top1")
    best = ranking[0]
    chosen = {k: best.settings[k] for k in space}
    result = Tuned(
        folder=folder, method=method, queries=study.queries.name, groups=study.groups, trials=tuple(trace), ran=ran,
        ranking=tuple(ranking), chosen=chosen, lead=lead, recipe=folder / "chosen.yaml",
        ceiling=comparison.ceiling.intervals["top1"].mean if comparison.ceiling else None,
        objective=OBJECTIVES[by],
    )  # fmt: skip
    write_text(result.recipe, _recipe_text(study.run, result))
    if apply:
        update_settings(study.run, method, chosen)
    return result


def _recipe_text(run: Run, result: Tuned) -> str:
    """The run's recipe with the chosen settings, and how they were chosen."""
    value = run.recipe.model_dump(mode="json")
    value["methods"][result.method] = run.recipe.methods.get(result.method, {}) | result.chosen
    best = result.ranking[0]
    top1 = best.metrics["top1"]
    # a name may hold anything but must not end the comment
    groups = " ".join(", ".join(result.groups).split())
    lines = [
        f"{result.method} ({', '.join(result.chosen)}) was chosen by guda tune: trial {best.number} of "
        f"{len(result.trials)}, by {result.objective};",
        f"top1 {top1.mean:.3f} [{top1.lo:.3f}, {top1.hi:.3f}] against LOGO on tuning queries {result.queries},",
        f"groups {groups}; {lead_text(result)}.",
    ]
    recipe = Recipe.from_dict(value, "the chosen recipe")
    return "".join(f"# {line}\n" for line in lines) + recipe.to_yaml()


def lead_text(result: Tuned) -> str:
    if result.lead is None:
        return "no other setting to compare with"
    lead = result.lead
    said = "separated from" if result.separated else "not separated from"
    return f"{said} the second (top1 difference {lead.mean:+.3f} [{lead.lo:+.3f}, {lead.hi:+.3f}])"
