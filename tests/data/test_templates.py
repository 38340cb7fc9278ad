"""Prompts: what is written can be read back, from every template, and comes out alike in every process."""

import itertools
import os
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from guda.data.templates import SUBJECTS, Parsed, evaluation_prompt, parse, shuffled, training_prompt
from refusals import refused

words = st.text(st.characters(codec="utf-8", exclude_characters=",."), min_size=1).filter(lambda s: s == s.strip())
descriptor_lists = st.lists(words, min_size=1, max_size=5)
phrases = st.sampled_from(
    ["Dogs", "Salt, pepper", "a girl, with a hat", "A composition with Dogs", "An artwork of X, with y", "{object}",
     "Cats as the main subject", "A depiction of A depiction of Sea", "X, artistic style featuring red", "with", "é.",
     "A depiction of Dogs featured in the scene"]
)  # fmt: skip
objects = phrases | st.text(min_size=1).filter(lambda s: s == s.strip())


@pytest.mark.parametrize("template", SUBJECTS)
@pytest.mark.parametrize("name", ["Dogs", "Salt, pepper", "man with hat", "Sea, with waves"])
def test_the_object_of_every_template(template: str, name: str) -> None:
    prompt = training_prompt(template, name, ["warm", "bold outlines", "polygonal"])
    subject = template.replace("{object}", name)
    assert prompt == f"{subject}, artistic style featuring warm, bold outlines, polygonal"
    assert parse(prompt) == Parsed(name, ("warm", "bold outlines", "polygonal"), subject)


def test_prompts_of_the_paper() -> None:
    """Rows of its two tables; the second prints a full stop after every prompt."""
    rows = {
        "Rabbits as the main subject, artistic style featuring watercolor effect, atmospheric perspective, atmosphere":
            ("Rabbits", ("watercolor effect", "atmospheric perspective", "atmosphere")),
        "An artwork of Rabbits, with atmosphere, watercolor effect, atmospheric perspective":
            ("Rabbits", ("atmosphere", "watercolor effect", "atmospheric perspective")),
        "Sea featured in the scene, artistic style featuring earthy, warm, mosaic.":
            ("Sea", ("earthy", "warm", "mosaic")),
        "A composition with Dogs, artistic style featuring polygonal, warm, fluid lines.":
            ("Dogs", ("polygonal", "warm", "fluid lines")),
        "Towers, artistic style featuring light washes, watercolor, atmospheric perspective.":
            ("Towers", ("light washes", "watercolor", "atmospheric perspective")),
    }  # fmt: skip
    for prompt, (name, descriptors) in rows.items():
        found = parse(prompt)
        assert (found.object, found.descriptors) == (name, descriptors)


@given(st.sampled_from(SUBJECTS), objects, descriptor_lists)
@example("{object}", "A depiction of X", ["a"])
@example("{object} as the main subject", "A rendering of X", ["a", "with b"])
@example("A depiction of {object}", "X", ["a", "artistic style featuring b"])
def test_a_known_object_is_always_recovered(template: str, name: str, descriptors: list[str]) -> None:
    found = parse(training_prompt(template, name, descriptors), {name})
    assert (found.object, found.descriptors) == (name, tuple(descriptors))


@given(st.text(), objects, descriptor_lists)
@example("s", "girl, with hat", ["with x", "y"])
@example("s", "X, artistic style featuring red", ["y"])
def test_evaluation_prompts_are_read_too(style: str, name: str, descriptors: list[str]) -> None:
    found = parse(evaluation_prompt(style, name, descriptors), {name})
    assert found.object == name
    assert found.descriptors == shuffled(style, name, descriptors)
    assert sorted(found.descriptors) == sorted(descriptors)


plain = st.sampled_from(["Dogs", "Salt, pepper", "a girl, with a hat", "{x}"])


@given(st.sampled_from(SUBJECTS), plain, descriptor_lists)
def test_an_unknown_object_of_plain_words_is_recovered_too(template: str, name: str, descriptors: list[str]) -> None:
    clean = [d.removeprefix("artistic style") or "x" for d in descriptors]
    assert parse(training_prompt(template, name, clean)).object == name
    assert parse(training_prompt(template, name, clean), {"something else"}).object == name


def test_known_objects_settle_what_could_be_two_things() -> None:
    prompt = "A depiction of Dogs as the main subject, artistic style featuring a, b, c"
    assert parse(prompt).object == "Dogs as the main subject"  # the first template that fits
    assert parse(prompt, ["A depiction of Dogs"]).object == "A depiction of Dogs"
    assert parse(prompt, ["Dogs as the main subject", "A depiction of Dogs"]).object == "Dogs as the main subject"
    twice = "An artwork of girl, with hat, with a, b"
    assert parse(twice).object == "girl, with hat"
    assert parse(twice, ["girl"]) == Parsed("girl", ("hat", "with a", "b"), "An artwork of girl")


@pytest.mark.parametrize(
    "prompt",
    ["", "Dogs", "A depiction of Dogs", "An artwork of Dogs", "Dogs, with a, b", ", artistic style featuring a, b",
     "Dogs, artistic style featuring ", "Dogs, artistic style featuring a,, b", "An artwork of , with a"],
)  # fmt: skip
def test_an_unreadable_prompt_is_named_with_what_was_expected(prompt: str) -> None:
    with refused("prompt-unparsable", match="artistic style featuring d1, d2, d3") as e:
        parse(prompt)
    assert repr(prompt) in str(e.value)
    assert "An artwork of {object}, with d1" in str(e.value)
    assert "{object} featured in the scene" in str(e.value)


def test_shuffling_is_fixed_for_ever() -> None:
    """Worked out by hand from sha256 of the named text: its number in base 3, 2, 1 picks from what is left."""
    assert shuffled("Bricks", "Horses", ["a", "b", "c"]) == by_hand("6:BricksHorses")
    assert shuffled("Bricks", "Dogs", ["a", "b", "c"]) == by_hand("6:BricksDogs")
    assert evaluation_prompt("Bricks", "Horses", ["a", "b", "c"]) == "An artwork of Horses, with a, b, c"
    assert evaluation_prompt("Cubism", "Birds", ["a", "b", "c"]) == "An artwork of Birds, with b, a, c"


def by_hand(text: str) -> tuple[str, ...]:
    import hashlib

    number = int(hashlib.sha256(text.encode()).hexdigest(), 16)
    first, rest = number % 3, number // 3
    left = [x for i, x in enumerate("abc") if i != first]
    second = rest % 2
    return ("abc"[first], left[second], left[1 - second])


def test_every_order_occurs_about_equally_often() -> None:
    count = dict.fromkeys(itertools.permutations("abc"), 0)
    for i in range(600):
        count[shuffled("style", f"object {i}", "abc")] += 1
    chi2 = sum((n - 100) ** 2 / 100 for n in count.values())
    assert chi2 < 20.5  # 5 degrees of freedom, p = 0.001


def test_shuffling_does_not_depend_on_the_process() -> None:
    code = "from guda.data.templates import evaluation_prompt as e; print([e('S', f'o{i}', 'abc') for i in range(20)])"
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] == f"{[evaluation_prompt('S', f'o{i}', 'abc') for i in range(20)]}\n"
