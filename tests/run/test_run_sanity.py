"""`guda sanity` on a run: held-out digits of known groups, what is refused, and where it is shown."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from textrun import OBJECTS, STYLES, copy_text
from tinyrun import GROUPS, SET, Inline, copy_run

import guda
from guda import steps
from guda.data.digits import load_digits_data
from guda.evaluation.sanity import Sanity, measure
from guda.files import read_json
from guda.report.page import render
from guda.run.data import load_data
from guda.run.run import Run
from refusals import refused


def write_heldout(root: Path, each: int = 3) -> Path:
    """Digits from the end of the data set, which tiny runs do not train on."""
    data = load_digits_data()
    for group in GROUPS:
        (root / group).mkdir(parents=True)
        for i in data.groups.members(data.groups.index(group))[-each:]:
            Image.fromarray(data.images[i, 0]).save(root / group / f"{data.ids[i]}.png")
    return root


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return copy_run(tmp_path / "run")


@pytest.fixture
def heldout(tmp_path: Path) -> Path:
    return write_heldout(tmp_path / "real ones")


def test_every_fitted_method_is_asked_and_the_answer_is_kept_and_shown(run: Run, heldout: Path) -> None:
    before = render(run, SET)
    found = steps.sanity(run, heldout, Inline())
    assert found.queries == "heldout-real_ones"
    assert found.pictures == dict.fromkeys(GROUPS, 3)
    assert list(found.methods) == ["logo", "retrack", "similarity-pixel"]
    for method, one in found.methods.items():
        scores = guda.Scores.read(steps.scores_path(run, found.queries, method))
        assert scores.queries[0].startswith("0/")
        right = sum(s.ranked[0].group == s.query[0] for s in scores)
        assert (one.first.n, one.first.right) == (9, right)
        assert one.chance == pytest.approx(1 / 3)
        assert one == measure(scores, {q: (q[0],) for q in scores.queries}, scores.verdict())
    assert found.methods["similarity-pixel"].sure is None
    stored = Sanity.model_validate(read_json(steps.scores_folder(run, found.queries) / "sanity.json"))
    assert stored == found
    assert steps.read_sanity(run) == [found]
    again = Inline()
    assert steps.sanity(run, heldout, again) == found
    assert again.ran == []
    assert steps.choose_queries(run) == SET
    title = "9 held-out pictures of known groups (heldout-real_ones)"
    assert title not in before
    assert title in render(run, SET)
    steps.change_scoring(run, estimand="path")
    assert steps.read_sanity(run) == []  # of another estimand


def test_from_python_by_one_method(run: Run, heldout: Path) -> None:
    found = guda.open(run.root).sanity(heldout, "retrack")
    assert list(found.methods) == ["retrack"]
    assert found == steps.sanity(run, heldout, Inline(), ["retrack"])
    steps.sanity(run, heldout, Inline(), ["similarity-pixel"])
    [kept] = steps.read_sanity(run)
    assert kept.methods["retrack"] == found.methods["retrack"]
    assert list(kept.methods) == ["retrack", "similarity-pixel"]


def test_groups_the_run_does_not_have_are_refused(run: Run, heldout: Path) -> None:
    (heldout / "2").rename(heldout / "seven")
    with refused("heldout-group-unknown"):
        steps.sanity(run, heldout, Inline())
    (heldout / "seven").rename(heldout / "2")
    steps.change_groups(run, "0,1")
    with refused("heldout-group-not-scored"):
        steps.sanity(run, heldout, Inline())
    assert not [s for s in run.query_sets() if s.startswith("heldout")]


def test_training_images_are_refused_whatever_they_are_called(run: Run, heldout: Path) -> None:
    data = load_data(run)
    Image.fromarray(data.images[3, 0]).save(heldout / "1" / "new.bmp")
    with refused("heldout-is-training") as error:
        steps.sanity(run, heldout, Inline())
    assert "1 of 10" in str(error.value)
    assert data.ids[3] in str(error.value)


def test_no_folder_no_fit_and_other_pictures_of_that_name(run: Run, heldout: Path, tmp_path: Path) -> None:
    with refused("heldout-folder-missing"):
        steps.sanity(run, tmp_path / "nowhere", Inline())
    with refused("method-not-fitted"):
        steps.sanity(run, heldout, Inline(), ["shift"])
    steps.sanity(run, heldout, Inline(), ["similarity-pixel"])
    next((heldout / "0").iterdir()).unlink()
    with refused("query-set-conflict"):
        steps.sanity(run, heldout, Inline(), ["similarity-pixel"])
    found = steps.sanity(run, heldout, Inline(), ["similarity-pixel"], name="fewer")
    assert (found.queries, found.pictures["0"]) == ("fewer", 2)
    shutil.rmtree(heldout)
    (steps.scores_folder(run, "fewer") / "sanity.json").write_text('{"queries": 3}')
    with refused("sanity-damaged"):
        steps.read_sanity(run)


def test_text_to_image_runs_ask_with_the_prompts_of_the_folder(tmp_path: Path) -> None:
    run, rng, rows = copy_text(tmp_path / "run"), np.random.default_rng(8), []
    heldout = tmp_path / "real"
    for s, style in enumerate(STYLES):
        (heldout / style).mkdir(parents=True)
        for i in range(2):
            image = rng.integers(0, 80, (16, 16, 3))
            image[4 * i : 4 * i + 4, :, s] += 150
            Image.fromarray(image.astype(np.uint8)).save(heldout / style / f"{i}.png")
            rows.append({"file_name": f"{style}/{i}.png", "prompt": f"An artwork of {OBJECTS[i]}"})
    with refused("prompts-required"):
        steps.sanity(run, heldout, Inline())
    (heldout / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    steps.calibrate(run, Inline(), ["anchors-uniform"], 20)
    found = steps.sanity(run, heldout, Inline())
    assert found.pictures == dict.fromkeys(STYLES, 2)
    assert {"logo", "anchors-uniform", "similarity-pixel"} <= set(found.methods)
    calibrated = found.methods["anchors-uniform"]
    assert calibrated.in_set is not None
    assert calibrated.sure is None
    assert found.methods["anchors-removed"].in_set is None
    assert found.methods["similarity-pixel"].first.right == 6  # a style is a colour
    table = steps.read_sanity(run)
    assert table == [found]
