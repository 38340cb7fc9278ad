"""The Batch tab: several pictures with the same settings; each result is stored separately and has its own link."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from guda.errors import GudaError
from guda.scoring.verdict import RACED
from guda.web import answer
from guda.web.ask import LOOK, html, looks, question, rule_of, upload
from guda.web.job import Job, Snapshot
from guda.web.results import words
from guda.web.service import Service
from guda.web.uploads import Full

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
