"""Descriptors: spellings are counted together, the ranking is the formula, what is left out is explained."""

import math

import pytest

from guda.data.descriptors import clean, key, rank


@pytest.mark.parametrize(
    ("said", "expected"),
    [("Bold Outlines", "bold outlines"), ("  vivid   colours. ", "vivid colors"), ("Grey-scale", "gray-scale"),
     ("cartoon style", "cartoon"), ("Style", "style"), ("a soft, warm glow", "soft warm glow"), ("*Oil*", "oil"),
     ("the artistic styles", "artistic"), ("...", ""), ("sketch-like", "sketch-like"), ("ﬂat", "flat"),
     ("multicoloured", "multicolored")],
)  # fmt: skip
def test_clean(said: str, expected: str) -> None:
    assert clean(said) == expected
    assert clean(clean(said)) == clean(said)


@pytest.mark.parametrize(
    ("one", "other"),
    [("bold outline", "Bold outlines"), ("sketch-like", "sketch like style"), ("brush", "brushes"), ("cities", "city"),
     ("Colours", "color"), ("grey tones", "gray tone"), ("soft_edges", "soft edge")],
)  # fmt: skip
def test_spellings_of_one_descriptor(one: str, other: str) -> None:
    assert key(one) == key(other)


@pytest.mark.parametrize(("one", "other"), [("bold", "bald"), ("glass", "glas"), ("warm", "warm tones")])
def test_descriptors_that_differ(one: str, other: str) -> None:
    assert key(one) != key(other)


RAW = {
    "s": [["warm", "flat"], ["warm", "flat"], ["Warm.", "dotted"], ["warm", "dotted"]],
    "t": [["warm", "cold"], ["warm"], ["flat"]],
    "u": [["warm", "cold"], ["warm", "cold"], ["dotted"]],
}


def test_the_formula() -> None:
    """support: warm 3, flat 1 (twice in s only), dotted 1, cold 1 (twice in u only)."""
    found = rank(RAW, alpha=0.5, min_freq=2)
    assert found.vocabularies == {
        "s": ("warm", "dotted", "flat"),  # 4/sqrt(3) = 2.31, 2, 2: equal ones by alphabet
        "t": ("warm", "cold", "flat"),  # 2/sqrt(3), 1, 1
        "u": ("cold", "warm", "dotted"),  # 2, 2/sqrt(3), 1
    }
    assert found.scores["s"] == pytest.approx((4 / math.sqrt(3), 2, 2))
    assert found.scores["u"] == pytest.approx((2, 2 / math.sqrt(3), 1))
    assert found.dropped == {}
    assert rank(RAW, alpha=1.0).vocabularies["s"] == ("dotted", "flat", "warm")  # 4/3 now


def test_what_is_dropped_says_why() -> None:
    raw = RAW | {"t": [*RAW["t"], ["rare"]]}
    found = rank(raw, max_support=2, size=1)
    assert found.vocabularies == {"s": ("dotted",), "t": ("cold",), "u": ("cold",)}
    assert "at most 1 time(s)" in found.dropped["rare"]
    assert "min_freq = 2" in found.dropped["rare"]
    assert "in 3 styles" in found.dropped["warm"]
    assert "max_support = 2" in found.dropped["warm"]
    assert found.dropped["flat"] == "among the first 1 of no style"
    assert set(found.dropped) == {"rare", "warm", "flat"}


def test_a_descriptor_counts_once_an_image_and_the_commonest_spelling_is_shown() -> None:
    raw = {"s": [["thin line", "thin lines", "Thin lines"], ["thin lines", "..."]], "t": [["x"], ["x"]]}
    found = rank(raw)
    assert found.vocabularies == {"s": ("thin lines",), "t": ("x",)}
    assert found.scores["s"] == (2.0,)  # two images


def test_order_of_styles_images_and_words_does_not_matter() -> None:
    turned = {s: [image[::-1] for image in RAW[s][::-1]] for s in reversed(RAW)}
    one, other = rank(RAW), rank(turned)
    assert one.vocabularies == other.vocabularies
    assert one.dropped == other.dropped
