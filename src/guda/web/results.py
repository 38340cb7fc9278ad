"""Stored results: every scored query set of a run, found by name. Looking computes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from guda import steps
from guda.errors import GudaError
from guda.methods.base import METHODS
from guda.run.run import UPLOAD, Run
from guda.scoring.race import StopRule
from guda.scoring.scores import Scores
from guda.web.service import Service
from guda.web.snapshot import FULL, Snapshot, address, one_picture


@dataclass(frozen=True)
class Stored:
    """One file of scores."""

    queries: str
    method: str
    rule: str | None  # None: scored in full, by the recipe's rounds
    path: Path

    @property
    def when(self) -> float:
        return self.path.stat().st_mtime

    @property
    def upload(self) -> bool:
        return self.queries.startswith(UPLOAD)

    @property
    def address(self) -> str:
        return address(self.queries, self.method, self.rule)

    @property
    def title(self) -> str:
        return f"{self.queries}, {self.method}, {self.rule or 'in full'}"


def results(run: Run) -> list[Stored]:
    """Newest first."""
    return sorted((r for name in run.query_sets() for r in _of(run, name)), key=lambda r: (-r.when, r.title))


def _of(run: Run, queries: str) -> Iterator[Stored]:
    for method in steps.scored_methods(run, queries):
        yield Stored(queries, method, None, steps.scores_path(run, queries, method))
    for path in sorted(run.path("scores", queries).glob("*/*.parquet")):
        if path.stem in METHODS and (rule := _rule(path.parent.name)) is not None:
            yield Stored(queries, path.stem, rule, path)


def _rule(folder: str) -> str | None:
    """Folders beside stop rules are noise bands and likelihoods."""
    try:
        return folder if StopRule.parse(folder).name == folder else None
    except GudaError:
        return None


def find(run: Run, queries: str, method: str | None = None, rule: str | None = None) -> Stored:
    """By name, as in an address: method and rule may be left out, then the newest of the set."""
    if queries in run.query_sets():  # never a path made of what somebody wrote into an address
        for stored in sorted(_of(run, queries), key=lambda r: (-r.when, r.title)):
            if method in (None, "", stored.method) and (not rule or rule == (stored.rule or FULL)):
                return stored
    asked = ", ".join(str(part) for part in (queries, method, rule) if part)
    raise GudaError("result-unknown", f"there is no stored result {asked!r} in this run; see the tab Stored results")


def open_result(
    service: Service, queries: str, method: str | None = None, rule: str | None = None, picture: str | None = None
) -> Snapshot:
    run = service.run
    stored = find(run, queries, method, rule)
    scores = Scores.read(stored.path)
    if scores.groups != service.data.groups.names:
        raise GudaError(
            "result-stale", f"{stored.title} was scored for other groups than the recipe has now; score it again"
        )
    return service.snapshot(run, queries, stored.rule, one_picture(scores, picture or None))
