"""Text from outside is read within limits, whatever it holds; a wrong one is a ParseError or a refusal, at once."""

import os
from pathlib import Path
from typing import Any

import pytest

from guda.config import check_numbers
from guda.data.folder import read_rows
from guda.files import read_json
from guda.parsing import DEPTH, ParseError, parse_json, parse_yaml, read_text
from guda.run.recipe import Recipe
from refusals import refused

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{c}: &{c} [{', '.join([f'*{p}'] * 9)}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True)
)

BAD_YAML = {
    "alias bomb": BOMB,
    "alias of itself": "a: &x [*x]",
    "merge bomb": BOMB.replace("a: &a [x, x, x, x, x, x, x, x, x]", "a: &a {x: 1}"),
    "month 13": "a: 2024-13-45",
    "5,000 digits": "a: " + "9" * 5000,
    "deep": "[" * 5000 + "]" * 5000,
    "just too deep": "[" * (DEPTH + 2) + "]" * (DEPTH + 2),
    "a Python object": "a: !!python/object/apply:os.system [x]",
    "NUL": "a: \0",
    "a time that is none": "a: !!timestamp x",
    "two documents": "--- a\n--- b",
    "a list as a key": "? [1]\n: 2",
    "a key twice": "a: 1\nb: 2\na: 3",
    "a key twice, further in": "a: {b: {c: 1, c: 1}}",
}


@pytest.mark.parametrize("text", BAD_YAML.values(), ids=BAD_YAML)
def test_bad_yaml_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ParseError) as error:
        parse_yaml(text)
    assert "\n" not in str(error.value)
    (tmp_path / "r.yaml").write_text(text)
    with refused("recipe-not-yaml"):
        Recipe.read(tmp_path / "r.yaml")


@pytest.mark.parametrize(("text", "line"), [("a: 1\n\tb: 2", 2), ("a: 1\nb: [1,\nc", 3), ("a: 1\nb: 2\na: 3", 3)])
def test_an_error_of_yaml_names_its_line(text: str, line: int) -> None:
    with pytest.raises(ParseError, match=rf"line {line}\b"):
        parse_yaml(text)


def test_a_time_of_day_is_no_number_of_minutes() -> None:
    assert parse_yaml("a: 1:30\nb: 1:30.5\nc: [12:00, 7]") == {"a": "1:30", "b": "1:30.5", "c": ["12:00", 7]}


@pytest.mark.parametrize("text", ["9" * 5000, "[" * 100_000, "[" * (DEPTH + 2) + "]" * (DEPTH + 2), "{", ""])
def test_bad_json_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ParseError):
        parse_json(text)
    (tmp_path / "a.json").write_text(text)
    with refused("file-damaged"):
        read_json(tmp_path / "a.json")
    (tmp_path / "metadata.jsonl").write_text(f'{{"file_name": "a.png", "g": {text}}}')
    with refused("metadata-json-invalid"):
        read_rows(tmp_path / "metadata.jsonl", ["a.png"])


def test_what_recipes_are_made_of_is_read() -> None:
    shared = "base: &b {lr: 1e-3, warm: true}\nx: *b\ny: {<<: *b, lr: 2}"
    assert parse_yaml(shared) == {
        "base": {"lr": "1e-3", "warm": True}, "x": {"lr": "1e-3", "warm": True}, "y": {"lr": 2, "warm": True}
    }  # fmt: skip
    assert parse_yaml("") is None
    assert parse_json("[" * DEPTH + "]" * DEPTH) != []


def test_only_regular_files_of_a_sane_size_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "itself").symlink_to("itself")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "large").write_text("x" * 11)
    for name, code in (("pipe", "file-not-regular"), ("zero", "file-not-regular"), ("itself", "file-unreadable")):
        with refused(code):
            read_text(tmp_path / name)
    with refused("file-too-large"):
        read_text(tmp_path / "large", limit=10)
    assert read_text(tmp_path / "large", limit=11) == "x" * 11


@pytest.mark.parametrize(
    ("value", "code", "name"),
    [
        ({"methods": {"shift": {"lr": float("inf")}}}, "setting-not-finite", r"methods\.shift\.lr"),
        ({"model": {"options": {"x": [1.0, float("nan")]}}}, "setting-not-finite", r"model\.options\.x\.1"),
        ({"scoring": {"shard": 10**12}}, "setting-too-large", r"scoring\.shard"),
        ({"scoring": {"shard": 10**4000}}, "setting-too-large", r"scoring\.shard"),
    ],
)
def test_numbers_that_no_setting_can_have_are_named(value: Any, code: str, name: str) -> None:
    with refused(code, match=name):
        check_numbers(value, "recipe.yaml")
    check_numbers({"training": {"seed": 2**62}, "lr": 1e300}, "recipe.yaml")
