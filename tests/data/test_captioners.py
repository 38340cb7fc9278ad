"""Captioners: files are read as documented, words fit the pictures they are said of, a VLM is asked about style."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from styledimages import STYLES, styled
from tinyclip import write_clip

from guda.config import PromptsConfig
from guda.data.captioners import ask_vlm, by_similarity, by_vlm, clip_fits, pick, read_answer, sampled, vocabularies
from guda.data.descriptors import read_descriptors
from guda.data.style_words import WORDS, statistics
from guda.errors import GudaError
from guda.run.recipe import Recipe
from refusals import refused
from tiny_pipelines import clip_processor

# ---- which images ---------------------------------------------------------------------------------------------------


def test_sampled_images_are_keyed_and_unmoved_by_others() -> None:
    data = styled()
    ids = {s: [data.ids[i] for i in sampled(data, s, 6, seed=0)] for s in STYLES}
    assert all(len(set(found)) == 6 for found in ids.values())
    assert all(name.startswith(f"{s}/") for s, found in ids.items() for name in found)
    assert [data.ids[i] for i in sampled(data, "ink", 6, seed=1)] != ids["ink"]
    fewer = data.take(np.array([i for i in range(data.n) if data.ids[i] not in ids["ink"][:2]]))
    again = [fewer.ids[i] for i in sampled(fewer, "ink", 6, seed=0)]
    assert set(ids["ink"][2:]) <= set(again)
    assert [fewer.ids[i] for i in sampled(fewer, "flat", 6, seed=0)] == ids["flat"]
    assert len(sampled(data, "ink", 99, seed=0)) == 15


# ---- file -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["d.json", "d.yaml"])
def test_ready_vocabularies_are_used_as_they_are(tmp_path: Path, name: str) -> None:
    words = {"b": ["Bold Outlines", "Bold outline", "warm", "1920s"], "a": ["x", "y", "z", "u", "v", "w"]}
    (tmp_path / name).write_text(json.dumps(words))  # JSON is YAML too
    ready, raw = read_descriptors(tmp_path / name, ("a", "b"))
    assert raw is None
    assert ready == {"a": ("x", "y", "z", "u", "v", "w"), "b": ("bold outlines", "warm", "1920s")}
    assert list(ready) == ["a", "b"]


def test_lists_of_single_images_are_ranked(tmp_path: Path) -> None:
    said = {s: [["warm", s], ["warm", s], ["rare", s]] for s in STYLES}
    (tmp_path / "d.json").write_text(json.dumps(said))
    lines = [json.dumps({"style": s, "descriptors": image}) for s in STYLES for image in said[s]]
    (tmp_path / "d.jsonl").write_text("\n\n".join(lines))
    for name in ("d.json", "d.jsonl"):
        found = vocabularies(styled(), PromptsConfig(source="file", path=str(tmp_path / name), max_support=3))
        assert found.vocabularies == {s: (s,) for s in STYLES}
        assert set(found.dropped) == {"warm", "rare"}


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("d.json", "{", "not valid JSON"),
        ("d.yaml", "a: [", "not valid YAML"),
        ("d.json", "[1]", "must map every style"),
        ("d.json", '{"a": "x"}', "must map every style"),
        ("d.json", '{"a": ["x"], "bb": ["y"]}', "unknown style 'bb' (did you mean 'b'?); styles: a, b"),
        ("d.json", '{"a": ["x"]}', "style 'b' is not described"),
        ("d.json", '{"a": ["x"], "b": [["y"]]}', "either every style"),
        ("d.json", '{"a": ["x"], "b": [3]}', "style 'b' has the descriptor 3"),
        ("d.json", '{"a": ["x"], "b": ["..."]}', "descriptors are non-empty"),
        ("d.jsonl", '{"style": "a"}', "line 1: every line is"),
        ("d.jsonl", "nonsense", "line 1: every line is"),
        ("d.txt", "x", "must be .json, .yaml or .jsonl"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, name: str, text: str, says: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(GudaError) as e:
        read_descriptors(tmp_path / name, ("a", "b"))
    assert says in str(e.value)
    with refused("descriptors-file-missing"):
        read_descriptors(tmp_path / "none.json", ("a", "b"))


# ---- statistics -----------------------------------------------------------------------------------------------------


def test_words_fit_the_pictures_they_are_made_for() -> None:
    data = styled(each=10)
    x = statistics(data.images)
    mean = {s: dict(zip(WORDS, x[data.groups.members(k)].mean(axis=0), strict=True)) for k, s in enumerate(STYLES)}
    largest = {w: max(STYLES, key=lambda s: mean[s][w]) for w in WORDS}
    assert largest["soft gradients"] == "gradient"
    assert largest["monochrome"] == largest["solid black"] == largest["high contrast"] == "ink"
    assert largest["borderless"] in ("flat", "gradient")
    assert min(mean["ink"]["bold outlines"], mean["outline"]["bold outlines"]) > 0.4  # one ring of two
    assert max(mean["flat"]["bold outlines"], mean["gradient"]["bold outlines"]) < 0.05
    assert mean["flat"]["flat colors"] == pytest.approx(1)
    assert mean["flat"]["soft gradients"] == pytest.approx(0)
    assert mean["gradient"]["lit from above"] > 0.05 > mean["flat"]["lit from above"]


def test_statistics_of_worked_pictures() -> None:
    """8 x 8 white with a red 4 x 4 square, and one all black."""
    red = np.full((3, 8, 8), 255, np.uint8)
    red[1:, 2:6, 2:6] = 0
    f = dict(zip(WORDS, statistics(np.stack([red, np.zeros_like(red)])).T, strict=True))
    assert f["vivid colors"].tolist() == [1, 0]
    assert f["monochrome"].tolist() == [0, 1]
    assert f["sparse"].tolist() == [-0.25, -1]
    assert f["wide margins"].tolist() == [-0.5, -1]
    assert f["uniform"].tolist() == [1, 1]
    assert f["warm tones"].tolist() == [1, 0]
    np.testing.assert_allclose(f["multicolored"], 0, atol=1e-12)
    np.testing.assert_allclose(f["luminous"], [0.299, 0], atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 16, 16), (3, 40, 70), (1, 96, 96)])
def test_any_size_and_blank_pictures_give_finite_numbers(shape: tuple[int, int, int]) -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, *shape), dtype=np.uint8)
    images[0], images[1] = 255, 0
    assert np.isfinite(statistics(images)).all()
    np.testing.assert_array_equal(statistics(images)[2:3], statistics(images[2:3]))  # whatever is beside it


def test_styles_come_out_with_vocabularies_of_their_own() -> None:
    found = vocabularies(styled(each=10), PromptsConfig()).vocabularies
    assert all(len(words) == 5 for words in found.values())
    assert len({frozenset(words) for words in found.values()}) == 4
    assert "soft gradients" in found["gradient"]
    assert "flat colors" in found["flat"]
    assert "monochrome" in found["ink"]


def test_pick_takes_the_largest_z_not_the_largest_number() -> None:
    fits = np.array([[10, 0.0, 5], [10, 0.2, 5], [11, 0.1, 5]])  # z: -.7 -.7 1.4 | -1.2 1.2 0 | the third says nothing
    assert pick(fits, "abc", 1) == [["a"], ["b"], ["a"]]
    assert pick(fits, "abc", 3) == [["a", "b"], ["b", "a"], ["a", "b"]]


def test_pick_forgets_what_an_object_looks_like_in_every_style() -> None:
    fits = np.array([[0.0, 0.3], [1, 0.2], [9, 0.2], [10, 0.1]])  # two objects, each in two styles
    assert pick(fits, "ab", 1)[2] == ["a"]
    assert pick(fits, "ab", 1, ["o", "o", "p", "p"]) == [["b"], ["a"], ["b"], ["a"]]


def test_a_word_list_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "w.txt").write_text(
        "# lines\nFlat colors\n\nmonochrome\nsparse\nthin lines\nsoft gradients\nmonochrome\n"
    )
    raw = by_similarity(styled(), PromptsConfig(path=str(tmp_path / "w.txt"), words_per_image=2, images_per_style=4))
    assert {len(images) for images in raw.values()} == {4}
    said = {w for images in raw.values() for image in images for w in image}
    assert said <= {"flat colors", "monochrome", "sparse", "thin lines", "soft gradients"}
    with refused("words-too-few"):
        by_similarity(styled(), PromptsConfig(path=str(tmp_path / "w.txt"), words_per_image=6))
    (tmp_path / "w.txt").write_text("flat color\nsparse")
    with refused("word-unknown", match=r"no statistic for 'flat color'.*did you mean 'flat colors'"):
        by_similarity(styled(), PromptsConfig(path=str(tmp_path / "w.txt"), words_per_image=2))
    with refused("words-file-unreadable"):
        by_similarity(styled(), PromptsConfig(path=str(tmp_path / "none.txt")))
    with refused("prompts-encoder-unknown", match=r"unknown prompts\.encoder 'dino'"):
        by_similarity(styled(), PromptsConfig(encoder="dino"))


# ---- CLIP -----------------------------------------------------------------------------------------------------------


def test_clip_similarities_are_cosines_of_the_two_halves(tmp_path: Path) -> None:
    import torch
    from PIL import Image
    from transformers import CLIPModel, CLIPTokenizer

    folder, data = write_clip(tmp_path / "clip"), styled(each=2)
    fits = clip_fits(str(folder), data.images, ["bold", "flat"])
    model, tokenizer = CLIPModel.from_pretrained(folder), CLIPTokenizer.from_pretrained(folder)
    pixels = clip_processor().from_pretrained(folder)
    with torch.no_grad():
        for i in (0, 7, 23):
            image = Image.fromarray(data.images[i].transpose(1, 2, 0))
            out = model(
                **tokenizer(["bold style", "flat style"], padding=True, return_tensors="pt"),
                **pixels(images=[image], return_tensors="pt"),
            )
            np.testing.assert_allclose(fits[i], (out.image_embeds @ out.text_embeds.T)[0].numpy(), atol=1e-5)
    config = PromptsConfig(encoder=f"clip:{folder}", images_per_style=10, words_per_image=4)
    found = vocabularies(data, config).vocabularies
    assert {w for words in found.values() for w in words} <= set(WORDS)
    with refused("pretrained-unloadable", match=r"encoder clip:/no/where cannot be loaded.*encoder: statistics"):
        by_similarity(data, PromptsConfig(encoder="clip:/no/where"))


# ---- a vision-language model ---------------------------------------------------------------------------------------


def test_answers_in_any_form_become_descriptors_without_content() -> None:
    answer = (
        "1. Bold Outlines\n2) flat colours; - warm balls\n* bold outline, a very long sentence about nothing, Soft."
    )
    assert read_answer(answer, 5, "ball") == ["bold outlines", "flat colors", "soft"]
    assert read_answer(answer, 2) == ["bold outlines", "flat colors"]
    assert read_answer("", 5) == []


class Chat(dict):  # type: ignore[type-arg]
    def to(self, device: str) -> "Chat":
        self["device"] = device
        return self


class Fake:
    """Processor and model of one: answers by the mean colour of the picture it was shown."""

    device = "cpu"

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def apply_chat_template(self, messages: Any, **options: Any) -> Chat:
        import torch

        assert options == {"add_generation_prompt": True, "tokenize": True, "return_dict": True, "return_tensors": "pt"}
        self.asked.append(messages)
        return Chat(input_ids=torch.tensor([[7, 7, 7]]))

    def generate(self, input_ids: Any, device: str, do_sample: bool, max_new_tokens: int) -> Any:
        import torch

        assert not do_sample
        picture = np.asarray(self.asked[-1][0]["content"][0]["image"])
        return torch.cat([input_ids, torch.tensor([[0 if np.ptp(picture, axis=-1).max() == 0 else 1]])], dim=1)

    def batch_decode(self, tokens: Any, skip_special_tokens: bool) -> list[str]:
        assert skip_special_tokens
        assert tokens.shape == (1, 1)  # the question is cut off
        return [("Monochrome, ink wash, high contrast", "Vivid colours, clean, a ball")[int(tokens[0, 0])]]


def test_a_vlm_is_shown_every_sampled_image_and_asked_for_style_only() -> None:
    fake, data = Fake(), styled()
    config = PromptsConfig(source="vlm", images_per_style=4, words_per_image=3, model="some/model")
    names = []

    def load(name: str) -> Any:
        names.append(name)
        return lambda image, question: ask_vlm(fake, fake, image, question)

    raw = by_vlm(data, config, load)
    assert names == ["some/model"]
    assert len(fake.asked) == 16
    assert all(image == ["monochrome", "high contrast"] for image in raw["ink"])  # "ink" is the style's own name
    balls = [data.contents[i] == "ball" for i in sampled(data, "outline", 4, 0)]
    assert [("a ball" in image or "ball" in image) for image in raw["outline"]] == [not b for b in balls]
    (turn,) = fake.asked[0]
    picture, text = turn["content"]
    assert min(picture["image"].size) >= 224
    assert "Do not mention what is depicted" in text["text"]
    assert "List 3 " in text["text"]


def test_missing_weights_and_a_mute_model_are_one_line() -> None:
    with refused(
        "pretrained-unloadable", match=r"vision-language model /no/where cannot be loaded .*source: file"
    ) as e:
        vocabularies(styled(), PromptsConfig(source="vlm", model="/no/where"))
    assert "\n" not in str(e.value)
    with refused("descriptors-not-found", match="named no descriptor of style 'flat'"):
        by_vlm(styled(), PromptsConfig(source="vlm"), lambda name: lambda image, question: "")


# ---- the section ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "says"),
    [({"source": "file"}, "needs path"), ({"source": "vlm", "encoder": "statistics"}, "encoder belongs to"),
     ({"model": "x"}, "model belongs to"), ({"source": "vlm", "path": "x"}, "path belongs to"),
     ({"per_prompt": 6}, "more than vocabulary"), ({"source": "oracle"}, "prompts.source"),
     ({"tau": 1}, "prompts.tau")],
)  # fmt: skip
def test_settings_that_would_be_ignored_are_refused(section: dict[str, Any], says: str) -> None:
    with pytest.raises(GudaError) as e:
        Recipe.from_dict({"name": "x", "data": {"source": "digits"}, "prompts": section}, "recipe")
    assert says in str(e.value)
