"""Anchors: the distribution is the formula, the object stays, the forgotten style is never drawn."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from guda.data.prompts import SUBJECTS, evaluation_prompt, parse, training_prompt
from guda.unlearning.anchors import AnchorsConfig, make_anchor, mean_direction
from refusals import refused

# Directions in the plane, in degrees: worked cosines. Lengths differ on purpose: they must not matter.
ANGLES = {"f3": 90} | {f"{s}{i}": angle for s, angle in (("f", 0), ("a", 0), ("b", 60), ("c", 180)) for i in range(3)}
WORDS = {s: tuple(f"{s}{i}" for i in range(3)) for s in "fabc"}
OBJECTS = ("Dogs", "Salt, pepper", "A rendering of X")
PROMPT = "A composition with Dogs, artistic style featuring f0, f1, f2"


def embed(texts: Sequence[str]) -> np.ndarray:
    angle = np.radians([ANGLES[t] for t in texts])
    length = np.array([1 + len(t) + ord(t[-1]) % 3 for t in texts])
    return (np.stack([np.cos(angle), np.sin(angle)], axis=1) * length[:, None]).astype(np.float32)


def anchor(strategy: Any = "weighted", retain: str = "abc", **config: Any) -> Any:
    return make_anchor(strategy, WORDS, "f", list(retain), embed, AnchorsConfig(**config), OBJECTS)


def test_the_distribution_worked_by_hand() -> None:
    """cosines 1, 1/2, -1; tau = 2: e^2, e, e^-2 = 7.389056, 2.718282, 0.135335, sum 10.242673."""
    found = anchor(tau=2.0, eta=0.1).probabilities(PROMPT)
    assert list(found) == ["a", "b", "c"]
    assert found["a"] == pytest.approx(0.9 * 0.721399 + 0.1 / 3, abs=1e-5)
    assert found["b"] == pytest.approx(0.9 * 0.265388 + 0.1 / 3, abs=1e-5)
    assert found["c"] == pytest.approx(0.9 * 0.013213 + 0.1 / 3, abs=1e-5)
    assert sum(found.values()) == pytest.approx(1)


def test_the_prompts_own_descriptors_decide_not_the_styles() -> None:
    """f0 at 0 and f3 at 90 degrees: e_f at 45; cosines with a, b, c: cos 45, cos 15, cos 135."""
    found = anchor(tau=1.0, eta=0.0).probabilities("An artwork of Dogs, with f0, f3")
    weights = np.exp(np.cos(np.radians([45, 15, 135])))
    np.testing.assert_allclose(list(found.values()), weights / weights.sum(), rtol=1e-5)


def test_each_descriptor_counts_alike_whatever_its_length() -> None:
    np.testing.assert_allclose(mean_direction(embed, ["f0", "f3"]), [np.sqrt(0.5)] * 2, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(mean_direction(embed, ["f0", "b0", "f1"])), 1, atol=1e-6)


@pytest.mark.parametrize("config", [{"eta": 1.0}, {"tau": 0.0}, {"tau": 0.0, "eta": 0.0}])
def test_all_mixing_or_no_sharpness_is_uniform(config: dict[str, float]) -> None:
    np.testing.assert_allclose(list(anchor(**config).probabilities(PROMPT).values()), 1 / 3)
    assert anchor("uniform").probabilities(PROMPT) == pytest.approx(dict.fromkeys("abc", 1 / 3))


def test_great_sharpness_is_the_nearest_style() -> None:
    found = anchor(tau=1e6, eta=0.0).probabilities(PROMPT)
    assert found == {"a": 1.0, "b": 0.0, "c": 0.0}
    mixed = anchor(tau=1e6, eta=0.3).probabilities(PROMPT)
    assert mixed == pytest.approx({"a": 0.8, "b": 0.1, "c": 0.1})
    assert all(parse(anchor(tau=1e6, eta=0.0).draw(PROMPT, (0, i))).descriptors[0][0] == "a" for i in range(50))


@pytest.mark.parametrize("strategy", ["weighted", "uniform"])
@pytest.mark.parametrize("template", SUBJECTS)
@pytest.mark.parametrize("thing", OBJECTS)
def test_the_object_stays_the_style_goes(strategy: str, template: str, thing: str) -> None:
    for prompt in (training_prompt(template, thing, WORDS["f"]), evaluation_prompt("f", thing, WORDS["f"])):
        drawn = anchor(strategy).draw(prompt, ("key", 1))
        assert drawn.startswith(f"A depiction of {thing}, artistic style featuring ")
        found = parse(drawn, OBJECTS)
        style = found.descriptors[0][0]
        assert style in "abc"
        assert sorted(found.descriptors) == sorted(WORDS[style])


def test_removed_keeps_the_subject() -> None:
    removed = anchor("removed")
    assert removed.probabilities(PROMPT) is None
    assert removed.draw(PROMPT, (0,)) == "A composition with Dogs"
    assert removed.draw("An artwork of Salt, pepper, with f0, f1, f2", (0,)) == "An artwork of Salt, pepper"
    assert removed.draw("Dogs, artistic style featuring f0, f1, f2", (0,)) == "Dogs"


def test_draws_follow_the_distribution_and_every_order_occurs() -> None:
    weighted = anchor(tau=2.0, eta=0.1)
    drawn = [parse(weighted.draw(PROMPT, (0, "step", i))).descriptors for i in range(3000)]
    count = Counter(d[0][0] for d in drawn)
    for style, p in weighted.probabilities(PROMPT).items():
        assert abs(count[style] - 3000 * p) < 4 * np.sqrt(3000 * p * (1 - p))
    orders = Counter(d for d in drawn if d[0][0] == "a")
    assert len(orders) == 6
    assert max(orders.values()) < 1.4 * min(orders.values())


def test_a_draw_is_a_function_of_prompt_and_key() -> None:
    one, other = anchor(), anchor()
    keys = [(seed, i) for seed in range(2) for i in range(40)]
    first = [one.draw(PROMPT, k) for k in keys]
    assert [other.draw(PROMPT, k) for k in reversed(keys)] == first[::-1]
    assert first[:40] != first[40:]
    same_words = "Dogs, artistic style featuring f0, f1, f2"
    assert [one.draw(same_words, k) for k in keys] != first


def test_the_same_in_every_process() -> None:
    code = (
        "from test_anchors import *; print([anchor(s).draw(PROMPT, (0, i)) for i in range(30) for s in"
        " ('weighted', 'uniform', 'removed')], anchor().probabilities(PROMPT))"
    )
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    runs = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": path},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(runs) == 1


def test_uniform_and_removed_ask_no_text_encoder() -> None:
    for strategy in ("uniform", "removed"):
        assert make_anchor(strategy, WORDS, "f", ["a"], None, AnchorsConfig(), OBJECTS).draw(PROMPT, (0,))  # type: ignore[arg-type]
    with refused("text-encoder-missing"):
        make_anchor("weighted", WORDS, "f", ["a"], None, AnchorsConfig())


def test_what_is_refused() -> None:
    for strategy in ("weighted", "removed"):
        with refused("anchor-style-forgotten", match="'f' is to be forgotten and cannot be an anchor"):
            anchor(strategy, retain="af")
        with refused("style-unknown", match="no descriptors of style 'z'"):
            anchor(strategy, retain="az")
        with refused("anchor-styles-too-few"):
            anchor(strategy, retain="")
    with refused("descriptors-too-few", match="has 3 descriptors, an anchor takes 4"):
        anchor(n_descriptors=4)
    with refused("prompt-unparsable", match="'a dog' cannot be read"):
        anchor().draw("a dog", (0,))
    assert len(parse(anchor(n_descriptors=2).draw(PROMPT, (0,))).descriptors) == 2
