"""Prompts of a style x object set: one for every training image, one for every (style, object) to evaluate.

Style = group, object = content. The template and the descriptors of an image's prompt are drawn by (seed, image id), so
they do not depend on what other images there are; the evaluation prompt of (style, object) has the descriptors of the
first such image's training prompt. Kept in RUN/prompts/prompts.json.

Prompts are written from templates, and the object is read back out of them:

    training    "{subject}, artistic style featuring {d1}, {d2}, {d3}", subject: one of SUBJECTS
    evaluation  "An artwork of {object}, with {d1}, {d2}, {d3}", order from a hash of (style, object), no style name

Reading returns the bare object whatever the template was: an anchor of "A composition with Dogs, ..." is about Dogs and
never about "A composition with Dogs".
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from guda import files
from guda.config import PromptsConfig
from guda.data.descriptors import key
from guda.data.images import ImageData
from guda.errors import GudaError, Mismatch, choices, suggestion
from guda.files import ordered

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


@dataclass(frozen=True)
class Prompts:
    """`training`: one prompt per training image, in data order. `evaluation`: (style, object) -> prompt."""

    vocabularies: dict[str, tuple[str, ...]]
    training: tuple[str, ...]
    evaluation: dict[tuple[str, str], str]
    data_digest: str
    dropped: dict[str, str] = field(default_factory=dict)  # descriptors left out, and why; changes nothing

    @classmethod
    def from_lists(cls, data: ImageData, lists: Mapping[str, Sequence[str]], seed: int = 0) -> Prompts:
        """Prompts of `data` (which must know its contents) from ready descriptors of every style."""
        return build_prompts(data, PromptsConfig(source="file", lists=dict(lists), seed=seed), lists)  # type: ignore[call-arg, arg-type]

    @cached_property
    def objects(self) -> tuple[str, ...]:
        """Every object once, in the order of `evaluation`."""
        return tuple(dict.fromkeys(o for _, o in self.evaluation))

    @cached_property
    def digest(self) -> str:
        """Of everything that reaches a model."""
        value = self._json()
        return files.digest(
            [value["vocabularies"], value["training"], value["evaluation"], self.data_digest], length=64
        )

    def evaluation_prompts(self, groups: Sequence[str] | None = None) -> list[tuple[str, str, str]]:
        """(style, object, prompt) of these styles, or of all: styles in their order, objects sorted as in the data."""
        for name in groups or ():
            if name not in self.vocabularies:
                known = self.vocabularies
                raise GudaError(
                    "style-unknown", f"no prompts of style {name!r}{suggestion(name, known)}; styles: {choices(known)}"
                )
        wanted = set(self.vocabularies if groups is None else groups)
        return [(s, o, prompt) for (s, o), prompt in self.evaluation.items() if s in wanted]

    def save(self, path: Path) -> None:
        files.write_json(path, {"digest": self.digest, **self._json(), "dropped": self.dropped})

    @classmethod
    def load(cls, path: Path, data_digest: str) -> Prompts:
        """Refuses a damaged file, and prompts of other data."""
        value = files.read_json(path)
        fix = "delete it and run: guda prompts build"
        try:
            prompts = cls(
                {s: tuple(words) for s, words in value["vocabularies"].items()},
                tuple(value["training"]),
                {(s, o): prompt for s, o, prompt in value["evaluation"]},
                value["data"],
                value["dropped"],
            )
            noted, found = value["digest"], prompts.digest
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise GudaError("prompts-damaged", f"{path} is damaged ({e!r}); {fix}") from None
        if noted != found:
            raise Mismatch("prompts-damaged", f"{path} was changed or damaged: digest", found, noted, fix)
        if prompts.data_digest != data_digest:
            raise Mismatch(
                "prompts-other-images",
                f"{path} has prompts of other images: data",
                prompts.data_digest,
                data_digest,
                fix,
            )
        return prompts

    def _json(self) -> dict[str, Any]:
        return {
            "data": self.data_digest,
            "vocabularies": {s: list(words) for s, words in self.vocabularies.items()},
            "training": list(self.training),
            "evaluation": [[s, o, prompt] for (s, o), prompt in self.evaluation.items()],
        }


def build_prompts(
    data: ImageData,
    config: PromptsConfig,
    vocabularies: Mapping[str, Sequence[str]],
    dropped: Mapping[str, str] | None = None,
) -> Prompts:
    """Prompts of these images, from the vocabulary of every style."""
    if data.contents is None:
        raise GudaError(
            "contents-missing",
            f"data {data.name!r} do not say what each image shows, so no prompts can be made; "
            "set data.content_by (e.g. level:2 for style/object/*.jpg)",
        )
    words = {style: _vocabulary(style, vocabularies, config) for style in data.groups.leaf_names}
    labels = [data.groups.names[k] for k in data.groups.labels]
    training: list[str] = []
    first: dict[tuple[str, str], list[str]] = {}
    for name, style, thing in zip(data.ids, labels, data.contents, strict=True):
        template = ordered(SUBJECTS, config.seed, "template", name)[0]
        chosen = ordered(words[style], config.seed, "descriptors", name)[: config.per_prompt]
        training.append(training_prompt(template, thing, chosen))
        first.setdefault((style, thing), chosen)
    evaluation = {
        (style, thing): evaluation_prompt(style, thing, first[style, thing])
        for style in words
        for thing in dict.fromkeys(data.contents)
        if (style, thing) in first
    }
    objects = set(data.contents)
    pairs = [*zip(training, data.contents, strict=True), *((p, thing) for (_, thing), p in evaluation.items())]
    for prompt, thing in pairs:
        if (found := parse(prompt, objects).object) != thing:
            raise GudaError(
                "objects-ambiguous",
                f"objects {thing!r} and {found!r} cannot be told apart in the prompt {prompt!r}; rename one of them",
            )
    return Prompts(words, tuple(training), evaluation, data.digest, dict(dropped or {}))


def _vocabulary(style: str, vocabularies: Mapping[str, Sequence[str]], config: PromptsConfig) -> tuple[str, ...]:
    found = tuple(vocabularies.get(style, ()))
    if len({key(d) for d in found}) < config.per_prompt:
        more = {
            "file": f"add descriptors to {config.path or 'prompts.lists'}",
            "similarity": "raise images_per_style or words_per_image, or lower min_freq",
            "vlm": "raise images_per_style or words_per_image, or lower min_freq",
        }[config.source]
        raise GudaError(
            "descriptors-too-few",
            f"style {style!r} has {len(found)} descriptor(s) ({choices(found) or 'none'}) and a prompt takes "
            f"{config.per_prompt}; {more} (prompts section of the recipe)",
        )
    return found
