"""The command-line reference, from the parser itself: every command, argument and option with its help."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import typer


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """(words after `guda`, click command), groups before what is in them."""

    def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
        if words:
            yield words, command
        for name, sub in getattr(command, "commands", {}).items():
            yield from walk(sub, (*words, name))

    yield from walk(root(), ())


def root() -> Any:
    from guda.cli.main import app

    return typer.main.get_command(app)


def cli_markdown() -> str:
    """The whole page."""
    parts = [
        "# Command line",
        "Generated from the parser. `guda COMMAND --help` shows the same. A mistake of the user is one line on stderr "
        "with a stable code in brackets, and exit code 2.",
        *_options(root(), "guda"),
    ]
    for words, command in commands():
        name = " ".join(("guda", *words))
        parts.append(f"{'#' * (len(words) + 1)} {name}")
        if text := (command.help or "").strip():
            parts.append(text)
        if not getattr(command, "commands", None):
            parts += [f"    {_usage(name, command)}", *_options(command, name)]
    return "\n\n".join(parts) + "\n"


def _usage(name: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    shown = [p.name.upper() if p.required else f"[{p.name.upper()}]" for p in arguments]
    return " ".join(
        [name, *(f"{s}..." if p.nargs == -1 else s for s, p in zip(shown, arguments, strict=True)), "[OPTIONS]"]
    )


def _options(command: Any, name: str) -> list[str]:
    """One table of arguments and options; nothing for a command that has none."""
    rows = []
    for p in command.params:
        if getattr(p, "hidden", False):
            continue
        if p.param_type_name == "argument":
            what = f"`{p.name.upper()}`"
        else:
            what = ", ".join(f"`{o}`" for o in (*p.opts, *p.secondary_opts))
            if not p.is_flag:
                what += f" {_value(p)}"
        rows.append(f"| {what} | {_cell(p.help or '')} | {_default(p)} |")
    return ["| option | meaning | default |\n|---|---|---|\n" + "\n".join(rows)] if rows else []


def _value(option: Any) -> str:
    """What the option takes: its metavar, its choices or the name of its type."""
    if hasattr(option, "type_descriptor"):
        kind = option.type_descriptor.annotation
        name, choices = kind.__name__, get_args(kind) if get_origin(kind) is Literal else ()
    else:  # typer before 0.20
        name, choices = option.type.name, getattr(option.type, "choices", ())
    return f"`{option.metavar or '|'.join(choices) or name.upper()}`".replace("|", r"\|")


def _default(p: Any) -> str:
    if p.required:
        return "required"
    value = p.default
    if value is None or value is False or callable(value) or "unset" in str(value).lower():
        return ""
    return f"`{value}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")
