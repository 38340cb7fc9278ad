"""Descriptors: from what a captioner says of single images to a short vocabulary for every style (SPEC section 5).

    score(d, s) = freq(d, s) / support(d)^alpha
    freq(d, s)  = number of sampled images of style s that d was said of
    support(d)  = number of styles with freq(d, .) >= min_freq

A descriptor with support 0 (chance) or above max_support (says nothing of a style) is dropped; the best few of a style
are its vocabulary. Spellings of one descriptor are counted together first: `key` says which are one.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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
