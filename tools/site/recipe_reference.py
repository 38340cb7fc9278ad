"""The recipe reference, from the pydantic configs: every field of every section, and every method's settings."""

from __future__ import annotations

import re
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic_core import PydanticUndefined


def recipe_markdown() -> str:
    from guda.run.recipe import LOCKED, Recipe

    locked = ", ".join(f"`{name}`" for name in LOCKED)
    parts = [
        "# Recipe",
        "Generated from the code. A recipe is one YAML file with all settings of a run; `guda init` writes it to "
        f"`RUN/recipe.yaml`. The sections {locked} are locked once something depends on them; the others may be edited "
        "at any time, because what they make is stored under names derived from their values. An unknown key is "
        "an error. Settings of the methods are on [their own page](methods.md).",
        "## Sections",
        _table(Recipe),
    ]
    for name, field in Recipe.model_fields.items():
        if config := _config(field.annotation):
            parts += [f"## {name}", field.description or "", _table(config)]
            for sub, subfield in config.model_fields.items():
                if inner := _config(subfield.annotation):
                    parts += [f"### {name}.{sub}", subfield.description or "", _table(inner)]
    return "\n\n".join(parts) + "\n"


def methods_markdown() -> str:
    from guda.methods.base import METHODS

    parts = [
        "# Methods and their settings",
        "Generated from the code. A method's settings go under `methods: {ID: {...}}` of a recipe, or are changed with "
        "`guda fit RUN --method ID --set key=value`. What the methods do: [counterfactuals](../operators.md), "
        "[baselines](../baselines.md), [text-to-image](../text-to-image.md).",
    ]
    for name in sorted(METHODS):
        cls = METHODS[name]
        if not cls.Config.__module__.startswith("guda."):
            continue  # a plug-in that happens to be installed
        parts += [f"## {name}", cls.summary, f"Unit of its scores: {cls.unit}.", _table(cls.Config)]
    return "\n\n".join(p for p in parts if p) + "\n"


def _config(annotation: Any) -> Any:
    """The config class that a field holds, if it holds one."""
    from guda.config import Config

    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, Config):
            return kind
    return None


def _table(config: Any) -> str:
    if not config.model_fields:
        return "No settings."
    rows = [
        f"| `{field.alias or name}` | {_kind(field)} | {_default(field)} | {_cell(field.description or '')} |"
        for name, field in config.model_fields.items()
    ]
    return "| field | values | default | meaning |\n|---|---|---|---|\n" + "\n".join(rows)


def _kind(field: Any) -> str:
    limits = [
        f"{sign} {getattr(limit, key):g}"
        for limit in field.metadata
        for key, sign in (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))
        if hasattr(limit, key)
    ]
    return _cell(", ".join([_name(field.annotation), *limits]))


def _name(kind: Any) -> str:
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return " | ".join("null" if a is NoneType else _name(a) for a in get_args(kind))
    if origin is Literal:
        return " | ".join(f"`{a}`" for a in get_args(kind))
    if config := _config(kind):
        return f"section ({config.__name__})"
    if origin in (tuple, list):
        return f"list of {_name(get_args(kind)[0])}"
    if origin is dict:
        return "mapping"
    if origin is not None and get_args(kind):  # Annotated
        return _name(get_args(kind)[0])
    names = {int: "whole number", float: "number", str: "text", bool: "true | false"}
    return names.get(kind, re.sub(r".*\.", "", getattr(kind, "__name__", str(kind))))


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined or hasattr(type(value), "model_fields"):
        return ""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "`true`" if value else "`false`"
    return f"`{list(value) if isinstance(value, tuple) else value}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")
