"""The Gradio app: five tabs over one Service. Only widgets, wiring and appearance; content is rendered elsewhere.

The app has the report's style sheets, scoped to what guda draws, and a theme with the same colours. The report turns
dark when the system is; Gradio marks dark by a class, so the report's dark colours go under it. Every rule is nested
below `.guda`, for its class names are plain words that Gradio's own widgets may use, too.

The HTTP API: named endpoints of the app that take plain values and give JSON. docs/web.md documents the fields.

Files come in through a component that hands over nothing but what was uploaded (ask.py): an endpoint that took
a path by itself would read any file of the server for whoever asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guda.errors import GudaError
from guda.scoring.bars import split_sheet
from guda.web import answer
from guda.web.answer import html
from guda.web.ask import ask_tab, batch_tab, looks, upload
from guda.web.job import Snapshot, to_json
from guda.web.results import evaluations, leaderboard, open_result, pictures, results, runs_table, shelf_tab
from guda.web.service import DEFAULT_RULE, Service

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
                board = html(leaderboard(service), elem_id="leaderboard")
            with gr.Tab("Runs", id="runs") as others:
                table = html(runs_table(runs, service.root), elem_id="runs-table")
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
        leaders.select(lambda: leaderboard(service), None, board, **quick)
        others.select(lambda: runs_table(runs, service.root), None, table, **quick)
    app.queue(default_concurrency_limit=None)
    return app


SHEETS = (("guda.scoring", "bars.css"), ("guda.report", "health.css"), ("guda.web", "web.css"))


def sheet(sources: tuple[tuple[str, str], ...] = SHEETS) -> str:
    """One style sheet: colours of the page, colours of the dark page, and rules for what is inside `.guda`."""
    light, dark, rules = "", "", ""
    for package, name in sources:
        found = split_sheet(files(package).joinpath(name).read_text("utf-8"))
        light, dark, rules = light + found[0], dark + found[1], rules + found[2]
    light = light.replace("color-scheme: light dark;", "color-scheme: light;")
    outside = files("guda.web").joinpath("frame.css").read_text("utf-8")
    return f":root {{{light}}}\n.dark {{ color-scheme: dark;{dark}}}\n{outside}\n.guda {{\n{rules}\n}}\n"


def theme() -> Any:
    """Gradio's widgets in the report's colours; fonts are the system's, so nothing is fetched."""
    from gradio.themes import Base

    both = {
        "body_background_fill": "var(--paper)",
        "body_text_color": "var(--ink)",
        "body_text_color_subdued": "var(--soft)",
        "background_fill_primary": "var(--card)",
        "background_fill_secondary": "var(--faint)",
        "block_background_fill": "var(--card)",
        "block_border_color": "var(--line)",
        "block_label_background_fill": "var(--card)",
        "block_label_text_color": "var(--ink)",
        "block_title_text_color": "var(--ink)",
        "block_info_text_color": "var(--soft)",
        "border_color_primary": "var(--line)",
        "border_color_accent": "var(--blue)",
        "color_accent_soft": "var(--faint)",
        "input_background_fill": "var(--card)",
        "input_border_color": "var(--soft)",
        "input_border_color_focus": "var(--focus)",
        "input_placeholder_color": "var(--soft)",
        "checkbox_background_color": "var(--card)",
        "checkbox_background_color_selected": "var(--blue)",
        "checkbox_border_color": "var(--soft)",
        "checkbox_border_color_selected": "var(--blue)",
        "checkbox_label_background_fill": "var(--card)",
        "checkbox_label_background_fill_hover": "var(--faint)",
        "checkbox_label_background_fill_selected": "var(--faint)",
        "checkbox_label_border_color": "var(--line)",
        "checkbox_label_text_color": "var(--ink)",
        "checkbox_label_text_color_selected": "var(--ink)",
        "button_primary_background_fill": "var(--blue)",
        "button_primary_background_fill_hover": "var(--blue)",
        "button_primary_text_color": "var(--card)",
        "button_secondary_background_fill": "var(--card)",
        "button_secondary_background_fill_hover": "var(--faint)",
        "button_secondary_border_color": "var(--soft)",
        "button_secondary_text_color": "var(--ink)",
        "link_text_color": "var(--blue)",
        "panel_background_fill": "var(--card)",
    }
    made = Base(primary_hue="blue", neutral_hue="stone", font=("sans-serif",), font_mono=("monospace",))
    return made.set(
        **both, **{f"{key}_dark": value for key, value in both.items()},
        color_accent="var(--blue)", block_shadow="none", block_border_width="1px", button_primary_shadow="none",
    )  # fmt: skip


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
