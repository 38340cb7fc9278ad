"""Widgets that the tabs share: places for files and for answers, and the question itself: stop rule and method."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guda.errors import GudaError
from guda.scoring.race import StopRule
from guda.web.service import DEFAULT_RULE, Service

FIRST, THREE, BUDGET, OWN = (
    "until one group is first with 95 % confidence",
    "until the first three are settled with 90 % confidence",
    "for a fixed budget",
    "by a rule of my own",
)


def rule_of(choice: str, budget: float | None, own: str) -> str:
    """The stop rule behind a choice of the page, by its proper name."""
    if choice == BUDGET:
        if budget is None or budget != int(budget):
            raise GudaError("stop-budget-invalid", "the budget is a whole number of network evaluations")
        return StopRule.parse(f"budget={int(budget)}").name
    text = {FIRST: DEFAULT_RULE, THREE: "top3@0.9"}.get(choice, own.strip())
    if not text:
        raise GudaError("stop-rule-missing", "write a stop rule: top1@0.95, top3@0.9, budget=500, or two with a comma")
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
    """A place for what guda draws, which brings its own style (style.py)."""
    import gradio as gr

    return gr.HTML(value, apply_default_css=False, **options)


def upload(**options: Any) -> Any:
    """A place for files, which takes nothing but what was uploaded to it.

    Gradio would also fetch an address that a client names instead of a file; this server asks nothing of the network,
    and reads no file of its own for a stranger."""
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
    choice = gr.Radio(choices, value=FIRST, label="Go on")
    budget = gr.Number(
        1000, precision=0, minimum=1, label="Budget (network evaluations)", visible=False,
        info="After each round the lower half of the groups leaves.",
    )  # fmt: skip
    own = gr.Textbox(
        "", label="Stop rule", placeholder="top2@0.99,budget=2000", visible=False,
        info="topK@CONFIDENCE, budget=N, or both with a comma.",
    )  # fmt: skip
    choice.change(
        lambda c: (gr.update(visible=c == BUDGET), gr.update(visible=c == OWN)), choice, [budget, own],
        queue=False, show_progress="hidden", api_visibility="private",
    )  # fmt: skip
    method = gr.Dropdown(service.methods, value=service.method, label="Method", visible=len(service.methods) > 1)
    return Question(choice, budget, own, method)
