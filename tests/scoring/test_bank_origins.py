"""Origins by a bank in memory: as far as samples and training images are there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import guda
from guda.data.queries import Queries
from guda.scoring import bank_scores
from refusals import refused


@pytest.fixture
def known(make_mlp: Callable[..., Any], make_images: Callable[..., Any]) -> dict[str, Any]:
    model, data = make_mlp(), make_images({"a": 40, "b": 40})
    rng = np.random.default_rng(3)
    near = np.clip(data.images[11].astype(int) + rng.integers(-4, 5, (1, 4, 4)), 0, 255)
    images = np.stack([near, np.full((1, 4, 4), 255), rng.integers(0, 256, (1, 4, 4))]).astype(np.uint8)
    return {
        "model": model,
        "data": data,
        "bank": guda.unlearn(model, data, steps=1, batch_forget=4, batch_retain=4),
        "queries": Queries.from_arrays(images, ["copy", "flat", "noise"]),
        "samples": Queries.from_arrays(rng.integers(0, 256, (60, 1, 4, 4), dtype=np.uint8)),
    }


def ask(known: dict[str, Any], **settings: Any) -> Any:
    usual = {"plan": "stratified", "strata": 4, "rounds": 2, "estimand": "elbo", "excess": False}
    return guda.attribute(known["model"], known["bank"], known["queries"], **(usual | settings))


def test_a_bank_asks_both_questions(known: dict[str, Any]) -> None:
    scores = ask(known, average=known["samples"])
    p = [o.typical_p for o in scores.origins]
    for value in p:  # a place among 60 samples and itself, or a better one among 80 images and itself
        assert any(abs(n * value - round(n * value)) < 1e-9 and 1 <= round(n * value) <= n for n in (61, 81))
    assert scores["copy"].verdict().kind == "copy"
    origin, data = scores["copy"].origin, known["data"]
    assert origin.copy_of == data.ids[11]
    assert origin.copy_group == data.groups.names[int(data.groups.labels[11])]
    raced = ask(known, average=known["samples"], stop="budget=200")
    assert raced.origins == scores.origins


def test_a_picture_of_the_training_images_kind_is_not_foreign_although_no_sample_is_like_it(
    make_mlp: Callable[..., Any], make_images: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples are flat, images and the picture are not: among the samples alone it would be far out."""
    model, data = make_mlp(), make_images({"a": 40, "b": 40})
    bank = guda.unlearn(model, data, steps=1, batch_forget=4, batch_retain=4)
    rng = np.random.default_rng(0)
    flat = np.repeat(rng.integers(100, 156, (60, 1, 1, 1)), 16, axis=1).reshape(60, 1, 4, 4).astype(np.uint8)
    known = {
        "model": model,
        "bank": bank,
        "queries": Queries.from_arrays(make_images({"a": 10, "b": 10}, seed=1).images),
    }
    p = np.array([o.typical_p for o in ask(known, average=Queries.from_arrays(flat)).origins])
    assert (p < 0.05).mean() <= 0.2  # one in twenty, as chance has it
    monkeypatch.setattr(bank_scores, "some_images", lambda data: Queries.from_arrays(flat[:5]))  # too few to tell
    alone = np.array([o.typical_p for o in ask(known, average=Queries.from_arrays(flat)).origins])
    assert (alone < 0.05).all()
    assert (alone <= p).all()


def test_without_samples_only_copies_are_found_and_skip_asks_nothing(known: dict[str, Any]) -> None:
    assert [o.typical_p for o in ask(known).origins] == [None] * 3
    assert ask(known)["copy"].verdict().kind == "copy"
    assert ask(known, foreign="skip").origins is None
    with refused("bank-option-unsupported", "excess=True"):
        ask(known, foreign="skip", average=known["samples"])
