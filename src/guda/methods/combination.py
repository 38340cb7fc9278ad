"""Methods that combine the counterfactuals of others, their members (hybrid, blend): terms are read, not made, so
scoring one after its members costs nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Self

from guda.data.queries import Queries
from guda.errors import GudaError
from guda.methods.base import get_method
from guda.methods.elbo import ElboMethod, Set, has_counterfactuals
from guda.methods.regroup import Grouping
from guda.run.run import Run
from guda.run.task import Task


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
