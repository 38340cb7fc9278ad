"""Text that somebody else wrote: YAML, JSON, JSON lines and words, read within limits.

A recipe, a metadata table or a model's config may come from anywhere. Every one of them is read here, so that a file
which is too large, not a file at all (a pipe, a device), nested too deeply, or whose YAML aliases expand to gigabytes
is refused in one line. `ParseError` is what a text can be wrong by; callers give it their own code and words.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from guda.errors import GudaError, first_line

TEXT_BYTES = 512 * 2**20  # of JSON, tables and word lists; the prompts of a million images fit

YAML_BYTES = 4 * 2**20  # recipes, search spaces, descriptor lists; the parser reads about 0.1 MB a second

YAML_NODES = 200_000  # once every alias is written out

DEPTH = 100  # of nested lists and mappings


class ParseError(ValueError):
    """What is wrong with a text, in one line."""


def check_regular(path: Path, limit: int | None = None) -> None:
    """Refuse what is not a regular file (reading a pipe would wait for ever), or one of more than `limit` bytes."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        raise
    except OSError as e:  # a link to itself, a folder that may not be entered
        raise GudaError("file-unreadable", f"cannot read {path}: {e.strerror}") from None
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(f"{path} is a folder")
    if not stat.S_ISREG(found.st_mode):
        raise GudaError("file-not-regular", f"{path} is not a regular file (a pipe, a socket or a device); remove it")
    if limit is not None and found.st_size > limit:
        raise GudaError(
            "file-too-large", f"{path} has {found.st_size / 2**20:,.0f} MB, at most {limit / 2**20:,.0f} MB are read"
        )


def read_text(path: Path, limit: int = TEXT_BYTES, encoding: str = "utf-8") -> str:
    """The whole text. Raises FileNotFoundError, UnicodeDecodeError, or a GudaError for what is no readable file."""
    check_regular(path, limit)
    with open(path, encoding=encoding, newline="") as f:
        return f.read()


def parse_json(text: str) -> Any:
    """Raises ParseError."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ParseError(f"more than {DEPTH} levels of nesting") from None
    except ValueError as e:  # JSONDecodeError, and what Python says of an integer of 5,000 digits
        raise ParseError(first_line(e)) from None
    _check_depth(value)
    return value


def parse_json_object(text: str) -> dict[str, Any]:
    value = parse_json(text)
    if not isinstance(value, dict):
        raise ParseError("expected an object, {...}")
    return value


def parse_yaml(text: str) -> Any:
    """One document of plain values. Raises ParseError."""
    import yaml

    if len(text) > YAML_BYTES:
        raise ParseError(f"more than {YAML_BYTES / 2**20:.0f} MB of YAML")
    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _check_nodes(node)
            value = loader.construct_document(node)
        finally:
            loader.dispose()
    except RecursionError:
        raise ParseError(f"more than {DEPTH} levels of nesting") from None
    except ParseError:
        raise
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        where = "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"
        raise ParseError(f"{e.problem or e.context or first_line(e)}{where}") from None
    # a month 13, a number of 5,000 digits, a character that YAML does not allow: PyYAML raises what Python does
    except (yaml.YAMLError, ValueError, OverflowError, TypeError, KeyError, AttributeError) as e:
        raise ParseError(first_line(e)) from None
    return value


def read_json(path: Path, limit: int = TEXT_BYTES) -> Any:
    """Raises ParseError, FileNotFoundError or GudaError."""
    try:
        return parse_json(read_text(path, limit))
    except UnicodeDecodeError as e:
        raise ParseError(first_line(e)) from None


def read_yaml(path: Path) -> Any:
    """Raises ParseError, FileNotFoundError or GudaError."""
    try:
        return parse_yaml(read_text(path, YAML_BYTES))
    except UnicodeDecodeError as e:
        raise ParseError(first_line(e)) from None


def not_finite(value: Any, where: str = "") -> Iterator[str]:
    """Dotted names of the numbers among nested values that are NaN or infinite."""
    if isinstance(value, float) and not math.isfinite(value):
        yield where
    elif isinstance(value, dict):
        for key, sub in value.items():
            yield from not_finite(sub, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list | tuple):
        for i, sub in enumerate(value):
            yield from not_finite(sub, f"{where}.{i}" if where else str(i))


def whole_numbers(value: Any, where: str = "") -> Iterator[tuple[str, int]]:
    """(dotted name, value) of the whole numbers among nested values."""
    if isinstance(value, int) and not isinstance(value, bool):
        yield where, value
    elif isinstance(value, dict):
        for key, sub in value.items():
            yield from whole_numbers(sub, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list | tuple):
        for i, sub in enumerate(value):
            yield from whole_numbers(sub, f"{where}.{i}" if where else str(i))


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while level := [
        sub
        for item in level
        if isinstance(item, dict | list)
        for sub in (item.values() if isinstance(item, dict) else item)
        if isinstance(sub, dict | list)
    ]:
        if (depth := depth + 1) >= DEPTH:
            raise ParseError(f"more than {DEPTH} levels of nesting")


def _check_repeats(node: Any) -> None:
    """Refuse a key that a mapping has twice: PyYAML would drop the first one, a whole section perhaps, silently."""
    seen = set()
    for key, _ in node.value:
        if (name := (key.tag, str(key.value))) in seen:
            line = key.start_mark.line + 1
            raise ParseError(f"{key.value!r} is there twice, the second time in line {line}; join or remove one")
        seen.add(name)


NUMBERS, TEXT = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"), "tag:yaml.org,2002:str"


def _check_nodes(root: Any) -> None:
    """Refuse repeated keys, and aliases that contain themselves or expand to more than YAML_NODES, before anything is
    built of them."""
    from yaml import MappingNode

    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: Any, depth: int) -> int:
        if (key := id(node)) in sizes:
            return sizes[key]
        if key in open_nodes:
            raise ParseError("an alias that contains itself")
        if depth > DEPTH:
            raise ParseError(f"more than {DEPTH} levels of nesting")
        open_nodes.add(key)
        if isinstance(node, MappingNode):
            _check_repeats(node)
        elif node.tag in NUMBERS and ":" in node.value:
            node.tag = TEXT  # YAML 1.1 reads 1:30 as ninety; nobody who writes a recipe does
        parts = node.value if isinstance(node.value, list) else []
        total = 1
        for part in parts:
            for sub in part if isinstance(part, tuple) else (part,):
                total += size(sub, depth + 1)
        if total > YAML_NODES:
            raise ParseError(f"more than {YAML_NODES:,} values once its aliases are written out")
        open_nodes.discard(key)
        sizes[key] = total
        return total

    size(root, 0)
