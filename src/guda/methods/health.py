"""Health of a bank of counterfactuals: what each of them does to training images whose group is known.

    L[k, j] = mean over reference images x of group j of s_k(x),   s_k(x) = ELBO(x; full) - ELBO(x; without k), nats

Positive = the counterfactual without k explains group j worse. The diagonal is forgetting: it should be large. Off it
is leakage: what taking out k does to the images of another group. Drift_k, the mean over all images outside k, is the
part of every score of k that has nothing to do with k (scoring/reference.py).

Training images overstate forgetting: theta_full was trained on them, so even the diagonal of LOGO is larger than it
would be on fresh pictures of the group. Compare matrices with one another, the oracle's above all, not with scores of
queries.

Each counterfactual has a verdict, by its row L[k, :] with own = L[k, k]; the first that applies:

    forgets nothing   own is not two standard errors above zero
    leaks             another group's images are explained worse by at least half as much as its own (and by two
                      standard errors): that group's pictures would count for k too
    drifts            the interval of the drift leaves out zero, and |drift| is more than a quarter of own: a good part
                      of every score of k is there for any picture (excess scores leave most of it out)
    sound             none of these
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import ValidationError, computed_field, model_validator

from guda.config import Config
from guda.errors import GudaError
from guda.files import digest, read_json, write_json
from guda.methods.base import Method, get_method
from guda.methods.elbo import ElboMethod, has_counterfactuals
from guda.methods.reference import Reference
from guda.methods.trained import trained
from guda.run.data import scored_groups
from guda.run.models import run_schedule, training_warning
from guda.run.plan import run_plan
from guda.run.run import Run
from guda.scoring.bands import by_band, default_edges
from guda.scoring.reference import Drift, measure_drift

SIGN = "positive = the counterfactual explains the images worse than the full model"

NOTE = "training images: the full model has trained on them, so forgetting is larger than on fresh pictures"


Soundness = Literal["sound", "leaks", "drifts", "forgets nothing"]

LEAK = 0.5  # of its own forgetting: with more, k and the other group can no longer be told apart by sizes of scores

DRIFT = 0.25  # of its own forgetting: with more, noise of the operator is a visible part of every score

CLEAR = 2.0  # standard errors


class DriftFigure(Config):
    """Of one group's counterfactual, in nats."""

    mean: float
    stderr: float
    lo: float
    hi: float


class BandDrift(Config):
    """The part of the drift that comes from timesteps low <= t < high; the parts add up to the whole."""

    low: int
    high: int
    drift: list[DriftFigure]  # per group


class Health(Config):
    """RUN/health/<artifact>.json."""

    method: str
    artifact: str
    unit: str
    sign: str
    note: str
    estimand: str
    reference: str  # the set of training images
    images: list[int]  # of each group
    groups: list[str]
    matrix: list[list[float]]  # [k][j]: what the counterfactual without k does to the images of group j
    stderr: list[list[float | None]]  # over images; null where there is one image only
    drift: list[DriftFigure]  # per group
    bands: list[BandDrift]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def verdicts(self) -> dict[str, Soundness]:
        """By group; always computed from the matrix, so that files from before have them too."""
        rows = zip(self.groups, self.matrix, self.stderr, self.drift, strict=True)
        return {name: soundness(k, row, error, drift) for k, (name, row, error, drift) in enumerate(rows)}

    def unsound(self) -> str:
        """One line on the counterfactuals that are not sound; empty if all are."""
        found = self.verdicts
        counted = Counter(v for v in found.values() if v != "sound")
        if not counted:
            return ""
        kinds = "; ".join(f"{v}: {_listed([g for g in found if found[g] == v])}" for v in counted)
        return f"{self.method}: {sum(counted.values())} of {len(found)} counterfactuals are not sound ({kinds})"

    @model_validator(mode="before")
    @classmethod
    def _without_verdicts(cls, value: Any) -> Any:
        return {k: v for k, v in value.items() if k != "verdicts"} if isinstance(value, dict) else value


NAMED = 4  # groups in a line; the others are counted


def _listed(names: list[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def soundness(k: int, row: Sequence[float], error: Sequence[float | None], drift: DriftFigure) -> Soundness:
    """Of the counterfactual without group k: what it does to images of every group, with standard errors."""
    own = row[k]
    if own <= CLEAR * (error[k] or 0.0):
        return "forgets nothing"
    if any(
        x >= LEAK * own and x > CLEAR * (e or 0.0) for j, (x, e) in enumerate(zip(row, error, strict=True)) if j != k
    ):
        return "leaks"
    if (drift.lo > 0 or drift.hi < 0) and abs(drift.mean) > DRIFT * own:
        return "drifts"
    return "sound"


def health_path(method: Method) -> str:
    """Named after the artifact; where several sets are combined (seeds, halves), after all of their models."""
    if has_counterfactuals(method) and len(method.sets()) > 1:
        made_of = [method.config.model_dump(mode="json"), [m.key for m in method.models()]]
        return f"health/{method.method_id}-{digest(made_of, 8)}.json"
    return f"health/{Path(getattr(method, 'folder', None) or method.artifact()).name}.json"


def check_health(method: Method) -> ElboMethod:
    if not has_counterfactuals(method) or not method.ranks_groups:
        raise GudaError(
            "method-without-models",
            f"{method.method_id} makes no counterfactual models to check; leave it out with --method",
        )
    return method


def leakage(score: np.ndarray, group: np.ndarray, n_groups: int) -> tuple[np.ndarray, np.ndarray]:
    """(L, its standard error over images), both [k, j], from scores [images, k] of images of `group`."""
    mean, error = np.empty((n_groups, n_groups)), np.full((n_groups, n_groups), np.nan)
    for j in range(n_groups):
        here = score[group == j]
        mean[:, j] = here.mean(axis=0)
        if len(here) > 1:
            error[:, j] = here.std(axis=0, ddof=1) / np.sqrt(len(here))
    return mean, error


def measure_health(method: ElboMethod, images: Reference) -> Health:
    """From finished terms."""
    run, sets, read = method.run, method.sets(), method.reader(images.queries, estimand="elbo")
    names = method.groups
    d, t = method.contributions(sets, read), read.times(sets)
    score = d.mean(axis=0).sum(axis=-1)
    place = {method.number(name): k for k, name in enumerate(names)}
    group = np.array([place[int(k)] for k in images.group])
    outside = method.outside(images.index)
    matrix, error = leakage(score, group, len(names))
    edges = default_edges(run_schedule(run).T)
    parts = np.stack([by_band(d[:, :, k], t, edges) for k in range(len(names))], axis=-1)  # [bands, images, groups]
    return Health(
        method=method.method_id, artifact=Path(health_path(method)).stem, unit=method.unit, sign=SIGN, note=NOTE,
        estimand=run_plan(run).estimand, reference=images.queries.name, groups=list(names),
        images=np.bincount(group, minlength=len(names)).tolist(), matrix=matrix.tolist(),
        stderr=[[None if np.isnan(e) else float(e) for e in row] for row in error],
        drift=_figures(measure_drift(score, outside)),
        bands=[
            BandDrift(low=low, high=high, drift=_figures(measure_drift(part, outside)))
            for (low, high), part in zip(pairwise(edges), parts, strict=True)
        ],
    )  # fmt: skip


def _figures(found: Drift) -> list[DriftFigure]:
    columns = (found.mean, found.stderr, found.mean - found.reach, found.mean + found.reach)
    return [DriftFigure(mean=m, stderr=s, lo=lo, hi=hi) for m, s, lo, hi in np.stack(columns, axis=1).tolist()]


def write_health(run: Run, method: ElboMethod, found: Health) -> Path:
    path = run.path(health_path(method))
    write_json(path, found.model_dump(mode="json"))
    return path


def read_health(run: Run, method: Method) -> Health | None:
    """What was measured of the method as it is set now; None if nothing was."""
    path = run.path(health_path(method))
    if not path.is_file():
        return None
    try:
        found = Health.model_validate(read_json(path))
    except ValidationError as e:
        raise GudaError(
            "health-damaged", f"{path} is damaged ({e.errors()[0]['msg']}); run: guda health {run.root}"
        ) from None
    return found if tuple(found.groups) == scored_groups(run) else None


def warnings(run: Run, methods: Sequence[str] = ()) -> list[str]:
    """What should be read before any score is: a model that is still learning or has not learned, counterfactuals that
    are not sound."""
    found = [get_method(run, m) for m in methods]
    measured = [h for m in found if m.counterfactuals and m.ranks_groups and (h := read_health(run, m)) is not None]
    learned = trained(run)
    lines = [training_warning(run), None if learned is None else learned.text, *(h.unsound() for h in measured)]
    return [line for line in lines if line]
