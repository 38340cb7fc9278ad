"""Prompts of a style x object set: one per training image, one to ask for every (style, object) (SPEC section 5).

A training image's prompt (subject template, three of its style's descriptors) is a function of (seed, image id), so
it is the same in every process and whatever other images there are. The evaluation prompt of (style, object) has the
descriptors of the first training prompt of that pair, in another order, in another template, without the style's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from guda.data.groups import choices
from guda.data.images import ImageData
from guda.data.templates import SUBJECTS, evaluation_prompt, training_prompt
from guda.diffusion.noise import generator
from guda.errors import GudaError, Mismatch
from guda.runs.run import Run
from guda.runs.store import digest, read_json, write_json

FILE = "prompts/prompts.json"


@dataclass(frozen=True, eq=False)
class Prompts:
    vocabularies: dict[str, tuple[str, ...]]  # style -> its descriptors, best first
    training: tuple[str, ...]  # one per training image, in the order of the data
    evaluation: dict[tuple[str, str], str]  # (style, object) -> prompt
    data: str  # digest of the images they were made for

    @cached_property
    def digest(self) -> str:
        return digest(self._json(), 64)

    @cached_property
    def objects(self) -> frozenset[str]:
        return frozenset(name for _, name in self.evaluation)

    def _json(self) -> dict[str, Any]:
        return {
            "data": self.data,
            "vocabularies": {style: list(words) for style, words in self.vocabularies.items()},
            "training": list(self.training),
            "evaluation": [[*pair, prompt] for pair, prompt in self.evaluation.items()],
        }

    def save(self, path: Path, **notes: Any) -> None:
        write_json(path, {**self._json(), "digest": self.digest, "notes": notes})

    @classmethod
    def load(cls, path: Path) -> Prompts:
        value = read_json(path)
        try:
            found = cls(
                {style: tuple(words) for style, words in value["vocabularies"].items()}, tuple(value["training"]),
                {(style, name): prompt for style, name, prompt in value["evaluation"]}, value["data"],
            )  # fmt: skip
            recorded = value["digest"]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise GudaError(f"{path} is not a set of prompts; make it again: guda prompts build") from None
        if found.digest != recorded:
            raise Mismatch(
                f"{path} has changed since it was written (digest)", found.digest, recorded, "build it again"
            )
        return found


def build_prompts(data: ImageData, vocabularies: Mapping[str, Sequence[str]], seed: int, per_prompt: int) -> Prompts:
    """`vocabularies`: the descriptors of every group of `data`."""
    if data.contents is None:
        raise GudaError("prompts name what each image shows: give data.content_by, e.g. level:2 for style/object/*.jpg")
    words = {}
    for style in data.groups.names:
        if style not in vocabularies:
            raise GudaError(f"style {style!r} has no descriptors; there are some for {choices(sorted(vocabularies))}")
        words[style] = tuple(vocabularies[style])
        if len(words[style]) < per_prompt:
            raise GudaError(
                f"style {style!r} has {len(words[style])} descriptors ({choices(words[style]) or 'none'}), a prompt takes "
                f"{per_prompt}; lower prompts.min_freq or per_prompt, describe more images, or give lists"
            )
    training, evaluation = [], {}
    for name, label, content in zip(data.ids, data.groups.labels, data.contents, strict=True):
        style = data.groups.names[label]
        g = generator(seed, "prompt", name)
        subject = SUBJECTS[int(g.integers(len(SUBJECTS)))]
        chosen = [words[style][int(i)] for i in g.permutation(len(words[style]))[:per_prompt]]
        training.append(training_prompt(subject, content, chosen))
        if (style, content) not in evaluation:
            evaluation[style, content] = evaluation_prompt(style, content, chosen)
    return Prompts(words, tuple(training), evaluation, data.digest)


@lru_cache(maxsize=4)
def _load(path: str, stamp: int) -> Prompts:
    return Prompts.load(Path(path))


def load_prompts(run: Run) -> Prompts:
    """The prompts of a run, built before by `guda prompts build`."""
    path = run.path(FILE)
    if not path.is_file():
        raise GudaError(f"{run.root} has no prompts yet; run: guda prompts build {run.root}")
    found = _load(str(path), path.stat().st_mtime_ns)
    if found.data != run.info["data_digest"]:
        raise Mismatch(f"{path} was made for other images", found.data, run.info["data_digest"], "build it again")
    return found
