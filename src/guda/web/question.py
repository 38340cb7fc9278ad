"""What a visitor asks: a picture, when to stop, and by which method; as the fields of a form or of the HTTP API."""

from __future__ import annotations

from guda.errors import GudaError
from guda.language import mark
from guda.scoring.race import StopRule
from guda.web.service import DEFAULT_RULE, Service

CHOICES = {  # value of the form -> what the page calls it
    "first": mark("one group leads with 95 % confidence"),
    "three": mark("the first three are settled with 90 % confidence"),
    "budget": mark("a fixed budget is spent"),
    "own": mark("a custom rule is met"),
}

MOST = 64  # pictures in one go


def choices(service: Service) -> dict[str, str]:
    return {key: text for key, text in CHOICES.items() if key != "three" or len(service.data.groups) > 3}


def rule_of(choice: str, budget: str, own: str) -> str:
    """The stop rule behind a choice of the page, by its proper name."""
    if choice == "budget":
        if not budget.strip().isascii() or not budget.strip().isdigit():
            raise GudaError("stop-budget-invalid", "the budget must be a whole number of network evaluations")
        return StopRule.parse(f"budget={int(budget)}").name
    text = {"first": DEFAULT_RULE, "three": "top3@0.9"}.get(choice, own.strip())
    if not text:
        raise GudaError(
            "stop-rule-missing", "enter a stop rule: top1@0.95, top3@0.9, budget=500, or two separated by a comma"
        )
    return StopRule.parse(text).name


def prompts_of(text: str, n: int, condition: str | None) -> list[str]:
    """One for each of `n` pictures: a line each, or one line for all."""
    lines = [line for line in text.splitlines() if line.strip()]
    if condition is None or len(lines) == n:
        return lines or [""] * n
    if len(lines) == 1:
        return lines * n
    raise GudaError(
        "prompts-count-mismatch",
        f"{n} pictures and {len(lines)} {condition} lines; give one line for each picture, or one for all",
    )
