"""Descriptors from a file: ready vocabularies, or what somebody said of single images.

.json, .yaml   {style: [descriptor, ...]}          vocabularies, used as they are
               {style: [[descriptor, ...], ...]}   one list for each described image, to be ranked
.jsonl         {"style": ..., "descriptors": [...]} a line for each described image, to be ranked
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from guda.data.captioners import Raw, check_styles
from guda.data.descriptors import clean, key
from guda.errors import GudaError


def read_descriptors(
    path: str | Path, styles: tuple[str, ...]
) -> tuple[dict[str, tuple[str, ...]], None] | tuple[None, Raw]:
    """(vocabularies, None) or (None, raw lists), for exactly these styles, in their order."""
    file = Path(path).expanduser()
    value = _lines(file) if file.suffix == ".jsonl" else _mapping(file)
    check_styles(value, styles, str(file))
    kinds = {isinstance(item, list) for said in value.values() for item in said}
    if len(kinds) > 1:
        raise GudaError(
            "descriptors-mixed",
            f"{file}: either every style has one list of descriptors, or every style a list per image",
        )
    if kinds == {True}:
        return None, {style: [[_word(d, file, style) for d in image] for image in value[style]] for style in styles}
    return ready_lists(value, styles, file), None


def ready_lists(
    value: Mapping[str, Sequence[Any]], styles: Sequence[str], where: str | Path
) -> dict[str, tuple[str, ...]]:
    """Descriptors that are vocabularies already, each in one spelling."""
    ready = {}
    for style in styles:
        words = [_word(d, where, style) for d in value[style]]
        unlike = {key(w): w for w in reversed(words)}  # of two spellings the first stays
        ready[style] = tuple(w for w in words if unlike.pop(key(w), None) is not None)
    return ready


def _word(value: Any, file: str | Path, style: str) -> str:
    if not isinstance(value, str) or not (word := clean(value)):
        raise GudaError(
            "descriptor-invalid",
            f"{file}: style {style!r} has the descriptor {value!r}; descriptors are non-empty texts",
        )
    return word


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except FileNotFoundError:
        raise GudaError(
            "descriptors-file-missing", f"descriptor file {file} does not exist; see prompts.path in the recipe"
        ) from None
    except (OSError, UnicodeDecodeError) as e:
        raise GudaError("descriptors-file-unreadable", f"descriptor file {file} cannot be read ({e})") from None


def _mapping(file: Path) -> dict[str, list[Any]]:
    if file.suffix not in (".json", ".yaml", ".yml"):
        raise GudaError("descriptors-file-type", f"descriptor file {file} must be .json, .yaml or .jsonl")
    try:
        value = json.loads(_text(file)) if file.suffix == ".json" else yaml.safe_load(_text(file))
    except (json.JSONDecodeError, yaml.YAMLError) as e:
        raise GudaError(
            "descriptors-file-syntax", f"{file} is not valid {file.suffix[1:].upper()} ({str(e).splitlines()[0]})"
        ) from None
    if not isinstance(value, dict) or not all(isinstance(said, list) for said in value.values()):
        raise GudaError(
            "descriptors-file-layout", f"{file} must map every style to a list: {{style: [descriptor, ...]}}"
        )
    return {str(style): said for style, said in value.items()}  # YAML reads 1920 as a number


def _lines(file: Path) -> dict[str, list[Any]]:
    value: dict[str, list[Any]] = {}
    for number, line in enumerate(_text(file).splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            style, said = str(row["style"]), row["descriptors"]
        except (json.JSONDecodeError, KeyError, TypeError):
            said = None
        if not isinstance(said, list):
            raise GudaError(
                "descriptors-file-layout",
                f'{file}, line {number}: every line is {{"style": ..., "descriptors": [...]}}',
            )
        value.setdefault(style, []).append(said)
    return value
