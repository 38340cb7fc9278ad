"""Job: one picture being scored by the service; any number of pages can watch it.

A Snapshot is what is known of the picture at one moment of a race, or at its end; also as JSON and CSV.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import numpy as np

from guda.errors import GudaError
from guda.report.cards import MethodView
from guda.scoring.scores import Scores
from guda.table import csv_text

FULL = "full"  # what an address calls scores by the recipe's rounds


@dataclass(frozen=True, eq=False)
class Snapshot:
    """`scores` holds one picture. A stored result is the last snapshot of its race, made from the scores alone."""

    queries: str  # name of the query set
    rule: str | None  # stop rule by name; None: scored by the recipe's fixed rounds
    scores: Scores
    networks: tuple[int, int]  # (shared, each) network evaluations of a draw, as methods/elbo.py counts them
    draws: int  # evaluations of one network in one round
    final: bool = True
    prompt: str | None = None

    @property
    def picture(self) -> str:
        return self.scores.queries[0]

    @property
    def evals(self) -> int:
        """Network evaluations spent on the picture, the full model's included."""
        return round(float(self.scores.evals_per_query(*self.networks)[0]))

    @property
    def rounds(self) -> np.ndarray:
        """[G]: rounds that each group was in the race."""
        evals = np.broadcast_to(self.scores.n_evals, self.scores.score.shape)[0]
        return np.rint(evals / (sum(self.networks) * self.draws)).astype(int)

    @property
    def left(self) -> np.ndarray:
        """bool [G]: groups that were out of the race before its last round."""
        return np.asarray(self.rounds < self.rounds.max())

    @property
    def settled(self) -> bool | None:
        """Whether a race answered its question; None where no question was put."""
        if self.rule is None or not self.rule.startswith("top"):
            return None
        return self.scores.rank_hi is not None and bool(np.isfinite(self.scores.rank_hi[0]).any())


def address(queries: str, method: str, rule: str | None, picture: str | None = None) -> str:
    """Where a stored result is seen again; relative, so that it holds behind any host name.

    Scored in full is named, too: an address without a rule means the newest result, which another race may become."""
    parts = {"result": queries, "method": method, "rule": rule or FULL}
    return "result?" + urlencode(parts | ({"picture": picture} if picture else {}))


def one_picture(scores: Scores, picture: str | None = None) -> Scores:
    """The scores of a single picture, by default the first."""
    if picture is not None:
        scores[picture]  # an unknown one is refused with a suggestion
    q = 0 if picture is None else scores.queries.index(picture)
    return scores if len(scores.queries) == 1 else scores[q : q + 1]


def to_json(snapshot: Snapshot, view: MethodView) -> dict[str, Any]:
    """The documented form (docs/web.md): plain JSON, groups best first, null where there is no interval yet."""
    scores, verdict = snapshot.scores, view.verdicts[0]
    place = {name: g for g, name in enumerate(scores.groups)}
    rounds, left = snapshot.rounds, snapshot.left
    return {
        "result": snapshot.queries,
        "picture": snapshot.picture,
        "prompt": snapshot.prompt,
        "method": scores.method,
        "unit": scores.unit,
        "sign": scores.sign,
        "estimand": scores.estimand,
        "rule": snapshot.rule,
        "settled": snapshot.settled,
        "evaluations": snapshot.evals,
        "verdict": {"kind": verdict.kind, "headline": verdict.headline, "detail": verdict.detail, "note": verdict.note},
        "origin": None if scores.origins is None else scores.origins[0].to_json(),
        "placebo_floor": view.null,
        "groups": [
            {
                "group": g.group, "rank": g.rank, "score": g.score, "lo": g.lo, "hi": g.hi,
                "rounds": int(rounds[place[g.group]]), "left_early": bool(left[place[g.group]]),
            }
            for g in scores[snapshot.picture].ranked
            if verdict.kind != "foreign"  # it has no attribution
        ],
    }  # fmt: skip


def to_csv(value: dict[str, Any]) -> str:
    """The groups of `to_json`, one line each, with what they are groups of."""
    about = ("result", "picture", "method", "rule", "unit")
    columns = ("group", "rank", "score", "lo", "hi", "rounds", "left_early")
    rows = [[value[a] for a in about] + [group[c] for c in columns] for group in value["groups"]]
    return csv_text([[*about, *columns], *rows])


class Job:
    """One picture being scored; snapshots are only ever appended, so any number of pages can read them."""

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []
        self.error: GudaError | None = None
        self.started = False
        self._news = threading.Condition()
        self.done = False

    @classmethod
    def ended(cls, snapshot: Snapshot) -> Job:
        """Of an answer that was there already."""
        job = cls()
        job.tell(snapshot)
        job.end(None)
        return job

    def tell(self, snapshot: Snapshot) -> None:
        with self._news:
            self.snapshots.append(snapshot)
            self._news.notify_all()

    def end(self, error: GudaError | None) -> None:
        with self._news:
            self.error, self.done = error, True
            self._news.notify_all()

    def watch(self) -> Iterator[Snapshot]:
        """Every snapshot, waiting for the next one; raises the job's error if it failed."""
        seen = 0
        while True:
            with self._news:
                self._news.wait_for(lambda: self.done or len(self.snapshots) > seen)  # noqa: B023 - waited for here
                fresh, ended = self.snapshots[seen:], self.done
            yield from fresh
            seen += len(fresh)
            if ended and seen == len(self.snapshots):
                if self.error is not None:
                    raise self.error
                return
