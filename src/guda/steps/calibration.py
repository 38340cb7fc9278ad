"""What a calibration is of, where it is kept, and what it says about scores (scoring/answer_set.py).

RUN/calibration/<estimand>/<method>.json, beside nothing else: pictures that figures are reported on have no part in it.
It is used only while everything it was computed from is as it was; otherwise it is left alone and the verdict says that
nothing was validated.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from guda.config import Config
from guda.evaluation.results import read_file
from guda.files import digest, write_json
from guda.methods.base import Method, get_method
from guda.methods.elbo import ElboMethod, has_counterfactuals
from guda.run.data import scored_groups
from guda.run.plan import run_plan
from guda.run.run import Run
from guda.scoring.answer_set import answer_sets, interval_gaps, set_gaps, spreads, threshold
from guda.scoring.reading import LOG_UNIT, NOT_VALIDATED
from guda.scoring.scores import Scores


class Source(Config):
    """What a calibration was computed from; another one is of other answers."""

    models: str = Field(description="digest of the method's settings and of the models that it compares")
    scoring: str = Field(description="digest of estimand, excess, plan, rounds, drift and the average's pictures")
    oracle: str = Field(description="digest of the retrained models")
    groups: list[str]


class Calibration(Config):
    method: str
    estimand: str
    level: float = Field(gt=0, lt=1)
    n: int = Field(ge=1, description="calibration pictures")
    queries: str = Field(description="the set that they are")
    pictures: str = Field(description="digest of the pictures")
    oracle: str = Field(description="method that retrains")
    seeds: list[int] = Field(description="of the retrainings; a set is right for ONE of them, whichever it is")
    scaled: bool = Field(description="whether gaps are over the spread of a picture's scores")
    threshold: float | None = Field(description="how far below the first a group of the set may be; null: any")
    reach: float | None = Field(description="the same of predictive intervals; null: other units, or too few pictures")
    size: float = Field(description="mean number of groups in the sets of the calibration pictures")
    source: Source

    @property
    def sentence(self) -> str:
        trained = "1 retraining" if len(self.seeds) == 1 else f"{len(self.seeds)} retrainings"
        return f"{self.level:.0%} answer sets calibrated on {self.n} other pictures against {trained}".replace(
            "%", " %"
        )


def calibration_path(run: Run, method: str) -> Path:
    scoring = run.recipe.scoring
    return run.path("calibration", scoring.estimand + ("-excess" if scoring.excess else ""), f"{method}.json")


def source_of(run: Run, found: Method, oracle: ElboMethod) -> Source:
    scoring = run.recipe.scoring
    asked: dict[str, Any] = {
        "estimand": scoring.estimand, "excess": scoring.excess, "rounds": scoring.rounds, "drift": scoring.drift,
        "plan": run_plan(run).key if found.by_terms else None,
    }  # fmt: skip
    if scoring.excess:
        asked["average"] = run.recipe.queries.model_dump(mode="json")
    named = (
        [found] if has_counterfactuals(found) else [get_method(run, m) for m in found.parts() if m != found.method_id]
    )
    models = [m.identity(run) for one in named if has_counterfactuals(one) for m in one.models()]
    models += found.further_inputs()
    made = {name: get_method(run, name).config.model_dump(mode="json") for name in found.parts()}
    return Source(
        models=digest([found.method_id, found.config.model_dump(mode="json"), made, models]), scoring=digest(asked),
        oracle=digest([m.identity(run) for m in oracle.models()]), groups=list(scored_groups(run)),
    )  # fmt: skip


def make_calibration(
    scores: Scores, oracle: np.ndarray, unit: str, level: float, about: dict[str, Any]
) -> Calibration:  # fmt: skip
    """From a method's scores and retrainings' [S, Q, G] of the calibration pictures; `unit`: of the retrainings'."""
    scaled = scores.unit != LOG_UNIT  # a log ratio is on one scale for all pictures
    spread = spreads(scores.score) if scaled else None
    place = threshold(set_gaps(scores.score, oracle, spread), level)
    reach = threshold(interval_gaps(scores.score, oracle, spread), level) if scores.unit == unit else math.inf
    return Calibration(
        method=scores.method, estimand=scores.estimand, level=level, n=len(scores), scaled=scaled,
        threshold=place if math.isfinite(place) else None, reach=reach if math.isfinite(reach) else None,
        size=float(answer_sets(scores.score, place, spread).sum(axis=1).mean()), **about,
    )  # fmt: skip


def write_calibration(run: Run, found: Calibration) -> Path:
    path = calibration_path(run, found.method)
    write_json(path, found.model_dump(mode="json"))
    return path


def read_calibration(run: Run, method: str) -> Calibration | None:
    path = calibration_path(run, method)
    if not path.is_file():
        return None
    return read_file(path, Calibration, "calibration-file-invalid", "calibration of answer sets")


State = Literal["none", "valid", "stale"]


def calibration_state(run: Run, found: Method) -> tuple[State, Calibration | None]:
    """Whether the method has a calibration by the present settings."""
    made = None if found.oracle else read_calibration(run, found.method_id)
    if made is None:
        return "none", None
    oracle = get_method(run, run.recipe.evaluation.against)
    if made.oracle != oracle.method_id or not has_counterfactuals(oracle) or not oracle.fitted():
        return "stale", made
    same = made.seeds == list(oracle.seed_sets()) and made.source == source_of(run, found, oracle)
    return ("valid" if same else "stale"), made


def calibrated(run: Run, found: Method, scores: Scores) -> Scores:
    """The scores with answer sets and predictive intervals, where the method has a calibration; an oracle says that it
    is one."""
    if has_counterfactuals(found) and found.oracle:
        seeds = len(found.seed_sets())
        return replace(scores, validation=f"by retraining itself, {seeds} time{'' if seeds == 1 else 's'}")
    state, made = calibration_state(run, found)
    if state != "valid" or made is None or made.estimand != scores.estimand:
        return scores
    spread = spreads(scores.score) if made.scaled else None
    sets = answer_sets(scores.score, math.inf if made.threshold is None else made.threshold, spread)
    changes: dict[str, Any] = {"answer": sets.astype(np.float64), "validation": made.sentence}
    if made.reach is not None:
        reach = made.reach * (np.ones(len(scores)) if spread is None else spread)[:, None]
        changes |= {"predicted_lo": scores.score - reach, "predicted_hi": scores.score + reach}
    return replace(scores, **changes)


def calibration_note(run: Run, method: str, band: str | None = None) -> str:
    """Why scores of a method carry no calibration."""
    state, _ = calibration_state(run, get_method(run, method))
    if state == "none":
        return NOT_VALIDATED
    if state == "stale":
        where = calibration_path(run, method)
        return (
            f"{NOT_VALIDATED}: {where} is of other settings, models or LOGO seeds; run: guda calibrate {run.root} "
            f"--method {method}"
        )
    what = "these scores" if band is None else "one band"
    return f"{NOT_VALIDATED}: the calibration is of whole scores by fixed rounds, not of {what}"


def calibration_sets(run: Run) -> set[str]:
    """Query sets that answer sets were calibrated on."""
    paths = sorted(run.path("calibration").glob("*/*.json"))
    return {read_file(p, Calibration, "calibration-file-invalid", "calibration of answer sets").queries for p in paths}
