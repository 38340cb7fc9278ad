"""NDA on a tiny run: scores by hand, the same bytes however the work is cut, settings that are refused."""

from pathlib import Path

import numpy as np
import pytest
from tinyrun import GROUPS, SET, Inline, copy_run, exact

from guda import steps
from guda.baselines.nda import Noised, posterior_mass
from guda.baselines.similarity import exemplars
from guda.data.images import to_float
from guda.data.queries import Queries
from guda.diffusion.noise import generator
from guda.errors import GudaError
from guda.files import read_json, read_tensors
from guda.methods.base import get_method
from guda.methods.nda import Nda, NdaConfig, query_mass
from guda.methods.terms import load_queries
from guda.run.data import load_data
from guda.run.models import run_schedule
from guda.run.run import Run
from guda.scoring.scores import Scores
from guda.steps.ablate import Ablation, Axis
from refusals import refused

BY_HAND = {"sum": np.sum, "mean": np.mean, "max": np.max, "median": np.median, "top3": lambda m: sorted(m)[-3:]}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return copy_run(tmp_path / "run")


def score(run: Run, *settings: str, queries: str = SET) -> Scores:
    steps.change_settings(run, ["nda"], list(settings))
    steps.fit(run, ["nda"], Inline())
    steps.score(run, queries, ["nda"], Inline())
    return Scores.read(steps.scores_path(run, queries, "nda"))


@pytest.mark.parametrize("how", BY_HAND)
def test_scores_by_hand(run: Run, how: str) -> None:
    found = score(run, "t=[0.2,0.6]", "patch=3", "positions=null", f"aggregate={how}", "seed=4")
    assert (found.unit, found.groups) == ("posterior mass", GROUPS)
    data, queries, schedule = load_data(run), load_queries(run, SET), run_schedule(run)
    assert schedule.T == 100
    for q in (0, 7):
        masses = []
        for t in (20, 60):
            eps = generator("nda", 4, queries.ids[q], t).standard_normal(data.shape)
            x = schedule.a[t] * to_float(queries.images[q]) + schedule.s[t] * eps
            masses.append(posterior_mass([Noised(x, schedule.a[t], schedule.s[t])], data.images, 3)[0])
        mass = np.mean(masses, axis=0)
        for k in range(len(GROUPS)):
            assert found.score[q, k] == pytest.approx(np.mean(BY_HAND[how](mass[data.groups.members(k)])), rel=1e-6)
    if how == "sum":
        np.testing.assert_allclose(found.score.sum(axis=1), 64, rtol=1e-6)


def test_a_training_image_belongs_to_its_group(run: Run, tmp_path: Path) -> None:
    data = load_data(run)
    steps.add_queries(run, _images(tmp_path / "known", data.images[::5]), "known")
    found = score(run, "t=0.02", "positions=20", queries="known")
    assert found.score.argmax(axis=1).tolist() == data.groups.labels[::5].tolist()
    far = score(run, "t=1", queries="known").score
    np.testing.assert_allclose(far, 64 / 3, rtol=0.02)  # the groups are of one size, and nothing is left of the picture


def _images(folder: Path, images: np.ndarray) -> Path:
    from PIL import Image

    folder.mkdir()
    for i, image in enumerate(images):
        Image.fromarray(image[0]).save(folder / f"k{i:03d}.png")
    return folder


def test_shards_order_and_kills_leave_the_same_bytes(run: Run, tmp_path: Path) -> None:
    score(run, "t=[0.1,0.4]")
    whole = read_masses(run)
    assert len(list(run.path(get_method(run, "nda").folder).glob("*.safetensors"))) == 3  # shards of 5 queries
    other = copy_run(tmp_path / "other")
    steps.change_settings(other, ["nda"], ["t=[0.1,0.4]"])
    steps.fit(other, ["nda"], Inline())
    with pytest.raises(KeyboardInterrupt):
        steps.score(other, SET, ["nda"], Inline(stop_after=1))
    steps.score(other, SET, ["nda"], lambda r, tasks, title: Inline()(r, tasks[::-1], title))
    assert {k: v for k, v in exact(run.root).items() if "nda" in k} == {
        k: v for k, v in exact(other.root).items() if "nda" in k
    }
    config, queries, data = get_method(run, "nda").config, load_queries(run, SET), load_data(run)
    for q in (0, 5, 11):
        alone = query_mass(queries.subset([queries.ids[q]]), data.images, run_schedule(run), config)
        np.testing.assert_array_equal(alone[0].astype(np.float32), whole[q])


def read_masses(run: Run) -> np.ndarray:
    found = get_method(run, "nda")
    files = [run.path(task.makes[0]) for task in found.score(load_queries(run, SET), set())]
    return np.concatenate([read_tensors(file)[0]["mass"].numpy() for file in files])


def test_how_much_is_held_does_not_matter(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    queries, data, config = load_queries(run, SET), load_data(run), NdaConfig(positions=9, down=2, alpha=0.5)
    usual = query_mass(queries, data.images, run_schedule(run), config)
    monkeypatch.setattr("guda.methods.nda.HELD", 1)
    np.testing.assert_array_equal(query_mass(queries, data.images, run_schedule(run), config), usual)


def test_groups_are_made_of_masses_that_exist_and_few_images_may_stand_for_one(run: Run) -> None:
    score(run, "patch=3")
    idle = Inline()
    steps.change_settings(run, ["nda"], ["aggregate=max"])
    steps.score(run, SET, ["nda"], idle)
    assert idle.ran == []
    found = score(run, "aggregate=sum", "per_group=4")
    assert read_masses(run).shape == (12, 12)
    data = load_data(run)
    few = np.sort(np.concatenate([exemplars(data, k, 4) for k in range(3)]))
    mass = query_mass(load_queries(run, SET), data.images[few], run_schedule(run), get_method(run, "nda").config)
    for k in range(3):
        members = np.isin(few, data.groups.members(k))
        np.testing.assert_allclose(found.score[:, k], mass[:, members].sum(axis=1), rtol=1e-6)


def test_it_is_not_scored_unasked_and_can_be_swept(run: Run) -> None:
    assert "nda" not in steps.fitted_methods(run)
    score(run, "t=[0.1,1]", "patch=1", "per_group=2")
    assert "nda" in steps.fitted_methods(run)
    choice = read_json(run.path(get_method(run, "nda").fit()[0].makes[0]))
    assert choice["steps"] == [10, 99]
    assert len(choice["images"]) == 6
    sweep = Ablation(name="nda", method="nda", base={}, axes=(Axis(axis="patch", values=[3, 5, "whole"]),))
    table = steps.ablate(run, sweep, Inline())
    assert {row.settings["patch"] for row in table.rows} == {3, 5, "whole"}
    assert len({row.metrics["spearman"].mean for row in table.rows}) == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["patch=4"], "patch: .*its side is odd"),
        (["patch=-3"], "patch: .*its side is odd"),
        (["patch=half"], "patch"),
        (["patch=17"], "patch: 17 reaches over images of 8x8 from everywhere; give whole"),
        (["t=1.5"], "less than or equal to 1"),
        (["t=[]"], "t: .*at least 1"),
        (["alpha=0.5"], "a second scale takes both"),
        (["down=2"], "a second scale takes both"),
        (["alpha=0.5", "down=1"], "down: "),
        (["positions=0"], "positions: "),
        (["aggregate=topmost"], "aggregate: "),
    ],
)
def test_wrong_settings_are_refused_in_one_line(run: Run, settings: list[str], message: str) -> None:
    with pytest.raises(GudaError, match=message) as e:
        score(run, *settings)
    assert "\n" not in str(e.value)


def test_a_patch_too_large_is_refused_to_those_who_ask_only(run: Run) -> None:
    wide = Nda(run, "nda", NdaConfig(patch=17))
    assert not wide.fitted()
    with refused("patch-too-large"):
        Inline()(run, wide.fit(), "fit")


def test_queries_of_another_size_are_refused(run: Run) -> None:
    small = Queries.from_arrays(np.zeros((1, 1, 6, 6), np.uint8), layout="NCHW")
    with refused("query-size-mismatch", match="are 6x6 pixels") as e:
        query_mass(small, load_data(run).images, run_schedule(run), NdaConfig())
    assert "\n" not in str(e.value)
