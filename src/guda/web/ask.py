"""The Ask tab: upload one picture and watch its scores converge; and the widgets it shares with the other tabs: file
upload, HTML output, and the choice of stop rule and method.
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
from guda.web import answer
from guda.web.job import Job, Snapshot
from guda.web.service import DEFAULT_RULE, Service

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


def html(value: str, **options: Any) -> Any:
    """A place for what guda draws, which brings its own style (app.py)."""
    import gradio as gr

    return gr.HTML(value, apply_default_css=False, **options)


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
