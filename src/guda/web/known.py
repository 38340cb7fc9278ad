"""Known pictures: which query set of the run has a picture already, so that it has one verdict at every door.

A picture is recognised by its pixels and prompt, whatever its file is called. It counts as scored if the method's table
of its set is that of the run's present estimand, groups, models and rounds.
"""

from __future__ import annotations

import numpy as np

from guda import steps
from guda.methods.base import get_method
from guda.methods.terms import load_queries
from guda.run.data import scored_data
from guda.run.run import UPLOAD, Run
from guda.run.samples import set_name
from guda.scoring.scores import Scores
from guda.web.job import one_picture
from guda.web.uploads import upload_name


def stored_scores(run: Run, method: str, pixels: np.ndarray, prompt: str | None) -> tuple[str, Scores] | None:
    """(query set, scores of this picture alone), the recipe's own set first; None if it was not scored in full."""
    own, name = set_name(run, run.recipe.queries), upload_name(pixels, prompt)
    sets = [s for s in run.query_sets() if not s.startswith(UPLOAD) or s == name]  # an upload is named by its pixels
    for queries in sorted(sets, key=lambda s: s != own):
        path = steps.scores_path(run, queries, method)
        picture = _find(run, queries, pixels, prompt) if path.is_file() else None
        if picture is None or not steps.up_to_date(run, load_queries(run, queries), get_method(run, method)):
            continue
        scores = Scores.read(path)
        if picture in scores.queries and scores.groups == scored_data(run).groups.names:
            return queries, one_picture(scores, picture)
    return None


def _find(run: Run, queries: str, pixels: np.ndarray, prompt: str | None) -> str | None:
    """Id of the picture in a query set."""
    found = load_queries(run, queries)
    for q, image in enumerate(found.images):
        told = None if found.prompts is None else " ".join(found.prompts[q].split())
        if told == prompt and np.array_equal(image, pixels):
            return found.ids[q]
    return None
