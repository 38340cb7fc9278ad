"""Captioners: who says what a style looks like (SPEC section 5).

The seam is `Raw`: for every style, the descriptors of each of some sampled images, as said. What follows (spellings,
ranking, vocabularies) is the same whoever spoke. A captioner is a function (data, config) -> Raw, or ready vocabularies
(`file`), one module each. Which images are looked at is keyed by (seed, style), image by image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from guda.config import PromptsConfig
from guda.data.descriptors import Ranked, Raw, rank
from guda.data.images import ImageData
from guda.errors import GudaError, choices, suggestion
from guda.files import ordered


def vocabularies(data: ImageData, config: PromptsConfig) -> Ranked:
    """The descriptors of every style, as `config` says who finds them."""
    if config.lists is not None:
        from guda.data.captioners.file import ready_lists

        check_styles(config.lists, data.groups.leaf_names, "prompts.lists")
        found = ready_lists(config.lists, data.groups.leaf_names, "prompts.lists")
        return Ranked(found, dict.fromkeys(found, ()), {})
    if config.source == "file":
        from guda.data.captioners.file import read_descriptors

        ready, raw = read_descriptors(config.path or "", data.groups.leaf_names)
        if ready is not None:
            return Ranked(ready, dict.fromkeys(ready, ()), {})
    elif config.source == "similarity":
        from guda.data.captioners.similarity import describe as by_similarity

        raw = by_similarity(data, config)
    else:
        from guda.data.captioners.vlm import describe as by_vlm

        raw = by_vlm(data, config)
    assert raw is not None
    return rank(raw, config.alpha, config.min_freq, config.max_support, config.vocabulary)


def sampled(data: ImageData, style: str, n: int, seed: int) -> list[int]:
    """Indices of at most `n` images of a style, in data order; drawn by (seed, style, image id)."""
    members = {data.ids[i]: int(i) for i in data.groups.members(data.groups.index(style))}
    return sorted(members[name] for name in ordered(list(members), seed, "described images", style)[:n])


def check_styles(given: Mapping[str, object] | Sequence[str], styles: Sequence[str], where: str) -> None:
    """Every style described, and nothing else."""
    for name in given:
        if name not in styles:
            raise GudaError(
                "style-unknown", f"{where}: unknown style {name!r}; styles: {choices(styles)}{suggestion(name, styles)}"
            )
    for name in styles:
        if name not in given:
            raise GudaError("style-undescribed", f"{where}: style {name!r} is not described; add its descriptors")


__all__ = ["Raw", "check_styles", "sampled", "vocabularies"]
