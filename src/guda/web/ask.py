"""The Ask tab: upload one picture and watch its scores converge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from guda.errors import GudaError
from guda.report.cards import Scale
from guda.web import answer
from guda.web.job import Job
from guda.web.question import html, question, rule_of, upload
from guda.web.service import Service
from guda.web.snapshot import Snapshot

LOOK = 0.1  # seconds between two looks at a job

EMPTY = '<div class="guda"><p class="empty">Your answer will appear here: the groups of training images, ranked by how much worse the model explains the picture without them.</p></div>'  # noqa: E501


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
