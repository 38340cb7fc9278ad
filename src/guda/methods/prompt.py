"""prompt: the group that the prompt asks for, first; all others tied. It never looks at the picture or the model.

    score = 1 for the group whose style (or class) the prompt names, 0 for every other

A baseline for conditional models: what a method adds to reading the prompt is what it finds beyond this, above all on
pictures whose first group by retraining is another one (steps/evaluate.py splits every such table).

Prompts that guda made are known; of others, the style is the one whose descriptors the prompt has most of.
"""

from __future__ import annotations

import numpy as np

from guda.config import Config
from guda.data.descriptors import key
from guda.data.prompts import Prompts, parse
from guda.data.queries import Queries
from guda.errors import GudaError
from guda.methods.base import Method, method
from guda.run.data import load_data, load_prompts, scored_groups
from guda.run.models import run_classes
from guda.run.run import Run
from guda.run.task import Task
from guda.scoring.bands import Bands
from guda.scoring.scores import Scores


class PromptConfig(Config):
    """Nothing to set."""


def prompted_groups(run: Run, queries: Queries) -> list[str | None] | None:
    """The scored group that each picture's prompt asks for; None where it asks for none of them. None altogether: the
    model is told nothing about groups."""
    if queries.prompts is None:
        return None
    names = scored_groups(run)
    if run.recipe.prompts is not None:
        prompts = load_prompts(run)
        found = [_style(prompts, text) for text in queries.prompts]
        return [name if name in names else None for name in found]
    classes = run_classes(run)
    of_class = {} if classes is None else classes.group_of(load_data(run).groups, names)
    return [of_class.get(c) for c in queries.prompts] if of_class else None


def _style(prompts: Prompts, text: str) -> str | None:
    known = {prompt: style for (style, _), prompt in prompts.evaluation.items()}
    if text in known:
        return known[text]
    try:
        said = {key(d) for d in parse(text, prompts.objects).descriptors}
    except GudaError:  # a prompt that no template explains
        said = {key(word) for word in text.split(",")}
    shared = {style: len(said & {key(w) for w in words}) for style, words in prompts.vocabularies.items()}
    best = max(shared.values(), default=0)
    first = [style for style, n in shared.items() if n == best]
    return first[0] if best and len(first) == 1 else None


@method("prompt")
class Prompt(Method):
    Config = PromptConfig
    unit = "1"
    summary = "conditional models: the prompted style or class first (a baseline; no counterfactual)"

    def fitted(self) -> bool:
        """Nothing is fitted; whether prompts of this run can name a group."""
        if self.run.recipe.prompts is not None:
            return True
        classes = run_classes(self.run)
        return classes is not None and bool(classes.group_of(load_data(self.run).groups, scored_groups(self.run)))

    def check(self) -> None:
        if not self.fitted():
            raise GudaError(
                "prompt-model-unsupported", "prompt is a baseline for models that are told a prompt or a class"
            )

    def fit(self) -> list[Task]:
        return []

    def score(self, queries: Queries, planned: set[str]) -> list[Task]:
        return []

    def scores(self, queries: Queries, bands: Bands | None = None) -> Scores:
        groups, asked = scored_groups(self.run), prompted_groups(self.run, queries)
        if asked is None:
            raise GudaError(
                "prompt-groups-unknown", f"the prompts of {queries.name!r} do not name groups; leave prompt out"
            )
        score = np.array([[float(group == name) for group in groups] for name in asked])
        return Scores(
            method=self.method_id, unit=self.unit, estimand="the group that the prompt asks for", queries=queries.ids,
            groups=groups, score=score, n_evals=0, sign="1 = the prompt asks for the group",
        )  # fmt: skip
