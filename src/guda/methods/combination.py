"""Methods that combine the counterfactuals of others, their members (hybrid, blend): terms are read, not made, so
scoring one after its members costs nothing. And what methods share whose weights are chosen against retraining on
pictures of their own (blend, stack).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Self

from guda.config import QueriesConfig
from guda.data.queries import Queries
from guda.errors import GudaError
from guda.files import digest, read_json
from guda.methods.base import get_method
from guda.methods.elbo import ElboMethod, Set, has_counterfactuals
from guda.methods.regroup import Grouping
from guda.methods.terms import load_queries
from guda.run.data import scored_groups
from guda.run.run import Run
from guda.run.task import Task

SEED = 2000  # of tuning pictures, beyond that of the reported ones; `guda tune` has 0 and 1, `guda calibrate` 1000


class Combination(ElboMethod):
    has_log_p = False  # its models count differently at every timestep

    def __init__(self, run: Run, method_id: str, config: Any) -> None:
        super().__init__(run, method_id, config)
        self.members: list[ElboMethod] = []
        for name in self.named():
            found = get_method(run, name) if name != method_id else None
            if found is None or not has_counterfactuals(found) or not self.takes(found):
                raise GudaError(
                    "member-unsupported",
                    f"methods.{method_id}: {name!r} is not a method with one counterfactual per group",
                )
            self.members.append(found)

    @abstractmethod
    def named(self) -> Sequence[str]:
        """The members that its settings name."""

    @abstractmethod
    def takes(self, member: ElboMethod) -> bool: ...

    def on(self, grouping: Grouping) -> Self:
        found = super().on(grouping)
        found.members = [member.on(grouping) for member in self.members]
        return found

    def sets(self) -> list[Set]:
        return [member.sets()[0] for member in self.members]

    def parts(self) -> tuple[str, ...]:
        return tuple(member.method_id for member in self.members)

    def fit(self) -> list[Task]:
        return [task for member in self.members for task in member.fit()]

    def fitted(self) -> bool:
        return all(member.fitted() for member in self.members)

    def fit_evals(self) -> float:
        return sum(member.fit_evals() for member in self.members)

    def score(self, queries: Queries, planned: set[str]) -> list[Task]:
        """The members' tasks, whose cost is counted for them."""
        return [task for member in self.members for task in member.score(queries, planned)]


def tuning_pictures(run: Run, method_id: str, config: Any, beyond: int = SEED) -> QueriesConfig:
    """What weights are chosen on: samples under a seed of their own, `config.pictures` of them or about as many."""
    own = run.recipe.queries
    seed = own.seed + beyond if config.seed is None else config.seed
    if seed == own.seed:
        raise GudaError(
            "tuning-seed-taken",
            f"methods.{method_id}.seed = {seed} draws the reported pictures; give another, e.g. {seed + 1}",
        )
    n, changes = int(config.pictures), {"seed": seed}
    if run.recipe.prompts is None:
        return own.model_copy(update=changes | {"n": n})
    objects = max(1, round(n / len(scored_groups(run))))
    return own.model_copy(update=changes | {"objects": min(objects, own.objects or objects)})


def read_weights(run: Run, method_id: str, file: str) -> Any:
    """What was chosen, refused where the file was changed since."""
    if not run.has(file):
        raise GudaError(
            "method-not-fitted",
            f"{method_id} has no weights yet; run: guda fit {run.root} --method {method_id}",
        )
    found = read_json(run.path(file))
    if found.get("digest") != digest({k: v for k, v in found.items() if k != "digest"}):
        raise GudaError("weights-damaged", f"{file} is damaged; delete it and fit again")
    return found["weights"]


def refuse_tuned(run: Run, method_id: str, file: str, queries: Queries) -> None:
    """Weights are not reported on the pictures that they were chosen on."""
    if not run.has(file):
        return
    name = read_json(run.path(file))["queries"]
    if not run.has(f"queries/{name}/index.json"):
        return
    seen = {image.tobytes() for image in load_queries(run, name).images}
    if any(image.tobytes() in seen for image in queries.images):
        raise GudaError(
            "weights-tuning-pictures",
            f"the weights of {method_id} were chosen on some of {queries.name!r}; score other pictures",
        )
