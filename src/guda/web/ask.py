"""The Ask tab: upload one picture and watch its scores converge; and the widgets it shares with the other tabs: file
upload, and the choice of stop rule and method.

The Batch tab: several pictures with the same settings; each result is stored separately and has its own link.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guda.errors import GudaError
from guda.report.cards import Scale
from guda.scoring.race import StopRule
from guda.scoring.reading import RACED
from guda.web import answer
from guda.web.answer import html
from guda.web.job import Job, Snapshot
from guda.web.results import words
from guda.web.service import DEFAULT_RULE, Service
from guda.web.upload_folder import holding
from guda.web.uploads import Full

FIRST, THREE, BUDGET, OWN = (
    "one group leads with 95 % confidence",
    "the first three are settled with 90 % confidence",
    "a fixed budget is spent",
    "a custom rule is met",
)


def rule_of(choice: str, budget: float | None, own: str) -> str:
    """The stop rule behind a choice of the page, by its proper name."""
    if choice == BUDGET:
        if budget is None or budget != int(budget):
            raise GudaError("stop-budget-invalid", "the budget must be a whole number of network evaluations")
        return StopRule.parse(f"budget={int(budget)}").name
    text = {FIRST: DEFAULT_RULE, THREE: "top3@0.9"}.get(choice, own.strip())
    if not text:
        raise GudaError(
            "stop-rule-missing", "enter a stop rule: top1@0.95, top3@0.9, budget=500, or two separated by a comma"
        )
    return StopRule.parse(text).name


@dataclass(frozen=True)
class Question:
    """The widgets whose values `rule_of` takes, then the method."""

    choice: Any
    budget: Any
    own: Any
    method: Any

    @property
    def inputs(self) -> list[Any]:
        return [self.choice, self.budget, self.own, self.method]


def upload(**options: Any) -> Any:
    """A file widget that accepts only files uploaded to it.

    By default Gradio also fetches a URL or reads a server path that a client sends instead of a file; this server must
    do neither."""
    import gradio as gr
    from gradio.utils import get_upload_folder

    file: Any = gr.File(**options)
    keep = file.async_move_resource_to_block_cache

    async def only_uploads(path: str | Path | None) -> str | None:
        if path is not None and not Path(path).resolve().is_relative_to(Path(get_upload_folder()).resolve()):
            raise gr.Error("send the picture itself, not an address or a path", print_exception=False)
        return await keep(path)

    file.async_move_resource_to_block_cache = only_uploads
    return file


def question(service: Service) -> Question:
    """Inside a Gradio Blocks context."""
    import gradio as gr

    groups = len(service.data.groups)
    choices = [c for c in (FIRST, THREE, BUDGET, OWN) if c != THREE or groups > 3]
    choice = gr.Radio(choices, value=FIRST, label="Stop when")
    budget = gr.Number(
        1000, precision=0, minimum=1, label="Budget (network evaluations)", visible=False,
        info="The lower half of the groups is eliminated after each round.",
    )  # fmt: skip
    own = gr.Textbox(
        "", label="Stop rule", placeholder="top2@0.99,budget=2000", visible=False,
        info="topK@CONFIDENCE, budget=N, or both separated by a comma.",
    )  # fmt: skip
    choice.change(
        lambda c: (gr.update(visible=c == BUDGET), gr.update(visible=c == OWN)), choice, [budget, own],
        queue=False, show_progress="hidden", api_visibility="private",
    )  # fmt: skip
    method = gr.Dropdown(service.methods, value=service.method, label="Method", visible=len(service.methods) > 1)
    return Question(choice, budget, own, method)


LOOK = 0.1  # seconds between two looks at a job

EMPTY = '<div class="guda"><p class="empty">Your answer will appear here: the groups of training images, ranked by how much this picture depends on them.</p></div>'  # noqa: E501


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


def waits(ahead: int) -> str:
    if not ahead:
        return answer.render("waiting.html.j2", text="Scoring starts now.")
    many = "1 picture is" if ahead == 1 else f"{ahead} pictures are"
    return answer.render("waiting.html.j2", text=f"{many} ahead of this one in the queue.")


def ask_tab(service: Service) -> Any:
    """Returns the place of the answer, so that a link may fill it."""
    import gradio as gr

    async def ask(
        file: str | None, prompt: str, choice: str, budget: float | None, own: str, method: str
    ) -> AsyncIterator[str]:
        try:
            if not file:
                raise GudaError("image-not-given", "choose a picture first: PNG, JPEG or WebP")
            rule = rule_of(choice, budget, own)
            job, note = await asyncio.to_thread(service.ask, file, prompt, rule, method)
            held: Scale | None = None
            async for shot in looks(service, job):
                if isinstance(shot, int):
                    yield waits(shot)
                else:
                    page, held = answer.answer(service, shot, note, held)
                    yield page
        except GudaError as e:
            yield answer.refusal(str(e))

    with gr.Row(equal_height=False):
        with gr.Column(scale=2, min_width=300):
            limits = service.limits
            file = upload(
                label=f"Picture (PNG, JPEG or WebP; up to {limits.max_mb:g} MB, {limits.max_megapixels:g} megapixels)",
                height=150, elem_id="ask-file",
            )  # fmt: skip
            told = service.told
            prompt = gr.Textbox(
                "",
                label=f"The {told or 'prompt'} that made it",
                visible=told is not None,
                lines=2,
                elem_id="ask-prompt",
            )
            asked = question(service)
            button = gr.Button("Find the groups behind this picture", variant="primary", elem_id="ask-button")
            c, h, w = service.model.image_shape
            html(answer.render("hints.html.j2", width=w, height=h, grey=c == 1))
        with gr.Column(scale=3, min_width=320):
            place = html(EMPTY, elem_id="ask-answer")
    button.click(
        ask, [file, prompt, *asked.inputs], place, concurrency_limit=None, show_progress="minimal",
        api_visibility="private",
    )  # fmt: skip
    return place


MOST = 64  # pictures in one go

HEADER = ("picture", "answer", "first", "score", "95 % interval", "evaluations")


def batch_tab(service: Service) -> None:
    import gradio as gr

    async def ask(
        files: list[str] | None, prompts: str, choice: str, budget: float | None, own: str, method: str
    ) -> AsyncIterator[str]:
        try:
            if not files:
                raise GudaError("image-not-given", "choose some pictures first: PNG, JPEG or WebP")
            if len(files) > MOST:
                raise GudaError("upload-too-many", f"{len(files)} pictures are too many at once; the limit is {MOST}")
            told = _prompts(prompts, len(files), service.told)
            rule = rule_of(choice, budget, own)
        except GudaError as e:
            yield answer.refusal(str(e))
            return
        with holding(files):
            async for page in answers(files, told, rule, method):
                yield page

    async def answers(files: list[str], told: list[str], rule: str, method: str) -> AsyncIterator[str]:
        rows: list[tuple[str, tuple[str, ...]]] = []
        asked: list[Job | GudaError] = []
        raced = False
        questions = list(zip(files, told, strict=True))
        for number, file in enumerate(files):
            # submit as many as the queue holds, in a thread that finishes even if the page is closed
            await asyncio.to_thread(submit, service, questions, asked, rule, method)
            yield words("Answers", HEADER, rows, f"{number} of {len(files)} done.{_rest(len(asked), len(files))}")
            while len(asked) <= number:  # others have filled the queue
                await asyncio.sleep(LOOK)
                await asyncio.to_thread(submit, service, questions, asked, rule, method)
            name = Path(file).name
            try:
                job = asked[number]
                if isinstance(job, GudaError):
                    raise job
                last: Snapshot | None = None
                async for shot in looks(service, job):
                    last = last if isinstance(shot, int) else shot
                assert last is not None
                rows.append((answer.link(last), line(service, name, last)))
                raced |= service.view(last).verdicts[0].note == RACED
            except GudaError as e:
                rows.append(("", (name, f"not accepted: {e}", "", "", "", "")))
        yield words("Answers", HEADER, rows, f"All {len(files)} done.{f' Answers {RACED}.' if raced else ''}")

    with gr.Row(equal_height=False):
        with gr.Column(scale=2, min_width=300):
            files = upload(label=f"Pictures (up to {MOST})", file_count="multiple", height=180, elem_id="batch-files")
            prompts = gr.Textbox(
                "", label=f"Their {service.told or 'prompt'}s, one line per picture, in order, or one line for all",
                lines=4, visible=service.told is not None,
            )  # fmt: skip
            asked = question(service)
            button = gr.Button("Analyse all", variant="primary", elem_id="batch-button")
        with gr.Column(scale=3, min_width=320):
            place = html(
                answer.render("waiting.html.j2", text="The answers will appear here, one line per picture."),
                elem_id="batch-answer",
            )
    button.click(
        ask, [files, prompts, *asked.inputs], place, concurrency_limit=None, show_progress="minimal",
        api_visibility="private",
    )  # fmt: skip


def submit(
    service: Service, questions: list[tuple[str, str]], asked: list[Job | GudaError], rule: str, method: str
) -> None:
    """Submit the remaining questions in order until the queue is full."""
    for file, prompt in questions[len(asked) :]:
        if service.full:
            return
        try:
            asked.append(service.ask(file, prompt, rule, method)[0])
        except Full:
            return
        except GudaError as e:
            asked.append(e)


def _rest(taken: int, n: int) -> str:
    if taken == n:
        return ' All pictures have been accepted; you can close this page and find the results under "Stored results".'
    return f" {taken} accepted so far; keep this page open until all are, because the queue is full."


def _prompts(text: str, n: int, told: str | None) -> list[str]:
    lines = [line for line in text.splitlines() if line.strip()]
    if told is None or len(lines) == n:
        return lines or [""] * n
    if len(lines) == 1:
        return lines * n
    raise GudaError(
        "prompts-count-mismatch",
        f"{n} pictures and {len(lines)} {told} lines; give one line for each picture, or one for all",
    )


def line(service: Service, name: str, shot: Snapshot) -> tuple[str, ...]:
    """One picture as a row of HEADER."""
    view = service.view(shot)
    first, said = view.rows(0)[0], view.verdicts[0]
    told = said.headline + (f" (stored answer of {shot.queries}/{shot.picture})" if shot.rule is None else "")
    if said.kind == "foreign":
        return (name, told, "", "", "", f"{shot.evals:,}")
    return (name, told, first.name, first.value, first.interval, f"{shot.evals:,}")
