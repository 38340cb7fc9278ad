"""The HTTP API: named endpoints of the app that take plain values and give JSON. docs/web.md documents the fields.

Files come in through a component that hands over nothing but what was uploaded (ask.py): an endpoint that took
a path by itself would read any file of the server for whoever asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from guda.errors import GudaError
from guda.web.ask import looks, upload
from guda.web.job import Snapshot, to_json
from guda.web.results import evaluations, open_result, pictures, results
from guda.web.service import DEFAULT_RULE, Service


def told(service: Service, shot: Snapshot, note: str = "") -> dict[str, Any]:
    value = to_json(shot, service.view(shot))
    return value | {"note": note} if note else value


def api(service: Service) -> None:
    """Inside a Gradio Blocks context; the widgets are never shown."""
    import gradio as gr

    def refused(error: GudaError) -> Exception:
        return gr.Error(" ".join(str(error).split()), title=error.code, print_exception=False)

    async def attribute(picture: str, prompt: str, rule: str, method: str) -> dict[str, Any]:
        """Score one picture; answers when the stop rule is met."""
        try:
            if not picture:
                raise GudaError("image-not-given", "give a picture: PNG, JPEG or WebP")
            job, note = await asyncio.to_thread(service.ask, picture, prompt, rule or DEFAULT_RULE, method or None)
            last: Snapshot | None = None
            async for shot in looks(service, job):
                last = last if isinstance(shot, int) else shot
        except GudaError as e:
            raise refused(e) from None
        assert last is not None
        return told(service, last, note)

    def stored() -> list[dict[str, Any]]:
        """Every stored result, newest first."""
        run = service.run
        return [
            {"result": r.queries, "method": r.method, "rule": r.rule, "pictures": len(pictures(run, r.queries))}
            for r in results(run)
        ]

    def result(name: str, method: str, rule: str, picture: str) -> dict[str, Any]:
        """One stored result, by name; method, rule and picture may be empty."""
        try:
            return told(service, open_result(service, name, method, rule, picture))
        except GudaError as e:
            raise refused(e) from None

    def leaderboard() -> dict[str, Any]:
        """Methods against the oracle, by query set, in the schema of a run's evaluation.json."""
        try:
            return {name: entry.model_dump(mode="json") for name, entry in evaluations(service.run).items()}
        except GudaError as e:
            raise refused(e) from None

    def endpoint(name: str, fn: Callable[..., Any], inputs: list[Any], queue: bool) -> None:
        out = gr.JSON(visible=False, label=name)
        gr.Button(visible=False).click(fn, inputs, out, api_name=name, queue=queue, concurrency_limit=None)

    def text(label: str, value: str = "") -> Any:
        return gr.Textbox(value, label=label, visible=False)

    picture = upload(visible=False, label="picture")
    endpoint("attribute", attribute, [picture, text("prompt"), text("rule", DEFAULT_RULE), text("method")], True)
    endpoint("results", stored, [], False)
    endpoint("result", result, [text("name"), text("method"), text("rule"), text("picture")], False)
    endpoint("leaderboard", leaderboard, [], False)
