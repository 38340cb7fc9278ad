"""Origins by a bank in memory: as far as samples and training images are there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import guda
from guda.data.queries import Queries
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
    assert all(abs(61 * v - round(61 * v)) < 1e-9 and 1 <= round(61 * v) <= 61 for v in p)  # places among 60 and itself
    assert scores["copy"].verdict().kind == "copy"
    origin, data = scores["copy"].origin, known["data"]
    assert origin.copy_of == data.ids[11]
    assert origin.copy_group == data.groups.names[int(data.groups.labels[11])]
    raced = ask(known, average=known["samples"], stop="budget=200")
    assert raced.origins == scores.origins


def test_without_samples_only_copies_are_found_and_skip_asks_nothing(known: dict[str, Any]) -> None:
    assert [o.typical_p for o in ask(known).origins] == [None] * 3
    assert ask(known)["copy"].verdict().kind == "copy"
    assert ask(known, foreign="skip").origins is None
    with refused("bank-option-unsupported", "excess=True"):
        ask(known, foreign="skip", average=known["samples"])
