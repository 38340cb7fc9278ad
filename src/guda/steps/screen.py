"""What a screen keeps: how often the first group by a method that was asked about all groups is among them.

A screened race cannot show what its screen left out. So the methods whose scores of a query set are stored, by the
recipe's rounds and without a screen, are compared with the screen's ranks:

    recall = share of pictures whose first group by the method is among the first KEEP of the screen

with Clopper and Pearson's 95 % interval over pictures. What the method itself would say with other noise is beside it
(`reproduced`, from two halves of its rounds): a first group that changes with the noise cannot be kept reliably. A
method may err where the screen does not, so on held-out pictures whose group is known (`guda sanity`) the screen is
compared with the truth as well (`known`). The figures stay with the run (scores/<set>/.../screen-<name>.json), and
`guda score --screen` repeats those of its method.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import BaseModel

from guda.errors import GudaError
from guda.evaluation.intervals import Figure, clopper_pearson
from guda.evaluation.results import read_file
from guda.files import write_json
from guda.methods.base import Method, get_method
from guda.methods.elbo import has_counterfactuals
from guda.methods.terms import load_queries
from guda.run.run import Run
from guda.scoring.scores import Scores
from guda.scoring.screen import Screen, caught, kept_known
from guda.steps.fit import Engine
from guda.steps.sanity import sanity_of
from guda.steps.score import check_screen, score, scored_methods, scores_folder, scores_path


class ScreenFile(BaseModel):
    queries: str
    screen: str
    groups: int
    recall: dict[str, Figure]  # by method
    reproduced: dict[str, Figure]  # of methods with two rounds or more
    known: Figure | None = None  # share of pictures whose own group is kept, where it is known


def screen_path(run: Run, queries: str, screen: Screen) -> Path:
    return scores_folder(run, queries) / f"screen-{screen.name.replace(':', '=')}.json"


def evaluate_screen(run: Run, name: str, text: str, engine: Engine) -> ScreenFile:
    """Recall of a screen by every other method that scored the set; the screen's methods are scored where need be."""
    screen = Screen.parse(text)
    if screen.tree:
        raise GudaError(
            "screen-invalid",
            f"--screen {screen.name}: a descent depends on the race of every level; use METHOD:KEEP, or "
            "compare its scores with those of all groups",
        )
    check_screen(run, screen)
    names = [m for m in scored_methods(run, name) if m not in screen.methods]
    truth = {} if (measured := sanity_of(run, name)) is None else measured.known
    if not names and not truth:
        raise GudaError(
            "scores-missing",
            f"no other method has scored all groups of {name!r} to compare the screen with; run: guda score {run.root} "
            f"--queries {name} --method ID, or guda sanity {run.root} with pictures of known groups",
        )
    tables = score(run, name, screen.methods, engine)
    recall, reproduced = {}, {}
    for m in names:
        recall[m] = _share(caught(tables, Scores.read(scores_path(run, name, m)), screen.keep))
        if (same := _reproduced(get_method(run, m), name)) is not None:
            reproduced[m] = _share(same)
    if truth and any(query not in truth for query in next(iter(tables.values())).queries):
        raise GudaError(
            "sanity-damaged", f"{run.path('scores')}: the sanity.json of {name!r} lacks pictures; run guda sanity again"
        )
    of_truth = _share(kept_known(tables, truth, screen.keep)) if truth else None
    groups = len(next(iter(tables.values())).groups)
    found = ScreenFile(
        queries=name, screen=screen.name, groups=groups, recall=recall, reproduced=reproduced, known=of_truth
    )
    write_json(screen_path(run, name, screen), found.model_dump(mode="json"))
    return found


def _share(hits: np.ndarray) -> Figure:
    lo, hi = clopper_pearson(int(hits.sum()), len(hits))
    return Figure(mean=float(hits.mean()), lo=lo, hi=hi)


def _reproduced(method: Method, name: str) -> np.ndarray | None:
    """bool [Q]: two halves of the rounds have the same first group."""
    if not has_counterfactuals(method):
        return None
    rounds = method.round_values(load_queries(method.run, name))
    if len(rounds) < 2:
        return None
    halves = [rounds[i::2].mean(axis=0).argmax(axis=1) for i in (0, 1)]
    return np.asarray(halves[0] == halves[1])


def known_recall(run: Run, queries: str, text: str, method: str) -> Figure | None:
    """Recall of a screen by this method, if it was measured on this set."""
    path = screen_path(run, queries, Screen.parse(text))
    if not path.is_file():
        return None
    return read_file(path, ScreenFile, "screen-file-invalid", "file of a screen's recall").recall.get(method)
