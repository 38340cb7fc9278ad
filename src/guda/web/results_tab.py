"""The Stored results tab: every scored picture of the run, opened from a list or through its link."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from guda.errors import GudaError
from guda.web import answer
from guda.web import tables as look
from guda.web.question import html
from guda.web.results import find, open_result, results
from guda.web.service import Service


@dataclass(frozen=True)
class Shelf:
    result: Any  # dropdown of stored results, their values as in an address
    picture: Any
    place: Any
    table: Any
    refill: Callable[[], tuple[Any, str]]
    open: Callable[[dict[str, str]], tuple[Any, Any, str]]  # the parts of an address -> (result, picture, answer)


def shelf_tab(service: Service) -> Shelf:
    import gradio as gr

    def choices() -> list[tuple[str, str]]:
        return [(r.title, r.address) for r in results(service.run)[: look.LISTED]]

    def refill() -> tuple[Any, str]:
        return gr.update(choices=choices()), look.stored_table(service)

    def shown(value: str | None, picture: str | None = None) -> tuple[Any, str]:
        """(pictures to choose from, answer)."""
        asked = {k: v[0] for k, v in parse_qs((value or "").lstrip("?")).items()}
        if not asked:
            return gr.update(visible=False), look.says("Choose a result above, or one of the links below.")
        try:
            queries = asked["result"]
            shot = open_result(service, queries, asked.get("method"), asked.get("rule"), picture)
            ids = look.pictures(service.run, queries)
            page, _ = answer.answer(service, shot)
            return gr.update(choices=ids, value=shot.picture, visible=len(ids) > 1), page
        except GudaError as e:
            return gr.update(visible=False), answer.refusal(str(e), "Not found.")

    def opened(query: dict[str, str]) -> tuple[Any, Any, str]:
        try:
            value = find(service.run, query["result"], query.get("method"), query.get("rule")).address
        except GudaError as e:
            return gr.update(choices=choices()), gr.update(visible=False), answer.refusal(str(e), "Not found.")
        known = choices()
        known += [] if value in [v for _, v in known] else [(query["result"], value)]
        return gr.update(choices=known, value=value), *shown(value, query.get("picture"))

    result = gr.Dropdown(choices(), value=None, label="Result", elem_id="shelf-result")
    picture = gr.Dropdown([], label="Picture", visible=False, elem_id="shelf-picture")
    place = html(shown(None)[1], elem_id="shelf-answer")
    table = html(look.stored_table(service), elem_id="shelf-table")
    quick: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
    result.input(shown, result, [picture, place], **quick)
    picture.input(lambda value, chosen: shown(value, chosen)[1], [result, picture], place, **quick)
    return Shelf(result, picture, place, table, refill, opened)
