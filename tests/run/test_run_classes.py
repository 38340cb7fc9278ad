"""A class-conditional model all the way: trained with its labels, sampled class by class, attributed, compared."""

from __future__ import annotations

import csv
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tinyrun import GROUPS, SET, Inline, copy_run, digits_folder, tiny

from guda import steps
from guda.methods.base import get_method
from guda.methods.prompt import prompted_groups
from guda.methods.terms import load_queries
from guda.run.models import load_model, training_prompts
from guda.run.recipe import Recipe
from guda.run.run import Run
from refusals import refused

METHODS: dict[str, dict[str, Any]] = {
    "logo": {"seeds": [1, 2]},
    "continuation": {"steps": 4, "batch": 16, "warmup": 1},
    "anchors-weighted": {"steps": 4, "batch_forget": 8, "batch_retain": 8, "lr": 1e-3},
    "anchors-removed": {"steps": 4, "batch_forget": 8, "batch_retain": 8, "lr": 1e-3},
}
MODEL = {"options": {"width": 32, "depth": 1, "num_class_embeds": 4}}
TRAINING = {"prompt_dropout": 0.2}


def recipe(**sections: Any) -> Recipe:
    value = tiny(digits_folder(), training=TRAINING, model=MODEL, **sections).model_dump(mode="json")
    return Recipe.from_dict(value | {"methods": sections.get("methods", METHODS)}, "test")


@functools.cache
def finished() -> Path:
    import tempfile

    root = Path(tempfile.mkdtemp(prefix="guda-classes-")) / "run"
    steps.pipeline(steps.init(root, recipe()), Inline())
    return root


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return copy_run(tmp_path / "run", finished())


def test_the_model_learns_its_labels_and_is_sampled_by_them(run: Run) -> None:
    model, queries = load_model(run, "base"), load_queries(run, SET)
    assert model.kind == "class-conditional"
    assert training_prompts(run) is not None
    assert queries.prompts == tuple(GROUPS[i % 3] for i in range(12))
    assert prompted_groups(run, queries) == [GROUPS[i % 3] for i in range(12)]


def test_the_comparison_has_the_prompt_and_is_split_by_it(run: Run) -> None:
    entry = steps.evaluate(run, SET)
    assert {"continuation", "anchors-weighted", "anchors-removed", "prompt", "logo"} <= set(entry.methods)
    f = entry.figures
    assert f["pictures_prompted"] + f["pictures_cross"] == 12
    oracle = get_method(run, "logo").all_scores(load_queries(run, SET))  # type: ignore[attr-defined]
    gold = np.stack([oracle[f"logo-s{s}"].score for s in (1, 2)])
    own = gold.mean(axis=0).argmax(axis=1) == np.arange(12) % 3
    assert f["pictures_prompted"] == own.sum()
    if 2 <= own.sum() <= 10:
        value = get_method(run, "continuation").scores(load_queries(run, SET)).score
        hits = np.mean([(value.argmax(1) == g.argmax(1))[~own].mean() for g in gold])
        assert f["top1_cross.continuation"] == pytest.approx(hits)
        prompt = np.mean([((np.arange(12) % 3) == g.argmax(1))[~own].mean() for g in gold])
        assert f["top1_cross.prompt"] == pytest.approx(prompt)


def test_gradient_methods_hear_the_labels(run: Run) -> None:
    steps.change_settings(run, ["dtrak"], ["dim=64", "timesteps=2"])
    steps.fit(run, ["dtrak"], Inline())
    assert np.isfinite(steps.score(run, SET, ["dtrak"], Inline())["dtrak"].score).all()


def test_dropped_labels_need_a_null_label(tmp_path: Path) -> None:
    run = steps.init(tmp_path / "run", recipe(methods={}))
    options = MODEL["options"] | {"num_class_embeds": 3}
    other = recipe(methods={}).model_dump(mode="json")
    other["model"]["options"] = options
    three = steps.init(tmp_path / "three", Recipe.from_dict(other, "test"))
    with refused("null-label-missing"):
        steps.train(three, Inline())
    steps.train(run, Inline())


def test_whole_classes_are_refused_by_what_works_within_a_class(run: Run) -> None:
    for name in ("retrack", "shift", "posterior"):
        with refused("posterior-conditional-model" if name == "posterior" else "operator-model-unsupported"):
            steps.fit(run, [name], Inline())


def test_groups_within_classes(tmp_path: Path) -> None:
    """Two writers of every digit: the class of an image is what it shows."""
    folder = tmp_path / "images"
    folder.mkdir()
    with open(folder / "metadata.csv", "w", newline="") as f:
        rows = csv.writer(f)
        rows.writerow(["file_name", "writer", "digit"])
        for digit in GROUPS:
            for i, path in enumerate(sorted((digits_folder() / digit).iterdir())[:12]):
                (folder / path.name).write_bytes(path.read_bytes())
                rows.writerow([path.name, f"writer-{i % 2}", digit])
    methods = {"retrack": {"steps": 3, "batch_forget": 8, "batch_retain": 8},
               "shift": {"steps": 3, "batch_forget": 8, "batch_retain": 8},
               "posterior": {"components": 1}, "hybrid": {},
               "continuation": METHODS["continuation"]}  # fmt: skip
    value = recipe(methods=methods).model_dump(mode="json")
    value["data"] = {"source": str(folder), "group_by": "writer", "content_by": "digit"}
    run = steps.init(tmp_path / "run", Recipe.from_dict(value, "test"))
    steps.fit(run, list(methods), Inline())
    name = steps.sample(run, Inline())
    for method, scores in steps.score(run, name, list(methods), Inline()).items():
        assert scores.groups == ("writer-0", "writer-1"), method
        assert np.isfinite(scores.score).all()
    assert prompted_groups(run, load_queries(run, name)) is None  # a class is of both writers
    told = set(steps.applicable(run))
    assert {"retrack", "shift", "posterior", "continuation", "dtrak", "similarity-pixel"} <= told
    assert not {"logo", "subsets", "anchors-uniform", "blend", "prompt"} & told  # blend: there are no retrainings
    steps.change_scoring(run, estimand="path", excess=True)
    assert np.isfinite(steps.score(run, name, ["posterior", "hybrid"], Inline())["hybrid"].score).all()
    with refused("operator-model-unsupported"):
        steps.fit(run, ["anchors-uniform"], Inline())


def never(run: Run, tasks: list[Any], title: str) -> int:
    raise AssertionError(f"{title}: refused too late")


def test_patches_are_refused_before_a_worker_starts(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    for digit in GROUPS:
        for i, path in enumerate(sorted((digits_folder() / digit).iterdir())[:8]):
            (folder / "ab"[i % 2] / digit).mkdir(parents=True, exist_ok=True)
            (folder / "ab"[i % 2] / digit / path.name).write_bytes(path.read_bytes())
    methods = {"shift": {"steps": 2, "density": "patches"}, "posterior": {"density": "patches"}}
    value = recipe(methods=methods).model_dump(mode="json")
    value["data"] = {"source": str(folder), "content_by": "level:2"}
    run = steps.init(tmp_path / "run", Recipe.from_dict(value, "test"))
    for name in methods:
        with refused("patches-class-model"):
            steps.fit(run, [name], never)
