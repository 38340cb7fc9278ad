"""The Batch tab: several pictures with one question; each is stored by itself and has its own link."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from guda.errors import GudaError
from guda.web import answer, look
from guda.web.ask import looks
from guda.web.question import html, question, rule_of, upload
from guda.web.service import Service
from guda.web.snapshot import Snapshot

MOST = 64  # pictures in one go
HEADER = ("picture", "answer", "first", "score", "95 % interval", "evaluations")


def batch_tab(service: Service) -> None:
    import gradio as gr

    async def ask(
        files: list[str] | None, prompts: str, choice: str, budget: float | None, own: str, method: str
    ) -> AsyncIterator[str]:
        try:
            if not files:
                raise GudaError("choose some pictures first: PNG, JPEG or WebP")
            if len(files) > MOST:
                raise GudaError(f"{len(files)} pictures are too many at once; up to {MOST} are taken")
            told = _prompts(prompts, len(files), service.told)
            rule = rule_of(choice, budget, own)
        except GudaError as e:
            yield answer.refusal(str(e))
            return
        rows: list[tuple[str, tuple[str, ...]]] = []
        for number, (file, prompt) in enumerate(zip(files, told, strict=True)):
            yield look.words("Answers", HEADER, rows, f"{number} of {len(files)} done.")
            name = Path(file).name
            try:
                queries, _ = await asyncio.to_thread(service.take, file, prompt)
                job = await asyncio.to_thread(service.submit, queries, rule, method)
                last: Snapshot | None = None
                async for shot in looks(service, job):
                    last = last if isinstance(shot, int) else shot
                assert last is not None
                rows.append((answer.link(last), line(service, name, last)))
            except GudaError as e:
                rows.append(("", (name, f"not taken: {e}", "", "", "", "")))
        yield look.words("Answers", HEADER, rows, f"All {len(files)} done.")

    with gr.Row(equal_height=False):
        with gr.Column(scale=2, min_width=300):
            files = upload(label=f"Pictures (up to {MOST})", file_count="multiple", height=180, elem_id="batch-files")
            prompts = gr.Textbox(
                "", label=f"Their {service.told or 'prompt'}s, one line for each picture, in order, or one for all",
                lines=4, visible=service.told is not None,
            )  # fmt: skip
            asked = question(service)
            button = gr.Button("Ask about all of them", variant="primary", elem_id="batch-button")
        with gr.Column(scale=3, min_width=320):
            place = html(
                answer.render("waiting.html.j2", text="One line for each picture will stand here."),
                elem_id="batch-answer",
            )
    button.click(
        ask, [files, prompts, *asked.inputs], place, concurrency_limit=None, show_progress="minimal",
        api_visibility="private",
    )  # fmt: skip


def _prompts(text: str, n: int, told: str | None) -> list[str]:
    lines = [line for line in text.splitlines() if line.strip()]
    if told is None or len(lines) == n:
        return lines or [""] * n
    if len(lines) == 1:
        return lines * n
    raise GudaError(f"{n} pictures and {len(lines)} {told} lines; give one line for each picture, or one for all")


def line(service: Service, name: str, shot: Snapshot) -> tuple[str, ...]:
    """One picture as a row of HEADER."""
    view = service.view(shot)
    first = view.rows(0)[0]
    return (name, view.verdicts[0].headline, first.name, first.value, first.interval, f"{shot.evals:,}")
