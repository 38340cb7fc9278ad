"""Pages of the site that are not files of docs/."""

from __future__ import annotations

from cli_reference import cli_markdown
from findings import findings_markdown
from notebook_pages import tutorial_pages
from python_reference import python_markdown
from recipe_reference import methods_markdown, recipe_markdown
from results_pages import leaderboard_markdown, results_markdown

GENERATED = {
    "reference/cli.md": cli_markdown,
    "reference/python.md": python_markdown,
    "reference/recipe.md": recipe_markdown,
    "reference/methods.md": methods_markdown,
    "results/index.md": results_markdown,
    "results/leaderboard.md": leaderboard_markdown,
    "findings.md": findings_markdown,
} | tutorial_pages()

# repository file -> page of the site
NAMED = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
