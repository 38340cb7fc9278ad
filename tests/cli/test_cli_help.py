"""Help at 80 columns, and commands that must answer without importing torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from tinyrun import copy_run

from guda.cli.main import COMMANDS, app
from guda.method_index import declared, method_index

PANELS = ("Start", "Work", "Judge", "Paper", "Cluster")


def said(*args: object, code: str = "from guda.cli.main import main; main()") -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "COLUMNS": "80", "TERMINAL_WIDTH": "80", "NO_COLOR": "1"}
    command = [sys.executable, "-c", f"import sys; sys.argv[0] = 'guda'\n{code}", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, env=environ, timeout=600, check=True)


def test_commands_are_in_panels_and_have_one_line_each() -> None:
    text = said("--help").stdout
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert [p for p in re.findall(r"╭─ (\w+)", text) if p != "Options"] == list(PANELS)
    listed = [line.strip("│ ").split("  ")[0] for line in lines if re.match(r"│ [a-z]", line)]
    assert len(listed) == len(COMMANDS) + 2
    for _, command, short in COMMANDS:
        name = command.__name__.rstrip("_")
        assert any(re.match(rf"│ {name} +{re.escape(short)} +│", line) for line in lines), name


@pytest.mark.parametrize("command", sorted(c.name or c.callback.__name__ for c in app.registered_commands))  # type: ignore[union-attr]
def test_no_option_is_broken_across_lines(command: str) -> None:
    from typer.main import get_command

    text = said(command, "--help").stdout
    assert max(map(len, text.splitlines())) <= 80
    for parameter in get_command(app).commands[command].params:  # type: ignore[attr-defined]
        for option in parameter.opts:
            assert not option.startswith("-") or re.search(rf"(?<!\S){re.escape(option)}(?!\S)", text), option


def test_the_list_of_methods_is_the_registry_and_imports_nothing_heavy() -> None:
    assert method_index() == declared(), "write it again: python -m guda.method_index"
    loaded = "import atexit; atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr))\n"
    found = said("methods", code=f"{loaded}from guda.cli.main import main; main()")
    assert found.stderr == "False\n"
    assert max(map(len, found.stdout.splitlines())) <= 80
    assert all(re.search(rf"^  {re.escape(m)} ", found.stdout, re.MULTILINE) for m in method_index())


def test_status_imports_nothing_heavy_once_it_was_asked(tmp_path) -> None:  # type: ignore[no-untyped-def]
    run = copy_run(tmp_path / "run")
    loaded = "import atexit; atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr))\n"
    code = f"{loaded}from guda.cli.main import main; main()"
    first, again = (said("status", run.root, "--json", code=code) for _ in range(2))
    assert (first.stderr, again.stderr) == ("True\n", "False\n")
    assert first.stdout == again.stdout
    next(run.path("artifacts").glob("retrack-*/*")).unlink()
    missing = said("status", run.root, code=code)
    assert missing.stderr == "False\n"
    assert "retrack: 2/3 fitted" in missing.stdout
    recipe = run.path("recipe.yaml")
    recipe.write_text(recipe.read_text().replace("rounds: 2", "rounds: 3"))
    assert said("status", run.root, code=code).stderr == "True\n"  # its tasks are listed anew
