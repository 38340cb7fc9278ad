"""`guda without`: what pictures and remaining groups would lose if some groups left the training data.

    posterior   ELBO(full) - ELBO(eps_S), S = all other groups; no training (scoring/coalition.py)
    subsets     sum of b_k over the leaving groups: their contribution to models of random halves (scoring/datamodel.py)
    unlearned   ELBO(full) - ELBO(full with the union of the groups unlearned)

The first and the last ask about leaving the whole; the regression asks about leaving a half, where there is less to
take a group's place, so its losses are larger. Where subset models are trained, every engine predicts what they give
the pictures, and the prediction is compared with what was measured.

    RUN/without/<set>/<engine>-<groups>.json, .csv, .png (pictures with and without the groups; report/shares.py)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from guda.data.queries import Queries
from guda.errors import GudaError
from guda.evaluation.intervals import Figure, percentile_interval, query_counts
from guda.evaluation.lds import cross_fitted, lds
from guda.evaluation.results import read_file
from guda.evaluation.without import Check, Loss, WithoutFile, pictures_table
from guda.files import digest, write_json, write_text
from guda.methods.coalitions import Ask, coalition_tasks, posterior, read_coalitions
from guda.methods.elbo import ElboMethod
from guda.methods.reference import Reference, reference
from guda.methods.regroup import unions_of
from guda.methods.terms import ModelRef, load_queries, run_scorer, score_tasks
from guda.methods.with_without import WithWithout, with_without, with_without_tasks
from guda.run.data import load_data
from guda.run.run import Run
from guda.run.task import pending
from guda.scoring.estimate import LEVEL, difference, t_quantile
from guda.scoring.scorer import Reader
from guda.steps.fit import Engine, base_tasks, ready
from guda.steps.lds import evaluated_subsets
from guda.steps.score import prepared
from guda.steps.shares import EngineName, check_engine, half_values, operator_of, players

Losses = tuple[np.ndarray, np.ndarray]  # mean and half-width of the 95 % interval, [Q]

NOTES = {
    "posterior": "Predicted without training; intervals are over the noise of scoring and do not say how well the "
    "density describes the data.",
    "subsets": "What these groups add to models of random halves of the groups, on average, which is more than what "
    "leaving the whole would cost if groups can replace one another. Intervals contain the randomness of training.",
    "unlearned": "The groups were unlearned together; intervals are over the noise of scoring, given that model.",
}


def check_leaving(run: Run, leaving: Sequence[str], engine: str) -> tuple[str, ...]:
    """The groups in the data's order; refused if they are unknown, or if nothing would be left."""
    known = load_data(run).groups
    if not leaving:
        raise GudaError("without-groups-missing", "name the groups that would leave: --groups a,b")
    numbers = sorted({known.index(g) for g in leaving})
    names = tuple(known.names[k] for k in numbers)
    if known.membership[:, numbers].any(axis=1).all():
        raise GudaError(
            "without-covers-all", f"without {', '.join(names)} no training image is left; name fewer groups"
        )
    if engine == "subsets" and (other := [g for g in names if g not in players(run)]):
        raise GudaError(
            "without-group-not-scored",
            f"subset models were drawn over the scored groups, not {other[0]!r}; give --by posterior",
        )
    return names


def without(
    run: Run, name: str, leaving: Sequence[str], engine: EngineName, method: str | None, work: Engine
) -> WithoutFile:  # fmt: skip
    queries, needed = load_queries(run, name), check_engine(run, engine, method)
    names = check_leaving(run, leaving, engine)
    images = reference(run)

    def compute() -> WithoutFile:
        loss = _losses(run, queries, names, engine, method, work)
        remaining = _losses(run, images.queries, names, engine, method, work)
        return _file(run, queries, names, engine, method, loss, _by_group(run, images, remaining, names), work)

    found = prepared(run, [needed], work, compute)
    path = without_file(run, found)
    write_text(path.with_suffix(".csv"), pictures_table(found).csv())
    write_json(path, found.model_dump(mode="json"))
    return found


def without_file(run: Run, found: WithoutFile) -> Path:
    return run.path("without", found.queries, f"{found.engine}-{digest(found.groups, 8)}.json")


def read_without(run: Run, name: str) -> list[WithoutFile]:
    """All that were predicted of a query set."""
    files = sorted(run.path("without", name).glob("*.json"))
    return [read_file(p, WithoutFile, "without-file-invalid", "file of predicted losses") for p in files]


def _losses(
    run: Run, queries: Queries, names: tuple[str, ...], engine: EngineName, method: str | None, work: Engine
) -> Losses:  # fmt: skip
    if engine == "posterior":
        ask = Ask(names, "elbo", (1,) * len(names), ((0,) * len(names),), pooled=False)
        work(run, coalition_tasks(run, queries, ask), f"value {queries.name}")
        found = difference(-read_coalitions(run, queries, ask)["values"][0])
    elif engine == "unlearned":
        model = union_model(run, names, method)
        work(run, ready(run, [*base_tasks(run), *model.fit()]), f"unlearn {', '.join(names)}")
        [(full, refs)] = model.sets()
        models = [full, *refs.values()]
        work(run, score_tasks(run, queries, models, model.method_id, "elbo"), f"score {queries.name}")
        read = Reader(run_scorer(run, estimand="elbo"), queries, run.recipe.scoring.rounds)
        found = difference(read(models[1]).kl - read(models[0]).kl)
    else:
        values = half_values(run, queries, "subsets", None, "elbo", work)
        fitted = values.fit(None)
        chosen = np.isin(players(run), names)
        loss, stderr = fitted.effect(chosen)
        return loss, t_quantile(0.5 + LEVEL / 2, fitted.df) * stderr
    assert found.hi is not None
    return found.score, found.hi - found.score


def union_model(run: Run, names: tuple[str, ...], method: str | None) -> ElboMethod:
    """The operator with one union for a group."""
    return unions_of(operator_of(run, method), [names])


def draw_without(
    run: Run, found: WithoutFile, method: str | None, top: int, work: Engine
) -> list[tuple[str, WithWithout]]:  # fmt: skip
    """The pictures that would lose most, from the same noise with and without the groups; none by `subsets`, which has
    no model of this coalition."""
    if found.engine == "subsets" or not top:
        return []
    base = posterior(run) if found.engine == "posterior" else operator_of(run, method)
    model, queries = unions_of(base, [found.groups]), load_queries(run, found.queries)
    [group], ids = model.groups, [p.name for p in found.pictures[:top]]

    def make() -> list[tuple[str, WithWithout]]:
        work(run, ready(run, [*base_tasks(run), *model.fit()]), f"without {group}")
        tasks = [task for i in ids for task in with_without_tasks(model, queries, i, group)]
        work(run, pending(run, tasks), f"draw {len(ids)} pictures")
        return [(i, with_without(model, queries, i, group)) for i in ids]

    return prepared(run, [base], work, make)


def _by_group(run: Run, images: Reference, losses: Losses, names: tuple[str, ...]) -> list[Loss]:
    """Of every remaining group, the mean over its reference images that are in no leaving group; interval over the
    images and the noise of each."""
    known = load_data(run).groups
    gone = known.membership[images.index][:, [known.index(g) for g in names]].any(axis=1)
    found = []
    for k in dict.fromkeys(images.group.tolist()):
        own = np.flatnonzero((images.group == k) & ~gone)
        if known.names[k] in names or len(own) < 2:
            continue
        mean = float(losses[0][own].mean())
        spread = float(losses[0][own].std(ddof=1)) / np.sqrt(len(own))
        reach = float(t_quantile(0.5 + LEVEL / 2, float(len(own) - 1))) * spread
        found.append(Loss(name=known.names[k], mean=mean, lo=mean - reach, hi=mean + reach))
    return found


def _file(
    run: Run, queries: Queries, names: tuple[str, ...], engine: EngineName, method: str | None, losses: Losses,
    remaining: list[Loss], work: Engine,
) -> WithoutFile:  # fmt: skip
    loss, reach = losses
    pictures = [
        Loss(name=queries.ids[q], mean=float(loss[q]), lo=float(loss[q] - reach[q]), hi=float(loss[q] + reach[q]))
        for q in np.argsort(-loss, kind="stable")
    ]
    # the errors of subset models are shared by all pictures, those of draws are each picture's own
    wide = float(reach.mean()) if engine == "subsets" else float(np.sqrt((reach**2).sum()) / len(reach))
    mean, known = float(loss.mean()), load_data(run).groups
    away = int(known.membership[:, [known.index(g) for g in names]].any(axis=1).sum())
    return WithoutFile(
        engine=engine, method=None if engine != "unlearned" else operator_of(run, method).id, groups=list(names),
        queries=queries.name, estimand=run_scorer(run, estimand="elbo").estimand, images=away, of=known.n_images,
        note=NOTES[engine], overall=Figure(mean=mean, lo=mean - wide, hi=mean + wide), pictures=pictures,
        remaining=remaining, check=check_prediction(run, queries, engine, method, work),
    )  # fmt: skip


# ---- predicted against measured -------------------------------------------------------------------------------------
def check_prediction(
    run: Run, queries: Queries, engine: EngineName, method: str | None, work: Engine
) -> Check | None:  # fmt: skip
    """On the subset models, if they are trained and were evaluated on these pictures; unlearned halves are not made for
    this alone."""
    values = evaluated_subsets(run, queries, "elbo")
    if values is None or len(values.inside) < 16:
        return None
    predicted = predict_subsets(run, queries, engine, values.inside, values.values, work)
    return None if predicted is None else compare_values(run, predicted, values.values)


def predict_subsets(
    run: Run, queries: Queries, engine: EngineName, inside: np.ndarray, measured: np.ndarray, work: Engine
) -> np.ndarray | None:  # fmt: skip
    """ELBO less that of the full model, [Q, M]; of the regression by pairs that it was not fitted to."""
    if engine == "subsets":
        return cross_fitted(inside, measured) - _full(run, queries)[:, None]
    if engine == "unlearned":
        return None
    groups = players(run)
    sets = tuple(tuple(int(x) for x in row) for row in inside)
    ask = Ask(groups, "elbo", (1,) * len(groups), sets, pooled=False)
    work(run, coalition_tasks(run, queries, ask), f"value {len(sets)} coalitions")
    return np.asarray(read_coalitions(run, queries, ask)["values"].mean(axis=1).sum(axis=-1).T)


def _full(run: Run, queries: Queries) -> np.ndarray:
    read = Reader(run_scorer(run, estimand="elbo"), queries, run.recipe.scoring.rounds)
    return np.asarray(-read(ModelRef("base")).kl.mean(axis=0).sum(axis=-1))


def compare_values(run: Run, predicted: np.ndarray, values: np.ndarray) -> Check:
    """`predicted` [Q, M]: relative to the full model; `values` [M, Q]: ELBOs. What the pictures have in common with the
    full model is not counted: both are centred for every picture, so R2 is of the differences between subsets."""
    truth = values.T - values.T.mean(axis=1, keepdims=True)
    found = predicted - predicted.mean(axis=1, keepdims=True)
    error, whole = ((truth - found) ** 2).sum(axis=1), (truth**2).sum(axis=1)
    config = run.recipe.evaluation
    mean = 1 - error.sum() / whole.sum()
    counts = np.concatenate(list(query_counts(len(error), config.resamples, config.seed)))
    r2 = percentile_interval(float(mean), 1 - (counts @ error) / (counts @ whole))
    return Check(subsets=len(values), r2=r2, spearman=lds(predicted, values))
