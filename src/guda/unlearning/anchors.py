"""Anchors: what a prompt of the forget style should mean once that style is gone.

Paper: "Conditional Unlearning Strategy for GUDA-C".

    pi(s | c_f) = (1 - eta) softmax_s(tau cos(e_f, e_s)) + eta / |retain|        s over the retain styles
    e_f = unit(mean of unit embeddings of the prompt's descriptors),  e_s = the same over the vocabulary of style s

`weighted` draws a retain style from pi and says the prompt's object with that style's descriptors; `uniform` draws from
1/|retain|; `removed` keeps the prompt and drops its style part. What is drawn is a function of (prompt, key).

Of a class-conditional model whose group is a class, anchors are labels: another class that is left, e_f and e_s being
the network's own label embeddings, any other class, or the null label.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Literal, Protocol

import numpy as np
from pydantic import Field

from guda.config import Config
from guda.data.prompts import ANCHOR, parse, training_prompt
from guda.data.text import Embed, unit_rows
from guda.diffusion.noise import generator
from guda.errors import GudaError, choices, suggestion

Strategy = Literal["weighted", "uniform", "removed"]


class AnchorsConfig(Config):
    tau: float = Field(2.0, ge=0, description="Sharpness of the choice among retain styles; 0 is uniform.")
    eta: float = Field(0.1, ge=0, le=1, description="Share of the choice that is uniform; 1 is uniform.")
    encoder: str = Field("minilm", description="Text encoder of the similarity: minilm or clip:NAME_OR_PATH.")
    n_descriptors: int = Field(3, gt=0, description="Descriptors of an anchor prompt.")


class Anchor(Protocol):
    """One strategy for one forget style."""

    def probabilities(self, prompt: str) -> dict[str, float] | None:
        """Of every retain style; None where no style is drawn."""

    def draw(self, prompt: str, key: Sequence[str | int]) -> str:
        """The anchor prompt c_a of a forget prompt c_f."""


class Weighted:
    """Retain styles that sound alike are drawn more often."""

    def __init__(
        self,
        vocabularies: Mapping[str, Sequence[str]],
        forget: str,
        retain: Sequence[str],
        embed: Embed | None,
        config: AnchorsConfig,
        objects: Collection[str] | None = None,
    ) -> None:
        _check(vocabularies, forget, retain)
        self.vocabularies = {s: tuple(vocabularies[s]) for s in retain}
        self.forget, self.retain, self.config, self.objects = forget, tuple(retain), config, objects
        for style, words in self.vocabularies.items():
            if len(words) < config.n_descriptors:
                raise GudaError(
                    "descriptors-too-few",
                    f"style {style!r} has {len(words)} descriptors, an anchor takes {config.n_descriptors}; "
                    "lower n_descriptors or rebuild the prompts with a larger vocabulary",
                )
        self._embed = embed
        self._styles = self._prototypes()
        # many images of a style share a prompt's descriptors; order does not matter to their mean
        self._pi = lru_cache(maxsize=None)(self._distribution)

    def _prototypes(self) -> np.ndarray | None:
        """e_s, unit rows [retain, d]."""
        assert self._embed is not None
        return np.stack([mean_direction(self._embed, words) for words in self.vocabularies.values()])

    def _distribution(self, descriptors: frozenset[str]) -> np.ndarray:
        assert self._embed is not None
        assert self._styles is not None
        cosines = self._styles.astype(np.float64) @ mean_direction(self._embed, sorted(descriptors)).astype(np.float64)
        logits = self.config.tau * cosines
        soft = np.exp(logits - logits.max())
        return (1 - self.config.eta) * soft / soft.sum() + self.config.eta / len(self.retain)

    def probabilities(self, prompt: str) -> dict[str, float] | None:
        pi = self._pi(frozenset(parse(prompt, self.objects).descriptors))
        return dict(zip(self.retain, pi.tolist(), strict=True))

    def draw(self, prompt: str, key: Sequence[str | int]) -> str:
        thing = parse(prompt, self.objects).object
        pi = self.probabilities(prompt)
        assert pi is not None
        rng = generator(*key, "anchor", prompt)
        words = self.vocabularies[_pick(pi, rng)]
        chosen = [words[i] for i in rng.permutation(len(words))[: self.config.n_descriptors]]
        return training_prompt(ANCHOR, thing, chosen)


class Uniform(Weighted):
    """Any retain style; needs no text encoder."""

    def _prototypes(self) -> None:
        return None

    def _distribution(self, descriptors: frozenset[str]) -> np.ndarray:
        return np.full(len(self.retain), 1 / len(self.retain))


class Removed:
    """The prompt's subject unchanged, without any style."""

    def __init__(self, objects: Collection[str] | None = None) -> None:
        self.objects = objects

    def probabilities(self, prompt: str) -> dict[str, float] | None:
        return None

    def draw(self, prompt: str, key: Sequence[str | int]) -> str:
        return parse(prompt, self.objects).subject


def _pick(pi: Mapping[str, float], rng: np.random.Generator) -> str:
    edges, names = np.cumsum(list(pi.values())), list(pi)
    k = int(np.searchsorted(edges, rng.random() * edges[-1], side="right"))
    return names[min(k, len(names) - 1)]


def need_null(null: str | None) -> None:
    if null is None:
        raise GudaError(
            "null-label-missing", "anchors-removed redirects to the null label, and every label of this model is a "
            "class; use anchors-uniform",
        )  # fmt: skip


class Labels:
    """Another label in the place of a class that is gone. `embeddings`: the network's, [labels, d]."""

    def __init__(
        self, strategy: Strategy, gone: Sequence[str], retain: Sequence[str], embeddings: np.ndarray, null: str | None,
        config: AnchorsConfig,
    ) -> None:  # fmt: skip
        if strategy == "removed":
            need_null(null)
        if not retain:
            raise GudaError("anchor-styles-too-few", f"no class is left to be an anchor of {', '.join(gone)}")
        self.strategy, self.retain, self.null, self.config = strategy, tuple(retain), null, config
        self.units = unit_rows(np.asarray(embeddings, np.float64))

    def probabilities(self, prompt: str) -> dict[str, float] | None:
        if self.strategy == "removed":
            return None
        n = len(self.retain)
        if self.strategy == "uniform":
            return dict.fromkeys(self.retain, 1 / n)
        logits = self.config.tau * (self.units[[int(s) for s in self.retain]] @ self.units[int(prompt)])
        soft = np.exp(logits - logits.max())
        pi = (1 - self.config.eta) * soft / soft.sum() + self.config.eta / n
        return dict(zip(self.retain, pi.tolist(), strict=True))

    def draw(self, prompt: str, key: Sequence[str | int]) -> str:
        pi = self.probabilities(prompt)
        return str(self.null) if pi is None else _pick(pi, generator(*key, "anchor", prompt))


def make_anchor(
    strategy: Strategy,
    vocabularies: Mapping[str, Sequence[str]],
    forget: str,
    retain: Sequence[str],
    embed: Embed | None,
    config: AnchorsConfig,
    objects: Collection[str] | None = None,
) -> Anchor:
    """`embed` (data/text.py's text_encoder) is asked by `weighted` only. `objects` settle how prompts are read."""
    if strategy == "removed":
        _check(vocabularies, forget, retain)
        return Removed(objects)
    if strategy == "weighted" and embed is None:
        raise GudaError("text-encoder-missing", "anchors `weighted` need a text encoder; give one, or use `uniform`")
    return (Weighted if strategy == "weighted" else Uniform)(vocabularies, forget, retain, embed, config, objects)


def mean_direction(embed: Embed, descriptors: Sequence[str]) -> np.ndarray:
    """Unit embeddings, averaged, brought to unit length again: [d]."""
    return unit_rows(unit_rows(embed(list(descriptors))).mean(axis=0, keepdims=True))[0]


def _check(vocabularies: Mapping[str, Sequence[str]], forget: str, retain: Sequence[str]) -> None:
    for style in (forget, *retain):
        if style not in vocabularies:
            known = choices(vocabularies)
            raise GudaError(
                "style-unknown", f"no descriptors of style {style!r}{suggestion(style, vocabularies)}; known: {known}"
            )
    if forget in retain:
        raise GudaError(
            "anchor-style-forgotten",
            f"style {forget!r} is to be forgotten and cannot be an anchor; leave it out of the retain styles",
        )
    if not retain:
        raise GudaError(
            "anchor-styles-too-few",
            f"no style is left to be an anchor of {forget!r}; there must be at least two styles",
        )
