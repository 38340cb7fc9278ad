"""The pages of a run and its HTTP API: routes over one Service. What is shown is rendered by the report's templates.

    /            ask: a sample picture, or an upload with its preview
    /watch       one picture being scored, by server-sent events (/events); reload it, close it, come back
    /result      a stored result, with the evidence for it; /compare: two of them
    /batch       several pictures; /stored: the gallery; /leaderboard; /runs
    /api         what programs may ask (api_docs.py), and /api/...: JSON

Every address but those of forms is read-only and may be shared. A question is a form that is posted and redirects to
/watch, so that a page needs no script to work.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from markupsafe import Markup

from guda.errors import GudaError
from guda.language import preferred, speaking, tr
from guda.methods.terms import load_queries
from guda.report.cards import Scale
from guda.report.page import TINY
from guda.run.run import UPLOAD
from guda.run.samples import set_name
from guda.scoring.reading import reading_of
from guda.web import answer
from guda.web.api_docs import ENDPOINTS, FIELDS
from guda.web.batch import LOOK, Batch, Batches, Entry, progress
from guda.web.evidence import evidence_section, gather
from guda.web.job import Job, Snapshot, to_csv, to_json
from guda.web.question import MOST, choices, prompts_of, rule_of
from guda.web.results import (
    evaluations,
    gallery,
    leaderboard,
    open_result,
    others,
    picture_address,
    results,
    runs_table,
    set_gallery,
    shares_tables,
)
from guda.web.service import DEFAULT_RULE, Service, stored_note
from guda.web.upload_folder import UploadFolder
from guda.web.uploads import LONGEST_PROMPT

SAMPLES = 12  # pictures of the run that can be clicked

NOTES = 1000  # remarks on uploads that are remembered

STATUS = {"result-unknown": 404, "query-unknown": 404, "batch-unknown": 404, "queue-full": 503}

ASKED = {"choice": "first", "budget": "1000", "own": "", "method": "", "prompt": ""}  # a form that nobody filled in


def build(service: Service, runs: Path, uploads: UploadFolder, login: bool = False, language: str | None = None) -> Any:
    """`runs`: the folder whose runs are listed. `language`: of the pages; default: what a browser prefers."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    site = Site(service, runs, uploads, language)
    pages: dict[str, Callable[..., Any]] = {
        "/": site.home, "/watch": site.watch, "/result": site.result, "/compare": site.compare, "/batch": site.several,
        "/stored": site.stored, "/leaderboard": site.leaders, "/shares": site.shares,
        "/runs": site.other_runs, "/api": site.api,
    }  # fmt: skip
    for path, page in pages.items():
        app.get(path)(page)
    app.get("/events")(site.events)
    app.get("/batch-events")(site.batch_events)
    app.get("/app.js")(script)
    app.get("/picture")(site.picture)
    app.post("/ask")(site.ask)
    app.post("/batch")(site.ask_several)
    app.post("/evidence")(site.ask_evidence)
    app.get("/api/result")(site.api_result)
    app.get("/api/result.csv")(site.api_csv)
    app.get("/api/results")(site.api_results)
    app.get("/api/leaderboard")(site.api_leaderboard)
    app.post("/api/attribute")(site.api_attribute)
    if login:
        app.get("/login")(site.login)
    app.add_exception_handler(GudaError, site.refused)
    return app


def script() -> Response:
    return Response(files("guda.web").joinpath("app.js").read_text("utf-8"), media_type="text/javascript")


async def looks(service: Service, job: Job) -> AsyncIterator[Snapshot | int]:
    """Snapshots as they arrive; while the job is queued, the number of jobs ahead of it. Blocks no thread."""
    seen, waiting = 0, -1
    while True:
        ended = job.done
        for shot in job.snapshots[seen:]:
            seen += 1
            yield shot
        if ended:
            if job.error is not None:
                raise job.error
            return
        if not job.started and (ahead := service.ahead(job)) != waiting:
            waiting = ahead
            yield ahead
        await asyncio.sleep(LOOK)


def sent(event: str, value: Any) -> str:
    """One server-sent event."""
    return f"event: {event}\ndata: {json.dumps(value)}\n\n"


def stream(events: AsyncIterator[str]) -> StreamingResponse:
    return StreamingResponse(events, media_type="text/event-stream", headers={"cache-control": "no-store"})


def result_json(service: Service, shot: Snapshot, note: str = "") -> dict[str, Any]:
    value = to_json(shot, service.view(shot))
    return value | {"note": note} if note else value


def number(request: Request, name: str) -> int:
    text = request.query_params.get(name, "")
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 7 else 1


def address_parts(request: Request) -> tuple[str, str, str, str]:
    """(query set, method, rule, picture) of an address; all but the first may be empty."""
    q = request.query_params
    return q.get("result", ""), q.get("method", ""), q.get("rule", ""), q.get("picture", "")


class Site:
    def __init__(self, service: Service, runs: Path, uploads: UploadFolder, language: str | None) -> None:
        self.service, self.runs, self.uploads, self.language = service, runs, uploads, language
        self.batches = Batches(service)
        self._notes: dict[str, str] = {}

    # ---- rendering

    def spoken(self, request: Request) -> str:
        return self.language or preferred(request.headers.get("accept-language"))

    def render(self, template: str, tab: str = "", **context: Any) -> Markup:
        """In the present language."""
        data = self.service.data
        tabs = ((".", tr("Ask")), ("batch", tr("Several pictures")), ("stored", tr("Stored results")),
                ("shares", tr("Several groups together")), ("leaderboard", tr("Leaderboard")), ("runs", tr("Runs")),
                ("api", tr("HTTP API")))  # fmt: skip
        known = {"recipe": self.service.run.recipe.name, "images": data.n, "groups": len(data.groups), "tabs": tabs,
                 "tab": tab, "script": True, "tiny": max(data.shape[1:]) < TINY}  # fmt: skip
        return answer.render(template, **(known | context))

    def page(self, request: Request, make: Callable[[], Markup], status: int = 200) -> HTMLResponse:
        with speaking(self.spoken(request)):
            return HTMLResponse(str(make()), status, {"cache-control": "no-store", "vary": "accept-language"})

    async def shown(self, request: Request, make: Callable[[], Markup], status: int = 200) -> HTMLResponse:
        """In a thread: tables are read."""
        return await asyncio.to_thread(self.page, request, make, status)

    async def refused(self, request: Request, error: Exception) -> Response:
        """Any refusal: one line, as a page or as JSON."""
        assert isinstance(error, GudaError)
        status = STATUS.get(error.code, 400)
        if request.url.path.startswith("/api/"):
            return JSONResponse({"code": error.code, "message": " ".join(str(error).split())}, status)
        what = "Not found." if status == 404 else None
        return await self.shown(
            request,
            lambda: self.render("text.html.j2", title="", id="answer", body=answer.refusal(error, what)),
            status,
        )

    # ---- asking

    def form(self, chosen: dict[str, str] | None = None) -> dict[str, Any]:
        service = self.service
        return {
            "choices": choices(service), "methods": service.methods, "method": service.method,
            "condition": service.condition, "chosen": ASKED | (chosen or {}),
        }  # fmt: skip

    def samples(self) -> list[tuple[str, str]]:
        """(address, id) of some of the run's own samples, evenly spread."""
        run = self.service.run
        own = set_name(run, run.recipe.queries)
        if own not in run.query_sets():
            return []
        ids = run.query_ids(own)
        some = ids[:: max(1, len(ids) // SAMPLES)][:SAMPLES]
        return [(picture_address(own, i), f"{own}/{i}") for i in some]

    async def home(self, request: Request) -> Response:
        if request.query_params.get("result"):  # short links: /?result=upload-...
            return RedirectResponse(f"result?{urlencode(list(request.query_params.items()))}", 303)
        return await self.shown(request, lambda: self._home())

    def _home(self, error: GudaError | None = None, chosen: dict[str, str] | None = None) -> Markup:
        _, height, width = self.service.model.image_shape
        return self.render(
            "ask.html.j2", ".", samples=self.samples(), limits=self.service.limits, width=width, height=height,
            asked=reading_of(self.service.run.recipe.scoring).question,
            error=None if error is None else " ".join(str(error).split()), **self.form(chosen),
        )  # fmt: skip

    async def ask(self, request: Request) -> Response:
        """A form; leads to where the answer is watched, or says why not."""
        async with request.form(max_files=1, max_fields=20, max_part_size=64 * 1024) as form:
            given = {key: str(form.get(key, usual)) for key, usual in ASKED.items()}
            try:
                rule = rule_of(given["choice"], given["budget"], given["own"])
                method = given["method"] or self.service.method
                place = await asyncio.to_thread(self._ask, form, rule, method)
            except GudaError as e:
                error, status = e, STATUS.get(e.code, 400)
                return await self.shown(request, lambda: self._home(error, given), status)
        return RedirectResponse(place, 303)

    def _ask(self, form: Any, rule: str, method: str) -> str:
        """The address of the answer."""
        service = self.service
        method, rule = service.check(rule, method)
        if sample := str(form.get("sample", "")):
            name, _, picture = sample.partition("/")
            queries = self._queries(name).subset([picture])
            pixels, prompt, note = queries.images[0], queries.prompts[0] if queries.prompts else None, ""
        else:
            file = form.get("picture")
            if file is None or isinstance(file, str) or not file.filename:
                raise GudaError("image-not-given", "choose a picture first: PNG, JPEG or WebP")
            with self.uploads.file(file.filename, file.file) as path:
                upload, prompt = service.read(path, str(form.get("prompt", "")))
            pixels, note = upload.pixels, upload.note
        job, raced = service.ask_pixels(pixels, prompt, rule, method)
        if raced is None:
            shot = job.snapshots[-1]
            self._note(f"{shot.queries}/{shot.picture}", f"{note} {stored_note(job)}".strip())
            return answer.link(shot)
        self._note(raced, note)
        return "watch?" + urlencode({"result": raced, "method": method, "rule": rule})

    def _note(self, place: str, note: str) -> None:
        """A remark on how a picture came in, shown beside its answer."""
        self._notes[place] = note
        while len(self._notes) > NOTES:
            del self._notes[next(iter(self._notes))]

    def _queries(self, name: str) -> Any:
        if name not in self.service.run.query_sets():  # never a path made of what somebody wrote into an address
            raise GudaError("result-unknown", f"there is no query set {name!r} in this run")
        return load_queries(self.service.run, name)

    def _upload(self, name: str) -> None:
        """Refuse what is not an upload: a whole query set is not raced because somebody opened an address."""
        if not name.startswith(UPLOAD):
            raise GudaError("result-unknown", f"{name!r} is not an upload; scored sets are under Stored results")
        self._queries(name)

    async def watch(self, request: Request) -> Response:
        name, method, rule, _ = address_parts(request)
        self._upload(name)
        method, rule = self.service.check(rule or DEFAULT_RULE, method)
        if self.service.job(name, rule, method) is None:
            try:
                shot = await asyncio.to_thread(open_result, self.service, name, method, rule)
                return RedirectResponse(answer.link(shot), 303)
            except GudaError as e:
                if e.code != "result-unknown":
                    raise
        events = "events?" + urlencode({"result": name, "method": method, "rule": rule})
        return await self.shown(request, lambda: self.render(
            "watch.html.j2", ".", answer=self._so_far(name, method, rule), events=events, others=None,
        ))  # fmt: skip

    def _so_far(self, name: str, method: str, rule: str) -> Markup:
        job = self.service.job(name, rule, method)
        if job is None or not job.snapshots:
            return answer.waiting(0 if job is None else self.service.ahead(job))
        return answer.answer(self.service, job.snapshots[-1], self._notes.get(name, ""))[0]

    async def events(self, request: Request) -> Response:
        """What is known, as it becomes known; a question that was interrupted goes on where it was."""
        name, method, rule, _ = address_parts(request)
        self._upload(name)
        service, language = self.service, self.spoken(request)
        job = await asyncio.to_thread(service.submit, name, rule or DEFAULT_RULE, method or None)

        def drawn(shot: Snapshot, held: Scale | None) -> tuple[Markup, Scale]:
            with speaking(language):
                return answer.answer(service, shot, self._notes.get(name, ""), held)

        async def made() -> AsyncIterator[str]:
            held: Scale | None = None
            last = None
            try:
                async for shot in looks(service, job):
                    if isinstance(shot, int):
                        with speaking(language):
                            yield sent("answer", str(answer.waiting(shot)))
                    else:
                        last = shot
                        html, held = await asyncio.to_thread(drawn, shot, held)
                        yield sent("answer", str(html))
                yield sent("done", None if last is None else answer.link(last))
            except GudaError as e:
                with speaking(language):
                    yield sent("answer", str(answer.refusal(e)))
                yield sent("done", None)

        return stream(made())

    # ---- looking

    async def result(self, request: Request) -> Response:
        shot = await asyncio.to_thread(open_result, self.service, *address_parts(request))
        return await self.shown(request, lambda: self._result(shot))

    def _result(self, shot: Snapshot) -> Markup:
        note = self._notes.get(f"{shot.queries}/{shot.picture}") or self._notes.get(shot.queries, "")
        return self.render(
            "watch.html.j2", answer=answer.answer(self.service, shot, note)[0], events=None,
            others=others(self.service, shot), evidence=evidence_section(self.service, shot),
        )  # fmt: skip

    async def ask_evidence(self, request: Request) -> Response:
        """Gather it, in the queue; then the result's page shows it."""
        form = await request.form(max_files=0, max_fields=8, max_part_size=4096)
        parts = [str(form.get(key, "")) for key in ("result", "method", "rule", "picture")]
        shot = await asyncio.to_thread(open_result, self.service, *parts)
        await asyncio.wrap_future(self.service.on_worker(lambda: gather(self.service, shot)))
        return RedirectResponse(answer.link(shot) + "#evidence", 303)

    async def compare(self, request: Request) -> Response:
        shots = []
        for side in ("left", "right"):
            given = dict(parse_qsl(request.query_params.get(side, "")))
            parts = [given.get(key, "") for key in ("result", "method", "rule", "picture")]
            shots.append(await asyncio.to_thread(open_result, self.service, *parts))
        return await self.shown(request, lambda: self._compare(shots))

    def _compare(self, shots: list[Snapshot]) -> Markup:
        one, two = shots
        first = [s.scores[0].top(1)[0].group for s in shots]
        same = (one.queries, one.picture) == (two.queries, two.picture)
        what = tr("The same picture by two methods.") if same else tr("Two pictures.")
        if one.scores.unit != two.scores.unit or one.scores.estimand != two.scores.estimand:
            what += " " + tr("Their scores have other units or estimands: compare the ranks, not the numbers.")
        agree = tr("Both rank group {group} first.", group=first[0]) if first[0] == first[1] else tr(
            "They rank different groups first: {one} and {two}.", one=first[0], two=first[1]
        )  # fmt: skip
        return self.render(
            "compare.html.j2", shared=f"{what} {agree}", answers=[answer.answer(self.service, s)[0] for s in shots]
        )

    async def stored(self, request: Request) -> Response:
        name, page = request.query_params.get("set", ""), number(request, "page")
        method, rule = (request.query_params.get(key, "") for key in ("method", "rule"))

        def make() -> Markup:
            if name:
                tiles, pages = set_gallery(self.service, name, method, rule, page)
                link = "stored?" + urlencode({"set": name, "method": method, "rule": rule}) + "&"
            else:
                (tiles, pages), link = gallery(self.service, page), "stored?"
            title = name or tr("Stored results")
            return self.render("stored.html.j2", "stored", title=title, tiles=tiles, page=page, pages=pages, link=link)

        return await self.shown(request, make)

    async def leaders(self, request: Request) -> Response:
        return await self.shown(request, lambda: self.render(
            "text.html.j2", "leaderboard", title=tr("Leaderboard"), id="board", body=leaderboard(self.service)
        ))  # fmt: skip

    async def shares(self, request: Request) -> Response:
        return await self.shown(request, lambda: self.render(
            "text.html.j2", "shares", title=tr("Several groups together"), id="shares", body=shares_tables(self.service)
        ))  # fmt: skip

    async def other_runs(self, request: Request) -> Response:
        return await self.shown(request, lambda: self.render(
            "text.html.j2", "runs", title=tr("Runs"), id="runs", body=runs_table(self.runs, self.service.root)
        ))  # fmt: skip

    async def api(self, request: Request) -> Response:
        base = str(request.base_url).rstrip("/")
        return await self.shown(request, lambda: self.render(
            "api.html.j2", "api", endpoints=ENDPOINTS, fields=FIELDS, base=base
        ))  # fmt: skip

    async def login(self, request: Request) -> Response:
        """Seen by strangers: it names no run."""
        return self.page(request, lambda: answer.render(
            "login.html.j2", recipe="", images=0, groups=0, tabs=(), tab="", script=False, tiny=False, error=None
        ))  # fmt: skip

    async def picture(self, request: Request) -> Response:
        """A picture of the run as PNG, at its own pixels."""
        chosen = self._queries(request.query_params.get("set", "")).subset([request.query_params.get("id", "")])
        data = await asyncio.to_thread(_png, chosen.images[0])
        return Response(data, media_type="image/png", headers={"cache-control": "private, max-age=3600"})

    # ---- several pictures

    async def several(self, request: Request) -> Response:
        key = request.query_params.get("list", "")
        batch = self.batches.find(key) if key else None
        return await self.shown(request, lambda: self._several(batch))

    def _several(self, batch: Batch | None = None, error: GudaError | None = None) -> Markup:
        return self.render(
            "batch.html.j2", "batch", most=MOST, error=None if error is None else " ".join(str(error).split()),
            events=None if batch is None else f"batch-events?list={batch.key}",
            table="" if batch is None else progress(self.service, batch)[0], **self.form(),
        )  # fmt: skip

    async def ask_several(self, request: Request) -> Response:
        async with request.form(max_files=MOST + 1, max_fields=20, max_part_size=(MOST + 1) * LONGEST_PROMPT) as form:
            given = {key: str(form.get(key, usual)) for key, usual in ASKED.items()}
            sent_files = [f for f in form.getlist("pictures") if not isinstance(f, str) and f.filename]
            try:
                if not sent_files:
                    raise GudaError("image-not-given", "choose some pictures first: PNG, JPEG or WebP")
                if len(sent_files) > MOST:
                    raise GudaError("upload-too-many", f"{len(sent_files)} pictures are too many; the limit is {MOST}")
                prompts = prompts_of(given["prompt"], len(sent_files), self.service.condition)
                rule = rule_of(given["choice"], given["budget"], given["own"])
                method, rule = self.service.check(rule, given["method"] or None)
                entries = await asyncio.to_thread(self._receive, sent_files, prompts, rule, method)
            except GudaError as e:
                error = e
                return await self.shown(request, lambda: self._several(None, error), STATUS.get(e.code, 400))
        return RedirectResponse(f"batch?list={self.batches.start(Batch(rule, method, entries))}", 303)

    def _receive(self, sent_files: list[Any], prompts: list[str], rule: str, method: str) -> list[Entry]:
        """Every file is stored, has its answer already, or is refused."""
        entries = []
        for file, prompt in zip(sent_files, prompts, strict=True):
            entry = Entry(file.filename)
            try:
                with self.uploads.file(file.filename, file.file) as path:
                    entry.queries, entry.job = self.service.receive(path, prompt, method)
            except GudaError as e:
                entry.job = e
            entries.append(entry)
        return entries

    async def batch_events(self, request: Request) -> Response:
        batch, language = self.batches.find(request.query_params.get("list", "")), self.spoken(request)

        def drawn() -> tuple[Any, bool]:
            with speaking(language):
                return progress(self.service, batch)

        async def made() -> AsyncIterator[str]:
            before, done = "", False
            while not done:
                html, done = await asyncio.to_thread(drawn)
                if str(html) != before:
                    before = str(html)
                    yield sent("answer", before)
                await asyncio.sleep(LOOK)
            yield sent("done", None)

        return stream(made())

    # ---- the API

    async def api_attribute(self, request: Request) -> Response:
        service = self.service
        async with request.form(max_files=1, max_fields=8, max_part_size=64 * 1024) as form:
            file, prompt = form.get("picture"), str(form.get("prompt", ""))
            rule, method = str(form.get("rule", "")) or DEFAULT_RULE, str(form.get("method", "")) or None
            if file is None or isinstance(file, str) or not file.filename:
                raise GudaError("image-not-given", "send the picture itself as a file: PNG, JPEG or WebP")

            def ask() -> tuple[Job, str]:
                with self.uploads.file(str(file.filename), file.file) as path:
                    return service.ask(path, prompt, rule, method)

            job, note = await asyncio.to_thread(ask)
        last: Snapshot | None = None
        async for shot in looks(service, job):
            last = last if isinstance(shot, int) else shot
        assert last is not None
        return JSONResponse(result_json(service, last, note))

    async def api_result(self, request: Request) -> Response:
        shot = await asyncio.to_thread(open_result, self.service, *address_parts(request))
        text = json.dumps(result_json(self.service, shot), indent=1, ensure_ascii=False)
        return Response(text, media_type="application/json")

    async def api_csv(self, request: Request) -> Response:
        shot = await asyncio.to_thread(open_result, self.service, *address_parts(request))
        return Response(to_csv(result_json(self.service, shot)), media_type="text/csv; charset=utf-8")

    async def api_results(self) -> Response:
        run = self.service.run
        listed = [
            {"result": r.queries, "method": r.method, "rule": r.rule, "pictures": len(run.query_ids(r.queries))}
            for r in results(run)
        ]
        return JSONResponse(listed)

    async def api_leaderboard(self) -> Response:
        return JSONResponse({k: entry.model_dump(mode="json") for k, entry in evaluations(self.service.run).items()})


def _png(image: Any) -> bytes:
    import numpy as np
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0))).save(buffer, "PNG")
    return buffer.getvalue()
