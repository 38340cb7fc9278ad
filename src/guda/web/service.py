"""Service: the run behind the web page. It holds the model, scores one picture at a time and tracks open questions.

One thread scores; every question returns a Job to watch. A job runs to its end and is stored even if nobody watches
it any more, and two visitors with the same picture share one job. A picture that was raced before is replayed from the
terms on disk, without waiting, and never from models that have changed since. A picture of a query set that was scored
in full has its verdict already (`stored_scores`): that is the answer, and no race.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from guda import steps
from guda.data.images import ImageData
from guda.diffusion.denoiser import Denoiser
from guda.engine.loop import run_inline
from guda.errors import GudaError
from guda.methods.base import METHODS, get_method
from guda.methods.elbo import has_counterfactuals
from guda.methods.race import check_race
from guda.methods.regroup import PLACEBO
from guda.methods.terms import load_queries
from guda.report.cards import MethodView
from guda.report.trust import run_best
from guda.run.data import scored_data
from guda.run.models import load_model
from guda.run.plan import pilot_tasks, probe, run_plan
from guda.run.run import UPLOAD, Run
from guda.run.samples import set_name
from guda.run.task import Task, pending
from guda.scoring.race import Race, StopRule
from guda.scoring.reference import Null
from guda.scoring.scores import Scores
from guda.web.job import Job, Snapshot, one_picture
from guda.web.uploads import Full, Limits, Picture, Refused, keep_upload, read_prompt, read_upload, upload_name

T = TypeVar("T")

DEFAULT_RULE = "top1@0.95"

FILES = ("run.json", "recipe.yaml")  # what an opened run was read from


class _Unfinished(Exception):
    """A replay needs something that has not been computed."""


class Service:
    def __init__(self, root: str | Path, method: str | None = None, limits: Limits | None = None) -> None:
        """`method`: what the page offers first; default: as in the report, the one that agreed best with retraining
        where that was measured, otherwise the recipe's first; of those that can be raced."""
        self.root, self.limits = Path(root), limits or Limits.model_validate({})
        self._opened: tuple[tuple[int, ...], Run] | None = None
        run = self.run
        self.methods = raceable(run)
        if method is not None and method not in self.methods:
            steps.check_fitted(run, [method])
            check_race(get_method(run, method))  # says why it cannot
        if not self.methods:
            raise GudaError(
                "race-method-missing",
                f"{run.root} has no fitted method that can be raced; run: guda fit {run.root} --method retrack",
            )
        steps.variant(run, DEFAULT_RULE, None)  # a run whose scores cannot be raced is refused here
        self.method = method or run_best(run, self.methods) or self.methods[0]
        self._jobs: dict[tuple[str, str, str], Job] = {}
        self._floors: dict[tuple[str, int], Null | None] = {}
        self._others: set[Future[Any]] = set()  # work that is no race
        self._lock = threading.Lock()
        self._worker = ThreadPoolExecutor(1, "guda-scoring")
        self._closing = False

    @property
    def run(self) -> Run:
        """Reopened when its recipe changes, because the command line may work on the same run."""
        stamp = tuple((self.root / name).stat().st_mtime_ns for name in FILES if (self.root / name).is_file())
        if self._opened is None or self._opened[0] != stamp:
            self._opened = stamp, Run.open(self.root)
        return self._opened[1]

    @property
    def model(self) -> Denoiser:
        return load_model(self.run, "base")

    @property
    def condition(self) -> str | None:
        """What the model is conditioned on besides the picture: `prompt`, `class` or None."""
        return self.model.condition_name if self.model.conditional else None

    def warm(self) -> None:
        """Do everything the first visitor would otherwise wait for: model, probe, pilot, digests of all weights."""
        run = self.run
        method = get_method(run, self.method)
        assert has_counterfactuals(method)
        probe(run, self.model)
        run_inline(run, pilot_tasks(run), "pilot")
        if run_plan(run).grid:
            raise GudaError(
                "race-grid-unsupported",
                f"{run.root} scores on the paper's fixed grid, which cannot be raced; set estimand: elbo",
            )
        for ref in method.models():
            ref.identity(run)
        import pyarrow.dataset  # what reading the first table would import  # noqa: F401

        self.floor(self.method)
        steps.ask_origins(run, None, run_inline)  # own samples and what is known of them

    def close(self) -> None:
        """Queued pictures are dropped; the current one stops after its current round of tasks."""
        self._closing = True
        self._worker.shutdown(wait=True, cancel_futures=True)

    # ---- asking

    def ask(
        self, path: str | Path, prompt: str | None = None, rule: str = DEFAULT_RULE, method: str | None = None
    ) -> tuple[Job, str]:
        """(job, note) of an upload, which is stored only once its question is accepted; refused with one line."""
        method, rule = self.check(rule, method)
        picture, text = self.read(path, prompt)
        job, name = self.ask_pixels(picture.pixels, text, rule, method)
        return job, " ".join(filter(None, [picture.note, "" if name is not None else stored_note(job)]))

    def ask_pixels(
        self, pixels: np.ndarray, prompt: str | None, rule: str = DEFAULT_RULE, method: str | None = None
    ) -> tuple[Job, str | None]:
        """(job, query set): raced under that name; of a picture that was scored in full the stored answer, and None."""
        method, rule = self.check(rule, method)
        if (stored := stored_scores(self.run, method, pixels, prompt)) is not None:
            return Job.ended(self.snapshot(self.run, stored[0], None, stored[1])), None
        name = upload_name(pixels, prompt)
        return self.submit(name, rule, method, (pixels, prompt)), name

    def job(self, queries: str, rule: str, method: str) -> Job | None:
        """The job of a question that is under way."""
        return self._jobs.get((queries, rule, method))

    def on_worker(self, work: Callable[[], T]) -> Future[T]:
        """Anything that computes, one at a time with the pictures, and in the same queue."""
        with self._lock:
            if self.full:
                raise Full("queue-full", f"the queue is full ({self.limits.queue} pictures); try again later")
            future = self._worker.submit(work)
            self._others.add(future)
        future.add_done_callback(self._others.discard)
        return future

    def receive(self, path: str | Path, prompt: str, method: str) -> tuple[str | None, Job | None]:
        """(query set, None) of an upload that is stored to be asked about; (None, job): it was scored in full."""
        picture, text = self.read(path, prompt)
        if (stored := stored_scores(self.run, method, picture.pixels, text)) is not None:
            return None, Job.ended(self.snapshot(self.run, stored[0], None, stored[1]))
        return keep_upload(self.run, picture.pixels, text, self.limits.uploads), None

    def take(self, path: str | Path, prompt: str | None = None) -> tuple[str, str]:
        """(query set, note) of an upload that is stored without a question."""
        picture, text = self.read(path, prompt)
        return keep_upload(self.run, picture.pixels, text, self.limits.uploads), picture.note

    def read(self, path: str | Path, prompt: str | None) -> tuple[Picture, str | None]:
        text = read_prompt(prompt, self.condition)
        picture = read_upload(path, self.model.image_shape, self.limits)
        try:
            self.model.condition(None if text is None else [text])
        except GudaError as e:
            raise Refused(e.code, str(e)) from None
        return picture, text

    @property
    def full(self) -> bool:
        """Whether the queue is full."""
        return len(self._jobs) + len(self._others) > self.limits.queue

    def submit(
        self, queries: str, rule: str = DEFAULT_RULE, method: str | None = None,
        upload: tuple[np.ndarray, str | None] | None = None,
    ) -> Job:  # fmt: skip
        """Score one picture; the job of the same question where one is under way. An `upload` is stored if it is new
        and there is room: a refusal leaves nothing behind."""
        method, stop = self.check(rule, method)
        key = (queries, stop, method)
        with self._lock:
            if (job := self._jobs.get(key)) is not None:
                return job
            stored = upload is None or queries in self.run.query_sets()
            if stored and (replayed := self._replay(*key)) is not None:
                return replayed
            if self.full:
                raise Full("queue-full", f"the queue is full ({self.limits.queue} pictures); try again later")
            if upload is not None:
                keep_upload(self.run, *upload, self.limits.uploads)
            job = self._jobs[key] = Job()
        self._worker.submit(self._work, key, job)
        return job

    def answer(self, queries: str, rule: str = DEFAULT_RULE, method: str | None = None) -> Iterator[Snapshot]:
        """What is known after each round; the last is stored in the run."""
        return self.submit(queries, rule, method).watch()

    def ahead(self, job: Job) -> int:
        """Pictures ahead of this one, including the one being scored."""
        waiting = list(self._jobs.values())
        return waiting.index(job) if job in waiting else 0

    def check(self, rule: str, method: str | None) -> tuple[str, str]:
        """(method, rule) in canonical form; refused if either is unknown."""
        method = method or self.method
        if method not in self.methods:
            raise Refused(
                "race-method-unknown", f"{method!r} cannot be raced here; choose one of: {', '.join(self.methods)}"
            )
        stop, run = StopRule.parse(rule), self.run
        fitted = get_method(run, method)
        assert has_counterfactuals(fitted)
        Race(
            1, len(fitted.groups), run_plan(run).evals_per_round, stop, 1, fitted.networks()
        )  # refuses what none can win
        return method, stop.name

    def _work(self, key: tuple[str, str, str], job: Job) -> None:
        job.started = True
        error: GudaError | None = None
        try:
            self._race(key, job, run_inline)
        except GudaError as e:
            error = e
        except Exception as e:  # one failure must not stop the queue
            error = GudaError("scoring-failed", f"scoring failed ({type(e).__name__}: {e})")
        finally:
            with self._lock:
                self._jobs.pop(key, None)
            job.end(error)

    def _race(self, key: tuple[str, str, str], job: Job, engine: steps.Engine) -> None:
        queries, rule, method = key
        run, last = self.run, None
        for scores, _ in steps.watch(run, queries, method, engine, rule):
            last = self.snapshot(run, queries, rule, scores, final=False)
            job.tell(last)
            if self._closing:
                raise GudaError(
                    "server-stopped", "the server was stopped; finished rounds are kept, so ask again once it is back"
                )
        assert last is not None
        job.tell(self.snapshot(run, queries, rule, last.scores))

    def _replay(self, queries: str, rule: str, method: str) -> Job | None:
        """A finished job if every term is on disk and belongs to the current weights, else None."""

        def nothing_left(run: Run, tasks: list[Task], title: str) -> int:
            if pending(run, tasks):
                raise _Unfinished
            return 0

        job = Job()
        try:
            self._race((queries, rule, method), job, nothing_left)
        except _Unfinished:
            return None
        job.end(None)
        return job

    # ---- looking

    def snapshot(self, run: Run, queries: str, rule: str | None, scores: Scores, final: bool = True) -> Snapshot:
        method, loaded = get_method(run, scores.method), load_queries(run, queries)
        networks = method.networks() if has_counterfactuals(method) else (0, 1)
        prompt = loaded.prompts[loaded.ids.index(scores.queries[0])] if loaded.prompts else None
        return Snapshot(queries, rule, scores, networks, run_plan(run).evals_per_round, final, prompt)

    def floor_set(self, method: str, queries: str | None = None) -> str | None:
        return steps.placebo_set(self.run, method, queries)

    def floor(self, method: str, queries: str | None = None) -> Null | None:
        """What placebo groups score with this method on `floor_set`."""
        name = self.floor_set(method, queries)
        if name is None:
            return None
        path = steps.scores_path(self.run, name, method + PLACEBO)
        key = (str(path), path.stat().st_mtime_ns)
        if key not in self._floors:
            self._floors[key] = steps.placebo_null(self.run, name, method)
        return self._floors[key]

    def view(self, shot: Snapshot) -> MethodView:
        """The snapshot as the report would show it."""
        method = shot.scores.method
        floor = self.floor(method, shot.queries)
        return MethodView(shot.scores, self.data.groups.sizes, self.about(method), floor)

    @staticmethod
    def about(method: str) -> str:
        return METHODS[method].summary if method in METHODS else ""

    @property
    def data(self) -> ImageData:
        """The groups that are scored."""
        return scored_data(self.run)


def stored_note(job: Job) -> str:
    """Beside an answer that was there before it was asked for."""
    return f"Already scored as {job.snapshots[-1].queries}/{job.snapshots[-1].picture}; stored answer."


def raceable(run: Run) -> list[str]:
    """Fitted methods that can be raced, in the recipe's order."""

    def fits(name: str) -> bool:
        try:
            check_race(get_method(run, name))
        except GudaError:
            return False
        return True

    return [name for name in steps.fitted_methods(run) if fits(name)]


def stored_scores(run: Run, method: str, pixels: np.ndarray, prompt: str | None) -> tuple[str, Scores] | None:
    """(query set, scores of this picture alone), the recipe's own set first; None if it was not scored in full: by the
    run's present estimand, groups, models and rounds. The picture's file may have any name."""
    own, name = set_name(run, run.recipe.queries), upload_name(pixels, prompt)
    sets = [s for s in run.query_sets() if not s.startswith(UPLOAD) or s == name]  # an upload is named by its pixels
    for query_set in sorted(sets, key=lambda s: s != own):
        path, queries = steps.scores_path(run, query_set, method), load_queries(run, query_set)
        [place] = queries.find(pixels[None], None if prompt is None else [prompt])
        if place < 0 or not path.is_file() or not steps.up_to_date(run, queries, get_method(run, method)):
            continue
        scores = Scores.read(path)
        if queries.ids[place] in scores.queries and scores.groups == scored_data(run).groups.names:
            return query_set, one_picture(scores, queries.ids[place])
    return None
