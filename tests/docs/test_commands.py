"""Every `guda ...` command that README and docs show exists, with its options; complete ones are parsed as typed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_reference import root

import guda

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

INLINE = re.compile(r"(?<!`)`(guda [^`]+)`(?!`)")
INDENTED = re.compile(r"^ {4,}(guda .+)$", re.M)
FENCED = re.compile(r"^```(?:bash|sh|console)\n(.*?)^```", re.M | re.S)


def shown(text: str) -> Iterator[tuple[str, bool]]:
    """(command, whether it is a line of a code block and so complete)."""
    blocks = [*FENCED.findall(text), *INDENTED.findall(text)]
    for line in "\n".join(blocks).splitlines():
        if line.startswith("guda "):
            yield line, True
    for match in INLINE.finditer(text):
        yield " ".join(match[1].split()), False


def problem(line: str, complete: bool, program: Any) -> str | None:
    """What is wrong with a command line; None if nothing is. Nothing is run."""
    words = shlex.split(line, comments=True)[1:]
    command, name = program, ["guda"]
    while words and getattr(command, "commands", None) and not words[0].startswith("-"):
        word = words.pop(0)
        if word.isupper() or "|" in word or word == "...":  # guda COMMAND, guda bank ls|verify
            return None
        if word not in command.commands:
            return f"no command {word!r} of {' '.join(name)}"
        command, name = command.commands[word], [*name, word]
    known = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"-h", "--help"}
    for word in words:
        option = word.partition("=")[0]
        if re.fullmatch(r"--?[a-z][a-z-]*", option) and option not in known:
            return f"{' '.join(name)} has no option {option}"
    if complete and not getattr(command, "commands", None) and "..." not in words:
        try:
            command.make_context(" ".join(name), list(words))
        except Exception as e:  # click's usage errors; typer brings a click of its own
            return f"{type(e).__name__}: {getattr(e, 'message', e)}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_on_the_page_exist(page: Path) -> None:
    program = root()
    found = [(line, problem(line, complete, program)) for line, complete in shown(page.read_text())]
    assert [f"{line}: {told}" for line, told in found if told] == []


def test_a_wrong_command_is_noticed() -> None:
    program = root()
    for line in ("guda scor RUN", "guda score RUN --nope", "guda bank list RUN", "guda score RUN --queries"):
        assert problem(line, True, program), line
    assert problem("guda score RUN --method retrack -q generated/  # comment", True, program) is None
    assert sum(1 for page in PAGES for _ in shown(page.read_text())) > 100


def test_names_in_python_examples_and_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    for page in PAGES:
        text = page.read_text()
        for block in re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S):
            names = set(re.findall(r"(?<![\w.])guda\.([A-Za-z]\w*)(?=[.(])", block)) - {"errors"}
            modules = {p.stem for p in (ROOT / "src" / "guda").iterdir()}
            assert names <= set(dir(guda)) | modules, page
        asked = re.findall(r"(?:^ {4}|`)make ([a-z0-9-]+)", text, flags=re.M)
        assert set(asked) <= targets, page
