"""Descriptors: from what is said of single images to a short vocabulary for every style, or read from a file.

    score(d, s) = freq(d, s) / support(d)^alpha
    freq(d, s)  = number of sampled images of style s that d was said of
    support(d)  = number of styles with freq(d, .) >= min_freq

A descriptor with support 0 (chance) or above max_support (says nothing of a style) is dropped; the best few of a style
are its vocabulary. Spellings of one descriptor are counted together first: `key` says which are one.

Files with descriptors:

    .json, .yaml   {style: [descriptor, ...]}          vocabularies, used as they are
                   {style: [[descriptor, ...], ...]}   one list for each described image, to be ranked
    .jsonl         {"style": ..., "descriptors": [...]} a line for each described image, to be ranked
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guda import parsing
from guda.errors import GudaError, choices, suggestion

Raw = Mapping[str, Sequence[Sequence[str]]]  # style -> for every sampled image, its descriptors

AMERICAN = {"colour": "color", "grey": "gray", "centre": "center", "jewellery": "jewelry", "moulded": "molded"}

ARTICLES = {"a", "an", "the"}

EMPTY_TAIL = {"style", "styles", "styled"}  # "cartoon style" is "cartoon"


def clean(text: str) -> str:
    """Lower case, single spaces, no comma and no outer punctuation, American spelling, no article before and no
    "style" after: fit to stand in a prompt, where commas separate. Empty where nothing is left."""
    text = unicodedata.normalize("NFKC", text).lower().replace("_", " ").replace(",", " ")
    words = [w for w in (word.strip(" .;:!?\"'`()[]{}*•-–—#") for word in text.split()) if w]
    for british, american in AMERICAN.items():
        words = [w.replace(british, american) for w in words]
    while len(words) > 1 and words[0] in ARTICLES:
        words = words[1:]
    while len(words) > 1 and words[-1] in EMPTY_TAIL:
        words = words[:-1]
    return " ".join(words)


def key(text: str) -> str:
    """Equal for what counts as one descriptor: hyphen or space, singular or simple plural. Never shown."""
    words = re.sub(r"[-–/]", " ", clean(text)).split()
    return " ".join(_singular(w) for w in words)


def _singular(word: str) -> str:
    if len(word) < 4 or word.endswith(("ss", "us", "is", "as")):
        return word
    if word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith(("shes", "ches", "xes", "sses")):
        return word[:-2]
    return word.removesuffix("s")


@dataclass(frozen=True)
class Ranked:
    """Vocabularies, best first, and why each other descriptor was left out of all of them."""

    vocabularies: dict[str, tuple[str, ...]]
    scores: dict[str, tuple[float, ...]]  # of the vocabularies
    dropped: dict[str, str]  # descriptor -> reason


def rank(raw: Raw, alpha: float = 0.5, min_freq: int = 2, max_support: int = 20, size: int = 5) -> Ranked:
    """Soft-ranking. Equal scores: the more frequent first, then the less shared, then by alphabet."""
    shown = _spellings(d for images in raw.values() for image in images for d in image)
    freq = {
        style: Counter(k for image in images for k in {key(d) for d in image} if k) for style, images in raw.items()
    }
    support = {k: sum(count[k] >= min_freq for count in freq.values()) for k in shown}
    dropped = {}
    for k, n in support.items():
        if n == 0:
            most = max(count[k] for count in freq.values())
            dropped[shown[k]] = f"named at most {most} time(s) in a style, fewer than min_freq = {min_freq}"
        elif n > max_support:
            dropped[shown[k]] = f"frequent in {n} styles, more than max_support = {max_support}"
    chosen: dict[str, list[tuple[float, str]]] = {}
    for style, count in freq.items():
        scored = [
            (count[k] / support[k] ** alpha, count[k], support[k], shown[k])
            for k in count
            if 0 < support[k] <= max_support
        ]
        scored.sort(key=lambda s: (-s[0], -s[1], s[2], s[3]))
        chosen[style] = [(score, name) for score, _, _, name in scored[:size]]
    used = {name for best in chosen.values() for _, name in best}
    dropped |= {
        name: f"among the first {size} of no style"
        for name in shown.values()
        if name not in used and name not in dropped
    }
    return Ranked(
        {style: tuple(name for _, name in best) for style, best in chosen.items()},
        {style: tuple(score for score, _ in best) for style, best in chosen.items()},
        dict(sorted(dropped.items())),
    )


def _spellings(said: Iterable[str]) -> dict[str, str]:
    """key -> the spelling most used over all styles; equally used: the shorter, then by alphabet."""
    count: dict[str, Counter[str]] = {}
    for d in said:
        if k := key(d):
            count.setdefault(k, Counter())[clean(d)] += 1
    return {k: min(c, key=lambda s: (-c[s], len(s), s)) for k, c in sorted(count.items())}


# --- files ----------------------------------------------------------------------------------------
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
        return parsing.read_text(file)
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
        value = (parsing.parse_json if file.suffix == ".json" else parsing.parse_yaml)(_text(file))
    except parsing.ParseError as e:
        raise GudaError("descriptors-file-syntax", f"{file} is not valid {file.suffix[1:].upper()} ({e})") from None
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
            row = parsing.parse_json(line)
            style, said = str(row["style"]), row["descriptors"]
        except (parsing.ParseError, KeyError, TypeError):
            said = None
        if not isinstance(said, list):
            raise GudaError(
                "descriptors-file-layout",
                f'{file}, line {number}: every line is {{"style": ..., "descriptors": [...]}}',
            )
        value.setdefault(style, []).append(said)
    return value


def check_styles(given: Mapping[str, object] | Sequence[str], styles: Sequence[str], where: str) -> None:
    """Every style described, and nothing else."""
    for name in given:
        if name not in styles:
            raise GudaError(
                "style-unknown", f"{where}: unknown style {name!r}{suggestion(name, styles)}; styles: {choices(styles)}"
            )
    for name in styles:
        if name not in given:
            raise GudaError("style-undescribed", f"{where}: style {name!r} is not described; add its descriptors")
