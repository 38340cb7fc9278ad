"""What a method costs for Q queries: T_total = T_fit + Q t_query (paper, Preprocessing versus query-time).

T_fit is the recorded worker time of fitting all groups. t_query is the slope of scoring time against scoring work: the
tasks i of a set took s_i seconds for e_i network evaluations, and with a variance that grows with e_i least squares say

    rate = sum_i s_i / sum_i e_i,   t_query = rate * (evaluations per query),
    stderr(rate) = sqrt(m / (m-1) sum_i (s_i - rate e_i)^2) / sum_i e_i          (ratio estimator, m tasks)

The evaluations per query are the method's own, so a full model that another method's tasks have evaluated already is
charged to every method that needs it. Methods without such shared work, and runs that did not count evaluations, have
t_query = (recorded seconds) / Q. LOGO is charged for ONE retraining per group, whatever the oracle's number of seeds.
theta_full and a group-conditional twin are charged to no method; times are sums over workers, waiting excluded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from pydantic import Field, NonNegativeFloat

from guda.config import Config
from guda.errors import GudaError
from guda.evaluation.ceiling import CEILING
from guda.evaluation.published import PublishedTable
from guda.evaluation.results import Cost, DatasetEntry


class Timing(Config):
    """One method's cost line. Null = not recorded."""

    method: str
    n_groups: int = Field(ge=1)
    n_queries: int = Field(ge=1, description="queries that were scored")
    fit_seconds: NonNegativeFloat | None = Field(default=None, description="of all groups, summed over workers")
    query_seconds: NonNegativeFloat | None = Field(default=None, description="of one query")
    query_stderr: NonNegativeFloat | None = Field(
        default=None, description="of query_seconds, from the spread over tasks"
    )
    fit_evals: NonNegativeFloat | None = Field(default=None, description="evaluation units of all groups")
    query_evals: NonNegativeFloat | None = Field(default=None, description="evaluation units of one query")
    under: NonNegativeFloat | None = Field(
        default=None, description="published bounds: fitting, scoring and both together took less, seconds"
    )

    def total(self, queries: float) -> float | None:
        """T_fit + Q t_query, seconds."""
        if self.fit_seconds is None or self.query_seconds is None:
            return None
        return self.fit_seconds + queries * self.query_seconds


def rate(tasks: Sequence[tuple[float, float]]) -> tuple[float, float | None]:
    """(seconds per evaluation, its standard error) of tasks (seconds, evaluations); one task has no spread."""
    seconds, work, m = sum(s for s, _ in tasks), sum(e for _, e in tasks), len(tasks)
    if m == 0 or work <= 0:
        raise GudaError("timing-without-work", "a rate needs at least one task that did some work")
    slope = seconds / work
    if m == 1:
        return slope, None
    spread = sum((s - slope * e) ** 2 for s, e in tasks)
    return slope, math.sqrt(m / (m - 1) * spread) / work


SAME_WORK = "never, same cost per query"

SAME_TIME = "times per query not separated"


def alike(one: Timing, two: Timing) -> str | None:
    """Why two lines are parallel as far as is known: the same evaluations for a query, or times within their noise."""
    if one.query_evals is not None and one.query_evals == two.query_evals:
        return SAME_WORK
    if one.query_seconds is None or two.query_seconds is None:
        return None
    if one.query_seconds == two.query_seconds:
        return SAME_WORK
    noise = 1.96 * math.hypot(one.query_stderr or 0.0, two.query_stderr or 0.0)
    return SAME_TIME if abs(one.query_seconds - two.query_seconds) <= noise else None


def crossing(one: Timing, two: Timing) -> float | None:
    """The number of queries at which both cost the same; None where one is cheaper throughout, a time is missing, or
    the lines are parallel but for noise: their crossing would be a quotient of noise."""
    if one.fit_seconds is None or two.fit_seconds is None or one.query_seconds is None or two.query_seconds is None:
        return None
    if alike(one, two):
        return None
    fit, query = one.fit_seconds - two.fit_seconds, two.query_seconds - one.query_seconds
    if query == 0 or fit / query <= 0:
        return None
    return fit / query


def one_retraining(entry: DatasetEntry, lines: Iterable[Timing] = ()) -> Cost:
    """What LOGO costs with one seed, however many the oracle has: of its line (`measure`), which knows whether the
    seeds share a full model; without a line an equal share of what was recorded."""
    logo, line = entry.methods.get(CEILING, Cost()), next((t for t in lines if t.method == CEILING), None)
    if line is not None:
        query = None if line.query_seconds is None else line.query_seconds * entry.n_queries
        return Cost(
            fit_evals=logo.fit_evals, fit_seconds=line.fit_seconds, score_evals=line.query_evals, score_seconds=query
        )

    def share(value: float | None) -> float | None:
        return None if value is None else value / max(1, len(entry.seeds))

    return Cost(
        fit_evals=logo.fit_evals, fit_seconds=share(logo.fit_seconds), score_evals=share(logo.score_evals),
        score_seconds=share(logo.score_seconds),
    )  # fmt: skip


def published_timings(table: PublishedTable) -> list[Timing]:
    """The paper's lines; t_query = its scoring time over its queries. Where it gives bounds ("<0:01") there is no line,
    only the bound, because nothing was measured there."""
    n, groups, found = table.data.queries, table.data.groups, []
    for row in table.rows.values():
        if not row.times:
            continue
        if any(time.bound for time in row.times.values()):
            under = row.times["total"].seconds
            found.append(Timing(method=row.name, n_groups=groups, n_queries=n, under=under))
            continue
        fit, query = row.times["preprocessing"].seconds, row.times["query"].seconds / n
        found.append(Timing(method=row.name, n_groups=groups, n_queries=n, fit_seconds=fit, query_seconds=query))
    return found
