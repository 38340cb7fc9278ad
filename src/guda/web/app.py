"""The Gradio app: five tabs over one Service. Only widgets and wiring; their content is rendered elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from guda.web import answer
from guda.web import tables as look
from guda.web.api import api
from guda.web.ask import ask_tab
from guda.web.batch import batch_tab
from guda.web.question import html
from guda.web.results_tab import shelf_tab
from guda.web.service import Service

if TYPE_CHECKING:
    from gradio import Blocks


TITLE = "Which training images shaped this picture?"


def build(service: Service, runs: Path) -> Blocks:
    """`runs`: the folder whose runs the last tab lists."""
    import gradio as gr

    quick: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
    recipe, data = service.run.recipe.name, service.data
    with gr.Blocks(title=f"guda: {recipe}", analytics_enabled=False, delete_cache=(3600, 3600)) as app:
        html(answer.render("top.html.j2", title=TITLE, recipe=recipe, images=data.n, groups=len(data.groups)))
        with gr.Tabs(elem_id="tabs") as tabs:
            with gr.Tab("Ask", id="ask"):
                ask_tab(service)
            with gr.Tab("Batch", id="batch"):
                batch_tab(service)
            with gr.Tab("Stored results", id="stored") as stored:
                shelf = shelf_tab(service)
            with gr.Tab("Leaderboard", id="leaderboard") as leaders:
                board = html(look.leaderboard(service), elem_id="leaderboard")
            with gr.Tab("Runs", id="runs") as others:
                table = html(look.runs_table(runs, service.root), elem_id="runs-table")
        api(service)

        def arrive(request: gr.Request) -> tuple[Any, ...]:
            """A link to a stored result opens it."""
            query = {key: str(value) for key, value in dict(request.query_params).items()}
            if not query.get("result"):
                return tuple(gr.skip() for _ in range(4))
            return gr.Tabs(selected="stored"), *shelf.open(query)

        arrive.__annotations__["request"] = (
            gr.Request
        )  # Gradio needs the class itself, and `gr` is local to this function
        app.load(arrive, None, [tabs, shelf.result, shelf.picture, shelf.place], **quick)
        stored.select(shelf.refill, None, [shelf.result, shelf.table], **quick)
        leaders.select(lambda: look.leaderboard(service), None, board, **quick)
        others.select(lambda: look.runs_table(runs, service.root), None, table, **quick)
    app.queue(default_concurrency_limit=None)
    return app
