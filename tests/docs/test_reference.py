"""The generated reference leaves nothing out: commands, options, recipe fields, settings, public names, results."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_reference import cli_markdown, commands
from pages import GENERATED, NAMED
from python_reference import python_markdown
from recipe_reference import methods_markdown, recipe_markdown
from results_pages import RESULTS, leaderboard, leaderboard_markdown, measured, ranked, results_markdown

import guda
from guda.cli.main import app
from guda.methods.base import METHODS
from guda.run.recipe import Recipe

ROOT = Path(__file__).parents[2]


def sections(markdown: str) -> dict[str, str]:
    """{heading: text below it, up to the next heading}."""
    parts = re.split(r"^#+ (.+)$", markdown, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def fields(text: str) -> set[str]:
    """First cells of the tables."""
    return set(re.findall(r"^\| `([^`]+)`", text, flags=re.M))


def test_every_command_is_in_the_reference_with_its_options() -> None:
    found = sections(cli_markdown())
    groups = {f"guda {g.name}": g.typer_instance for g in app.registered_groups}
    names = {f"guda {_name(c)}" for c in app.registered_commands}
    for group, inner in groups.items():
        names |= {group} | {f"{group} {_name(c)}" for c in inner.registered_commands}  # type: ignore[union-attr]
    assert names == {heading for heading in found if heading.startswith("guda ")}
    for words, command in commands():
        shown = found[" ".join(("guda", *words))]
        for p in [] if getattr(command, "commands", None) else command.params:
            for option in (*p.opts, *p.secondary_opts) if p.param_type_name == "option" else [p.name.upper()]:
                assert f"`{option}`" in shown, (words, option)


def _name(command: Any) -> str:
    return command.name or command.callback.__name__


def test_every_recipe_field_is_in_the_reference() -> None:
    found = sections(recipe_markdown())
    schema = Recipe.model_json_schema()
    assert fields(found["Sections"]) == set(schema["properties"])
    documented = {frozenset(fields(text)) for text in found.values()}
    for config in schema["$defs"].values():
        assert frozenset(config["properties"]) in documented, config["title"]
    assert set(schema["properties"]) - {"name", "methods", "defaults"} <= set(found)


def test_every_setting_of_every_method_is_in_the_reference() -> None:
    found = sections(methods_markdown())
    for name in METHODS:
        if METHODS[name].Config.__module__.startswith("guda."):
            assert fields(found[name]) == set(METHODS[name].Config.model_fields), name


def test_every_public_name_is_in_the_reference() -> None:
    entries = set(re.findall(r"heading: guda\.(\w+)", python_markdown()))
    assert entries == set(dir(guda)) - {"__version__"}


def test_every_result_is_shown_best_first() -> None:
    page = results_markdown()
    for path in RESULTS.glob("*.json"):
        assert f"[{path.name}]" in page, path
    assert re.findall(r"^## (.*)", leaderboard_markdown(), flags=re.M) == list(leaderboard())
    for m in measured():
        top = [entry.metrics["top1"].mean for _, entry in ranked(m.entry)]
        assert top == sorted(top, reverse=True)


def pages(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [p for item in (nav.values() if isinstance(nav, dict) else nav) for p in pages(item)]


def test_the_navigation_holds_every_page_once() -> None:
    nav = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    written = {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")}
    assert len(nav) == len(set(nav))
    assert set(nav) == written | set(GENERATED) | set(NAMED.values())


@pytest.mark.parametrize("page", ["README.md", *NAMED])
def test_links_of_pages_at_the_root_exist(page: str) -> None:
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        assert "://" in target or (ROOT / target).exists(), target
