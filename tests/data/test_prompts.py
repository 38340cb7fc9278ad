"""Prompts: a function of (seed, image id) alone, kept with a digest, refused when they are of other data.

Prompts: what is written can be read back, from every template, and comes out alike in every process.
"""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from styledimages import OBJECTS, STYLES, styled

from guda.config import PromptsConfig
from guda.data.images import ImageData
from guda.data.prompts import (
    SUBJECTS,
    Parsed,
    Prompts,
    build_prompts,
    evaluation_prompt,
    parse,
    shuffled,
    training_prompt,
)
from guda.errors import GudaError, Mismatch
from guda.run.data import load_prompts
from guda.run.recipe import Recipe
from guda.run.run import Run
from refusals import refused

WORDS = {s: tuple(f"{s} {c}" for c in "abcde") for s in STYLES}
CONFIG = PromptsConfig()


def made(data: ImageData | None = None, **options: object) -> Prompts:
    return build_prompts(data or styled(), PromptsConfig(**options), WORDS)


def test_every_image_has_its_object_and_three_of_its_styles_descriptors() -> None:
    data, prompts = styled(each=20), made(styled(each=20))
    assert len(prompts.training) == data.n
    used = set()
    for i, prompt in enumerate(prompts.training):
        found, style = parse(prompt, OBJECTS), data.groups.names[data.groups.labels[i]]
        assert found.object == data.contents[i]
        assert len(set(found.descriptors)) == 3
        assert set(found.descriptors) <= set(WORDS[style])
        used |= {(t, style) for t in SUBJECTS if t.replace("{object}", found.object) == found.subject}
    assert len(used) == len(SUBJECTS) * len(STYLES)  # every template occurs in every style


def test_every_descriptor_and_order_is_about_as_likely() -> None:
    count = dict.fromkeys(WORDS["ink"], 0)
    first = dict.fromkeys(WORDS["ink"], 0)
    prompts = made(styled(each=100))
    for prompt in prompts.training[600:900]:
        said = parse(prompt, OBJECTS).descriptors
        first[said[0]] += 1
        for d in said:
            count[d] += 1
    assert sum(first.values()) == 300
    assert all(abs(n - 180) < 4 * np.sqrt(300 * 0.6 * 0.4) for n in count.values())
    assert all(abs(n - 60) < 4 * np.sqrt(300 * 0.2 * 0.8) for n in first.values())


def test_an_evaluation_prompt_has_the_descriptors_of_the_first_training_prompt() -> None:
    data, prompts = styled(), made()
    assert list(prompts.evaluation) == [(s, o) for s in STYLES for o in OBJECTS]
    for (style, thing), prompt in prompts.evaluation.items():
        first = next(i for i, name in enumerate(data.ids) if name.startswith(f"{style}/{thing}/"))
        said = parse(prompts.training[first], OBJECTS).descriptors
        assert prompt == f"An artwork of {thing}, with {', '.join(shuffled(style, thing, said))}"
    assert prompts.objects == OBJECTS
    shown = prompts.evaluation_prompts(["ink"])
    assert shown == [("ink", o, prompts.evaluation["ink", o]) for o in OBJECTS]
    assert len(prompts.evaluation_prompts()) == 12
    with refused("style-unknown", match=r"no prompts of style 'inc'.*did you mean 'ink'"):
        prompts.evaluation_prompts(["inc"])


def test_a_prompt_depends_on_seed_and_id_and_on_no_other_image() -> None:
    data, prompts = styled(), made()
    chosen = np.random.default_rng(0).permutation(data.n)[:40]
    fewer = made(data.take(chosen))
    assert fewer.training == tuple(prompts.training[i] for i in chosen)
    other = made(seed=1)
    assert sum(a != b for a, b in zip(other.training, prompts.training, strict=True)) > 40
    assert made().digest == prompts.digest
    assert other.digest != prompts.digest


def test_the_same_prompts_in_every_process(tmp_path: Path) -> None:
    code = (
        "from styledimages import styled; from guda.data.prompts import build_prompts;"
        "from guda.config import PromptsConfig; from guda.data.captioners import vocabularies;"
        "c = PromptsConfig(); d = styled();"
        "p = build_prompts(d, c, vocabularies(d, c).vocabularies); "
        "print(p.digest, p.training[7], p.vocabularies['ink'])"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    runs = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": path},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(runs) == 1
    assert next(iter(runs)).startswith(made_by_statistics().digest)


def made_by_statistics() -> Prompts:
    from guda.data.captioners import vocabularies

    return build_prompts(styled(), CONFIG, vocabularies(styled(), CONFIG).vocabularies)


def test_worked_prompts() -> None:
    """Fixed for ever: models were trained on these texts."""
    prompts = made()
    assert prompts.training[0] == "An image showing ball, artistic style featuring flat e, flat a, flat c"
    assert prompts.evaluation["flat", "ball"] == "An artwork of ball, with flat c, flat a, flat e"


# ---- what is refused ------------------------------------------------------------------------------------------------


def test_too_few_descriptors_say_so_and_how_to_fix() -> None:
    words = WORDS | {"ink": ("bold outline", "bold outlines", "x")}
    with refused("descriptors-too-few", match=r"style 'ink' has 3 .* a prompt takes 3; .*lower min_freq"):
        build_prompts(styled(), CONFIG, words)
    with refused("descriptors-too-few", match=r"style 'ink' has 0 descriptor\(s\) \(none\).*add descriptors to f.json"):
        build_prompts(styled(), PromptsConfig(source="file", path="f.json"), WORDS | {"ink": ()})
    assert build_prompts(styled(), PromptsConfig(per_prompt=2), words).training


def test_data_without_objects_say_what_to_set() -> None:
    with refused("contents-missing"):
        build_prompts(styled(contents=False), CONFIG, WORDS)


def test_objects_that_cannot_be_told_apart_are_refused() -> None:
    from dataclasses import replace

    data = styled(each=30)
    twin = replace(data, contents=tuple("A depiction of bar" if o == "ball" else o for o in data.contents))
    with refused("objects-ambiguous", match="objects 'A depiction of bar' and 'bar' cannot be told apart"):
        made(twin)


# ---- on disk --------------------------------------------------------------------------------------------------------


def test_saved_and_loaded_whole(tmp_path: Path) -> None:
    data, path = styled(), tmp_path / "prompts.json"
    prompts = build_prompts(data, CONFIG, WORDS, {"dull": "says nothing"})
    prompts.save(path)
    again = Prompts.load(path, data.digest)
    assert again == prompts
    assert again.digest == prompts.digest
    assert again.dropped == {"dull": "says nothing"}
    before = path.read_bytes()
    prompts.save(path)
    assert path.read_bytes() == before


def test_a_changed_damaged_or_foreign_file_is_refused(tmp_path: Path) -> None:
    data, path = styled(), tmp_path / "prompts.json"
    made().save(path)
    text = path.read_text()
    for part in ("training", "evaluation", "vocabularies"):
        value = json.loads(text)
        if part == "training":
            value[part][3] += "!"
        elif part == "evaluation":
            value[part][0][2] += "!"
        else:
            value[part]["ink"] = value[part]["ink"][::-1]
        path.write_text(json.dumps(value))
        with refused("prompts-damaged", kind=Mismatch):
            Prompts.load(path, data.digest)
    for broken in ("{}", "[]", '{"vocabularies": 3}', text[:100]):
        path.write_text(broken)
        with pytest.raises(GudaError, match="damaged"):
            Prompts.load(path, data.digest)
    path.write_text(text)
    with refused("prompts-other-images", kind=Mismatch):
        Prompts.load(path, styled(each=4).digest)


# ---- in a run -------------------------------------------------------------------------------------------------------


def recipe(prompts: dict[str, object] | None) -> Recipe:
    value = {"name": "x", "data": {"source": "somewhere"}, "training": {"steps": 1}, "prompts": prompts}
    return Recipe.from_dict(value, "x")


def test_a_run_says_how_to_build_what_it_lacks(tmp_path: Path) -> None:
    data = styled()
    run = Run.create(tmp_path / "run", recipe({}), {"data_digest": data.digest})
    with pytest.raises(GudaError, match=f"run: guda prompts build {run.root}"):
        load_prompts(run)
    made().save(run.path("prompts", "prompts.json"))
    assert load_prompts(run) == made()
    other = Run.create(tmp_path / "other", recipe(None), {"data_digest": data.digest})
    with refused("prompts-section-missing"):
        load_prompts(other)


def test_the_section_is_locked_and_runs_without_it_still_open(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", recipe({"seed": 3}), {"data_digest": "d"})
    with refused("run-recipe-differs", match=r"prompts\.seed differs: found 3, given 4", kind=Mismatch):
        run.check(recipe({"seed": 4}))
    with refused("run-recipe-differs", kind=Mismatch):
        run.check(recipe(None))
    old = Run.create(tmp_path / "old", recipe(None), {"data_digest": "d"})
    info = json.loads(old.path("run.json").read_text())
    del info["locked"]["prompts"]  # as runs were written before there were prompts
    old.path("run.json").write_text(json.dumps(info))
    text = old.path("recipe.yaml").read_text()
    old.path("recipe.yaml").write_text(text.replace("prompts: null\n", ""))
    assert "prompts" not in old.path("recipe.yaml").read_text()
    opened = Run.open(old.root)
    assert opened.recipe.prompts is None
    with refused("run-recipe-differs", kind=Mismatch):
        opened.check(recipe({}))


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
    code = "from guda.data.prompts import evaluation_prompt as e; print([e('S', f'o{i}', 'abc') for i in range(20)])"
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] == f"{[evaluation_prompt('S', f'o{i}', 'abc') for i in range(20)]}\n"
