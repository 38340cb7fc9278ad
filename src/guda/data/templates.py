"""Prompt templates of a style x object set: writing prompts, and reading the object back out of them.

    training    "{subject}, artistic style featuring {d1}, {d2}, {d3}", subject: one of SUBJECTS
    evaluation  "An artwork of {object}, with {d1}, {d2}, {d3}", order from a hash of (style, object), no style name

Reading returns the bare object whatever the template was: an anchor of "A composition with Dogs, ..." is about Dogs and
never about "A composition with Dogs".
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from guda.errors import GudaError

SUBJECTS = (
    "A depiction of {object}",
    "A detailed view of {object}",
    "A composition with {object}",
    "A rendering of {object}",
    "An image showing {object}",
    "{object} as the main subject",
    "{object} featured in the scene",
    "{object}",  # last: every subject can be read as a bare object
)

ANCHOR = SUBJECTS[0]  # of the prompts that anchors are made of

ARTWORK = "An artwork of {object}"

FEATURING = ", artistic style featuring "

WITH = ", with "


@dataclass(frozen=True)
class Parsed:
    """What a prompt says: the bare object, its style descriptors in order, and the prompt without its style part."""

    object: str
    descriptors: tuple[str, ...]
    subject: str


def training_prompt(template: str, object: str, descriptors: Sequence[str]) -> str:
    return template.format(object=object) + FEATURING + ", ".join(descriptors)


def evaluation_prompt(style: str, object: str, descriptors: Sequence[str]) -> str:
    """The style is not named: it only says in which order the descriptors come."""
    return ARTWORK.format(object=object) + WITH + ", ".join(shuffled(style, object, descriptors))


def shuffled(style: str, object: str, descriptors: Sequence[str]) -> tuple[str, ...]:
    """The permutation that sha256 of (style, object) numbers, among the n! in factorial base; the same anywhere."""
    text = f"{len(style)}:{style}{object}"  # the length keeps ("ab", "c") and ("a", "bc") apart
    number = int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")
    left, out = list(descriptors), []
    while left:
        number, i = divmod(number, len(left))
        out.append(left.pop(i))
    return tuple(out)


def parse(prompt: str, objects: Collection[str] | None = None) -> Parsed:
    """Read a training or an evaluation prompt.

    A prompt may allow several readings ("A depiction of A rendering of X", an object with ", with " in it). The first
    whose object is among `objects` is taken, else the first of all: training before evaluation, the last place where a
    style part may begin, templates in the order of SUBJECTS.
    """
    known = frozenset(objects or ())
    readings = list(_readings(prompt.strip()))
    if not readings:
        raise GudaError(
            "prompt-unparsable",
            f"prompt {prompt!r} cannot be read; expected '{{subject}}{FEATURING}d1, d2, d3' with a subject like "
            f"'{ANCHOR}' (or {', '.join(repr(s) for s in SUBJECTS[1:])}), or '{ARTWORK}{WITH}d1, d2, d3'",
        )
    return next((r for r in readings if r.object in known), readings[0])


def _readings(prompt: str) -> Iterator[Parsed]:
    for marker, templates in ((FEATURING, SUBJECTS), (WITH, (ARTWORK,))):
        place = prompt.rfind(marker)
        while place > 0:
            subject, rest = prompt[:place], prompt[place + len(marker) :].removesuffix(".")
            descriptors = tuple(d.strip() for d in rest.split(","))
            if all(descriptors):
                yield from (Parsed(found, descriptors, subject) for t in templates if (found := _inside(t, subject)))
            place = prompt.rfind(marker, 0, place + len(marker) - 1)


def _inside(template: str, subject: str) -> str:
    """What stands for {object}; empty where the template does not fit."""
    before, after = template.split("{object}")
    if len(subject) <= len(before) + len(after) or not (subject.startswith(before) and subject.endswith(after)):
        return ""
    found = subject[len(before) : len(subject) - len(after)]
    return found if found == found.strip() else ""
