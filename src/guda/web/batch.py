"""Several pictures with the same question. All are stored when they arrive; they are put into the queue as it has room,
whether or not somebody watches, and each result has its own link."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from secrets import token_urlsafe
from typing import Any

from guda.errors import GudaError
from guda.language import tr
from guda.scoring.reading import RACED
from guda.web import answer
from guda.web.job import Job, Snapshot
from guda.web.service import Service
from guda.web.uploads import Full

KEPT = 64  # lists that are remembered; results stay

LOOK = 0.1  # seconds between two looks


@dataclass
class Entry:
    name: str  # of the file
    queries: str | None = None  # the set that it was stored as
    job: Job | GudaError | None = None  # None: not in the queue yet


@dataclass
class Batch:
    rule: str
    method: str
    entries: list[Entry]
    key: str = field(default_factory=lambda: token_urlsafe(9))

    @property
    def accepted(self) -> int:
        return sum(e.job is not None for e in self.entries)


class Batches:
    def __init__(self, service: Service) -> None:
        self.service = service
        self._known: OrderedDict[str, Batch] = OrderedDict()
        self._running: set[asyncio.Task[None]] = set()

    def start(self, batch: Batch) -> str:
        self._known[batch.key] = batch
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        task = asyncio.create_task(self._submit(batch))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return batch.key

    def find(self, key: str) -> Batch:
        if key not in self._known:
            raise GudaError("batch-unknown", "this list is gone; its results are under Stored results")
        return self._known[key]

    async def _submit(self, batch: Batch) -> None:
        for entry in batch.entries:
            while entry.job is None:
                try:
                    entry.job = await asyncio.to_thread(
                        self.service.submit, str(entry.queries), batch.rule, batch.method
                    )
                except Full:
                    await asyncio.sleep(LOOK)
                except GudaError as e:
                    entry.job = e


def header() -> tuple[str, ...]:
    return (tr("picture"), tr("answer"), tr("first"), tr("score"), tr("95 % interval"), tr("evaluations"))


def line(service: Service, name: str, shot: Snapshot) -> tuple[str, ...]:
    """One picture as a row below `header`."""
    view = service.view(shot)
    first, verdict = view.rows(0)[0], view.verdicts[0]
    text = verdict.headline
    if shot.rule is None:
        text += " " + tr("(stored answer of {place})", place=f"{shot.queries}/{shot.picture}")
    if verdict.kind == "foreign":
        return (name, text, "", "", "", f"{shot.evals:,}")
    return (name, text, first.name, first.value, first.interval, f"{shot.evals:,}")


def progress(service: Service, batch: Batch) -> tuple[Any, bool]:
    """(table as HTML, whether all are done)."""
    rows: list[tuple[str, tuple[str, ...]]] = []
    raced, done = False, 0
    for entry in batch.entries:
        job = entry.job
        error = job if isinstance(job, GudaError) else job.error if job is not None and job.done else None
        if error is not None:
            done += 1
            rows.append(("", (entry.name, f"{tr('Not accepted:')} {error}", "", "", "", "")))
        elif isinstance(job, Job) and job.done:
            done += 1
            last = job.snapshots[-1]
            rows.append((answer.link(last), line(service, entry.name, last)))
            raced |= service.view(last).verdicts[0].note == tr(RACED)
    n = len(batch.entries)
    if done == n:
        more = tr("All {n} done.", n=n) + (" " + tr("Answers: {note}.", note=tr(RACED)) if raced else "")
    else:
        more = tr("{done} of {n} done. You can close this page and find the results under “Stored results”.",
                  done=done, n=n)  # fmt: skip
    return answer.macro("words", tr("Answers"), header(), rows, more), done == n
