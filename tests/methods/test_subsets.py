"""Subset models: the draw of the halves, what a model has seen, that more keep the first, and resuming."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from tinyrun import Inline, digits_folder, tiny

from guda import steps
from guda.data.groups import Groups
from guda.diffusion.stream import Stream
from guda.methods.base import get_method
from guda.methods.subsets import OUT, draw_pair, find_subsets, left_out, left_out_groups
from guda.run.data import load_data
from guda.run.models import train_model
from guda.run.run import Run
from guda.unlearning.bank import Counterfactual
from refusals import refused

MODELS = {"subsets": {"models": 4}}


def digests(run: Run) -> dict[str, str]:
    folder = run.path(find_subsets(run).folder)
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.glob("*.safetensors"))}


def test_halves_are_fair_coins_that_differ_between_pairs() -> None:
    membership = np.eye(12, dtype=bool)
    drawn = np.stack([draw_pair(membership, 0, p) for p in range(400)])
    assert np.abs(drawn.mean(axis=0) - 0.5).max() < 4.5 * 0.5 / 400**0.5  # 4.5 standard errors
    signs = np.where(drawn, 1.0, -1.0)
    apart = signs.T @ signs / 400 - np.eye(12)
    assert np.abs(apart).max() < 4.5 / 400**0.5  # columns are orthogonal up to chance: a weighing design
    assert not np.array_equal(drawn[:50], [draw_pair(membership, 1, p) for p in range(50)])


def test_an_image_goes_with_any_of_its_groups() -> None:
    known = Groups.from_labels([["a", "b"], "a", "b", "c", ["b", "c"]])
    inside = np.array([True, False, True])
    assert left_out(known.membership, inside).tolist() == [True, False, True, False, True]
    groups = left_out_groups(known, known.names, inside)
    assert groups.members(groups.index(OUT)).tolist() == [0, 2, 4]
    # of a tree at its upper level: the images of a movement are those of its artists; other groups stay
    tree = Groups.from_paths([[("x", "a")], [("x", "b")], [("y", "c")], [("z", "d")]])
    groups = left_out_groups(tree, ("x", "y"), np.array([False, True]))
    assert groups.members(groups.index(OUT)).tolist() == [0, 1]


def test_all_but_one_group_is_the_stream_of_logo() -> None:
    known = Groups.from_labels(["a", "b", "c"] * 20)
    half = Stream(
        (7, "train"), left_out_groups(known, known.names, np.array([True, False, True])), (1,), 10, leave_out=0
    )
    logo = Stream((7, "train"), known, (1,), 10, leave_out=1)
    for _ in range(5):
        a, b = half.take(16), logo.take(16)
        assert np.array_equal(a.index, b.index)
        assert np.array_equal(a.eps, b.eps)


def test_a_pair_without_images_is_drawn_again_or_refused() -> None:
    # one image in both groups, one in each: {a} leaves the images of a alone
    drawn = {tuple(draw_pair(np.eye(2, dtype=bool), 0, p)) for p in range(30)}
    assert drawn == {(True, False), (False, True)}
    with refused("subsets-impossible"):
        draw_pair(np.ones((3, 2), bool), 0, 0)


def test_models_are_trained_on_their_half_and_more_of_them_keep_the_first(tmp_path: Path) -> None:
    run = steps.init(tmp_path / "run", tiny(digits_folder(), methods=MODELS))
    steps.fit(run, ["subsets"], Inline())
    four, found = digests(run), find_subsets(run)
    assert list(four) == ["0000.safetensors", "0001.safetensors", "0002.safetensors", "0003.safetensors"]
    assert len(set(four.values())) == 4
    design = found.design()
    assert np.array_equal(design[0::2], ~design[1::2])
    # the same training, said in the words of the training loop
    data = load_data(run)
    groups = left_out_groups(data.groups, found.groups, design[1])
    trained = train_model(run, found.seed_of(1), tmp_path / "checkpoints", groups, leave_out=OUT)
    kept = Counterfactual.load(run.path(found.file(1))).tensors
    assert all(np.array_equal(kept[k].numpy(), v.numpy()) for k, v in trained.weights.items())
    assert found.seed_of(0) == found.seed_of(1) != found.seed_of(2)

    engine = Inline()
    steps.update_settings(run, "subsets", {"models": 6})
    steps.fit(run, ["subsets"], engine)
    assert len(engine.ran) == 2
    six = digests(run)
    assert {name: six[name] for name in four} == four
    assert np.array_equal(find_subsets(run).design()[:4], design)


def test_a_killed_training_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    whole = steps.init(tmp_path / "whole", tiny(digits_folder(), methods=MODELS))
    steps.fit(whole, ["subsets"], Inline())
    stopped = steps.init(tmp_path / "stopped", tiny(digits_folder(), methods=MODELS))
    for stop in (1, 2, None):
        try:
            steps.fit(stopped, ["subsets"], Inline(stop_after=stop))
        except KeyboardInterrupt:
            continue
    assert digests(stopped) == digests(whole)


def test_the_plan_prices_every_training(tmp_path: Path) -> None:
    run = steps.init(tmp_path / "run", tiny(digits_folder(), methods=MODELS))
    rows = {row["what"]: row for row in steps.plan(run, ["subsets", "datamodel"], 12, 1)["rows"]}
    training = 3 * 40 * 32
    assert rows["fit subsets"]["evals"] == 4 * training
    assert rows["fit datamodel"]["evals"] == 0  # the same models
    draws = 12 * 6 * 2 * 2  # pictures, strata, rounds, antithetic
    assert "score 12 queries by subsets" not in rows  # halves have no scores: nothing would ever do it
    assert rows["score 12 queries by datamodel"]["evals"] == 5 * draws  # the halves, and the full model


def test_refusals(tmp_path: Path) -> None:
    run = steps.init(tmp_path / "run", tiny(digits_folder()))
    with refused("setting-invalid"):
        steps.update_settings(run, "subsets", {"models": 5})
    with refused("subsets-not-scored"):
        get_method(run, "subsets").scores(None)  # type: ignore[arg-type]
