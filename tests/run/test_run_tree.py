"""Whole runs whose groups are a tree, or share images."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tinyrun import SET, Inline, copy_run, exact, tiny, write_digits

from guda import steps
from guda.diffusion.stream import Stream
from guda.errors import GudaError
from guda.methods import unlearned
from guda.methods.base import get_method
from guda.methods.race import below
from guda.methods.reference import reference
from guda.methods.regroup import placebos_of
from guda.report.content import Content
from guda.report.page import write_report
from guda.run.data import load_data, scored_groups
from guda.run.run import Run
from guda.scoring.race import StopRule
from guda.scoring.scores import Scores
from guda.steps.bank import bank_list

TREE = {"round": ("0", "3", "5"), "straight": ("1", "2"), "other": ("4",)}
LEAVES = ("4", "0", "3", "5", "1", "2")  # below other, round, straight
RULE = "top1@0.9,budget=2000"
KINDS = {"logo": {"seeds": [1]}, "posterior": {}, "shift": {"steps": 3}, "dtrak": {}}


def write_tree(root: Path) -> Path:
    flat = write_digits(root / "flat", tuple(d for digits in TREE.values() for d in digits))
    for above, digits in TREE.items():
        (root / "tree" / above).mkdir(parents=True)
        for digit in digits:
            shutil.move(flat / digit, root / "tree" / above / digit)
    return root / "tree"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    root = tmp_path_factory.mktemp("tree")
    recipe = tiny(
        write_tree(root), data={"group_by": "level:1/level:2"}, methods={"logo": {"seeds": [1]}, "posterior": {}}
    )
    run = steps.init(root / "run", recipe)
    steps.pipeline(run, Inline())
    steps.score(run, SET, ["retrack", "posterior"], Inline(), stop=RULE, screen="tree:2")
    return run


@pytest.fixture
def run(finished: Run, tmp_path: Path) -> Run:
    return copy_run(tmp_path / "run", finished.root)


def test_rankings_are_of_leaves_and_unlearned_models_of_all(run: Run) -> None:
    assert scored_groups(run) == LEAVES
    assert Scores.read(steps.scores_path(run, SET, "logo")).groups == LEAVES
    files = {p.stem.partition("-")[2] for p in run.path(get_method(run, "retrack").artifact()).glob("*.safetensors")}
    assert files == {*LEAVES, *TREE}
    oracle = {p.stem.partition("-")[2] for p in run.path("artifacts").glob("logo-*/s1/*.safetensors")}
    assert oracle == set(LEAVES)  # a retraining is dear: the groups above only when they are asked about


@pytest.mark.parametrize("method", ["retrack", "posterior"])
def test_the_parts_of_the_first_groups_of_each_level_race(run: Run, method: str) -> None:
    name = steps.variant(run, RULE, None, screen="tree:2")
    (top,) = steps.upper_levels(run, SET, method, name)
    found = Scores.read(steps.scores_path(run, SET, method, name))
    assert top.groups == ("other", "round", "straight")
    assert found.groups == LEAVES
    above = np.array([0, 1, 1, 1, 2, 2])
    started = (top.rank <= 2)[:, above]
    assert (np.asarray(found.n_evals) > 0).tolist() == started.tolist()
    assert np.isfinite(found.lo[started]).all()
    assert np.isnan(found.lo[~started]).all()
    assert np.array_equal(found.score[~started], top.score[:, above][~started])
    assert (found.rank[~started] > 3).all()
    assert "down a tree of groups" in found.estimand
    budget = StopRule.parse(RULE).budget
    cost = sum(s.evals_per_query(*get_method(run, method).networks()) for s in (top, found))
    assert (cost <= budget).all()


@pytest.mark.slow
def test_a_descent_that_opens_everything_is_the_plain_race(run: Run) -> None:
    plain = steps.score(run, SET, ["retrack"], Inline(), stop="top1@0.9")["retrack"]
    down = steps.score(run, SET, ["retrack"], Inline(), stop="top1@0.9", screen="tree:3")["retrack"]
    for column in ("score", "stderr", "lo", "hi", "rank"):
        assert np.array_equal(getattr(plain, column), getattr(down, column))


@pytest.mark.parametrize("method", [pytest.param("retrack", marks=pytest.mark.slow), "posterior"])
def test_a_descent_by_excess_compares_each_level_with_its_own_average(run: Run, method: str) -> None:
    steps.change_scoring(run, estimand="path", excess=True)
    found = steps.score(run, SET, [method], Inline(), stop="top1@0.9", screen="tree:2")[method]
    (top,) = steps.upper_levels(run, SET, method, steps.variant(run, "top1@0.9", None, screen="tree:2"))
    assert top.unit == found.unit == "log ratio"
    started = (top.rank <= 2)[:, np.array([0, 1, 1, 1, 2, 2])]
    assert found.own.tolist() == started.tolist()
    assert np.isfinite(found.score).all()


@pytest.mark.slow
def test_a_descent_is_the_same_after_a_stop_and_with_two_workers(finished: Run, tmp_path: Path) -> None:
    def fresh(name: str) -> Run:
        found = copy_run(tmp_path / name, finished.root)
        shutil.rmtree(found.path("scores", SET, f"{RULE}+tree=2"))
        shutil.rmtree(found.path("terms"))
        return found

    expected = {k: v for k, v in exact(finished.root).items() if k.startswith(f"scores/{SET}/{RULE}+tree=2")}
    assert len(expected) == 4
    stopped = fresh("stopped")
    with pytest.raises(KeyboardInterrupt):
        steps.score(stopped, SET, ["retrack", "posterior"], Inline(stop_after=5), stop=RULE, screen="tree:2")
    for where, engine in ((stopped, Inline()), (fresh("two"), steps.local_engine(2))):
        steps.score(Run.open(where.root), SET, ["retrack", "posterior"], engine, stop=RULE, screen="tree:2")
        assert {k: v for k, v in exact(where.root).items() if k in expected} == expected


def test_one_part_alone_is_no_race_and_no_claim(run: Run) -> None:
    """Of a group with one part, opened alone, there is nothing to settle."""
    groups = load_data(run).groups
    level, following = groups.levels(groups.leaves)
    score = np.array([[3.0, 2.0, 1.0]])
    top = Scores("retrack", "nats", "", ("q",), tuple(groups.names[k] for k in level), score, 1)
    start = below(groups, level, following, top, np.ones((1, 3), bool), keep=1)
    assert start.start.tolist() == [[True, False, False, False, False, False]]
    assert start.score.tolist() == [[3, 2, 2, 2, 1, 1]]
    begun = np.array([[False, True, True]])
    assert below(groups, level, following, top, begun, keep=1).start.tolist() == [[False] * 6]
    found = steps.score(run, SET, ["retrack"], Inline(), stop="top1@0.95", screen="tree:1")["retrack"]
    alone = (np.asarray(found.n_evals) > 0).sum(axis=1) == 1
    assert np.isnan(found.rank_hi[alone]).all()


def test_the_groups_of_a_level_can_be_asked_about(run: Run) -> None:
    steps.change_groups(run, "level:1")
    assert scored_groups(run) == ("other", "round", "straight")
    engine = Inline()
    steps.fit(run, ["logo", "retrack"], engine)
    assert engine.ran == [f"train logo-s1 without {g}" for g in ("other", "round", "straight")]
    steps.score(run, SET, ["logo", "retrack", "posterior", "similarity-pixel"], Inline())
    steps.evaluate(run, SET)
    assert Scores.read(steps.scores_path(run, SET, "logo")).groups == ("other", "round", "straight")
    with pytest.raises(GudaError, match="have none above them"):
        steps.score(run, SET, ["retrack"], Inline(), stop=RULE, screen="tree:2")


@pytest.mark.parametrize(
    ("groups", "message"),
    [("round,0", "'0' is a part of 'round'"), ("level:3", "levels 1 to 2"), ("level:0", "levels 1 to 2")],
)
def test_groups_that_cannot_be_asked_together(run: Run, groups: str, message: str) -> None:
    with pytest.raises(GudaError, match=message):
        steps.change_groups(run, groups)


def test_what_is_not_fitted_above_is_told(run: Run) -> None:
    next(run.path(get_method(run, "retrack").artifact()).glob("*-round.safetensors")).unlink()
    steps.score(run, SET, ["retrack"], Inline())  # the leaves are there
    with pytest.raises(GudaError, match=r"not fitted for all of the tree's groups .* run: guda fit"):
        steps.score(run, SET, ["retrack"], Inline(), stop=RULE, screen="tree:2")


@pytest.mark.slow
def test_descents_of_another_breadth_share_nothing(finished: Run, tmp_path: Path) -> None:
    """With a budget alone the name of the rule does not tell how many places it settles."""
    once, twice = (copy_run(tmp_path / name, finished.root) for name in ("once", "twice"))
    steps.score(twice, SET, ["retrack"], Inline(), stop="budget=4000", screen="tree:1")
    for run in (once, twice):
        steps.score(run, SET, ["retrack"], Inline(), stop="budget=4000", screen="tree:2")
    path = steps.scores_path(once, SET, "retrack", "budget=4000+tree=2").relative_to(once.root)
    assert (once.root / path).read_bytes() == (twice.root / path).read_bytes()


def test_a_budget_that_would_not_last_is_refused_at_once(run: Run) -> None:
    engine = Inline()
    with pytest.raises(GudaError, match=r"budget=90: the budget is shared by 2 levels .* give at least budget=\d+"):
        steps.score(run, SET, ["retrack"], engine, stop="budget=90", screen="tree:2")
    assert engine.ran == []
    assert not run.path("scores", SET, "budget=90+tree=2").exists()


def test_a_group_above_is_unlearned_with_as_many_passes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    method = get_method(run, "retrack")
    costs = {t.args["group"]: t.cost for t in method.fit()}
    assert {g: costs[g] / costs["0"] for g in TREE} == {"round": 3.0, "straight": 2.0, "other": 1.0}
    counts: dict[str, int] = {}
    real = unlearned.unlearn_group

    def noted(model, data, group, operator, config, *more):  # type: ignore[no-untyped-def]
        counts[group] = config.steps
        return real(model, data, group, operator, config, *more)

    monkeypatch.setattr(unlearned, "unlearn_group", noted)
    shutil.rmtree(run.path(method.artifact()))
    steps.fit(run, ["retrack"], Inline())
    assert counts == dict.fromkeys(LEAVES, 5) | {"round": 15, "straight": 10, "other": 5}


def test_placebos_have_the_size_of_the_groups_that_are_asked_about(run: Run) -> None:
    small = placebos_of(get_method(run, "retrack"), 1)
    steps.change_groups(run, "level:1")
    large = placebos_of(get_method(run, "retrack"), 1)
    assert (small.grouping.size, large.grouping.size) == (16, 32)
    assert small.file("placebo-0") != large.file("placebo-0")
    # and are unlearned as thoroughly as they are
    assert (small.passes("placebo-0"), large.passes("placebo-0")) == (1.0, 2.0)
    assert large.fit()[0].cost == 2 * small.fit()[0].cost


def test_the_bank_knows_the_groups_above(run: Run) -> None:
    rows = [row for row in bank_list(run) if row.method == "retrack"]
    assert {row.group for row in rows} == {*LEAVES, *TREE}
    assert all(row.used for row in rows)


def test_a_pair_that_is_everything_is_refused(run: Run) -> None:
    groups = load_data(run).groups.joined(*(load_data(run).groups.index(g) for g in TREE), name="all")
    with pytest.raises(GudaError, match="holds every image"):
        groups.check_rest()
    with pytest.raises(GudaError, match="no image to train on"):
        Stream((0, "train"), groups, (1, 8, 8), 100, leave_out=0)


def test_what_a_page_says_of_groups_that_did_not_race(run: Run) -> None:
    name = steps.variant(run, RULE, None, screen="tree:2")
    scores = Scores.read(steps.scores_path(run, SET, "retrack", name))
    assert not scores.own.all()
    firsts = scores.score[np.arange(len(scores.queries)), scores.rank.argmin(axis=1)]
    assert np.array_equal(scores.first, firsts)
    lent = replace(scores, score=np.where(scores.own, scores.score, 1e3))  # as a movement's may be
    assert np.array_equal(lent.first, firsts)
    sure = steps.score(run, SET, ["posterior"], Inline(), stop="top1@0.95", screen="tree:2")["posterior"]
    assert np.isfinite(sure.rank_hi[sure.own]).any()
    assert np.isnan(sure.rank_lo[~sure.own]).all()
    assert np.nanmax(sure.rank_hi) <= sure.own.sum(axis=1).max()
    page = write_report(run, SET, name).read_text()
    assert "level above (" in page
    view = next(v for v in Content.read(run, SET, name).views if v.id == "retrack")
    assert np.take_along_axis(scores.own, view.per_order[:, :1], axis=1).all()


def test_lists_in_two_columns_do_not_say_what_belongs_together(tmp_path: Path) -> None:
    data = write_digits(tmp_path / "data", ("0", "1"), 2)
    files = sorted(data.rglob("*.png"))
    rows = [{"file_name": str(f.relative_to(data)), "a": ["x", f.parent.name], "b": ["y", f.name]} for f in files]
    (data / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(GudaError, match="do not say which part belongs to which group"):
        steps.init(tmp_path / "run", tiny(data, data={"group_by": "a/b"}))


# ---- images in several groups ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Zeros and ones; and a third group of half of each."""
    root = tmp_path_factory.mktemp("shared")
    data = write_digits(root / "data", ("0", "1", "2"))
    rows = []
    for i, path in enumerate(sorted(data.rglob("*.png"))):
        tags = [path.parent.name] if i % 2 or path.parent.name == "2" else [path.parent.name, "even"]
        rows.append(json.dumps({"file_name": str(path.relative_to(data)), "tags": tags}))
    (data / "metadata.jsonl").write_text("\n".join(rows))
    recipe = tiny(data, data={"group_by": "tags", "limit_per_group": None}, methods=KINDS)
    run = steps.init(root / "run", recipe)
    steps.pipeline(run, Inline())
    return run


def test_every_kind_of_method_scores_groups_that_share(shared: Run) -> None:
    groups = load_data(shared).groups
    assert groups.names == ("0", "1", "2", "even")
    assert groups.sizes == (20, 20, 20, 20)
    for method in ("logo", "retrack", "shift", "posterior", "similarity-pixel", "dtrak"):
        scores = Scores.read(steps.scores_path(shared, SET, method))
        assert scores.groups == groups.names
        assert np.isfinite(scores.score).all()


def test_a_retraining_sees_no_image_of_the_group_it_leaves_out(shared: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from guda.diffusion import stream

    groups, shown = load_data(shared).groups, set[int]()
    take = stream.Stream.take

    def watched(self: stream.Stream, size: int) -> stream.Batch:
        batch = take(self, size)
        shown.update(batch.index.tolist())
        return batch

    monkeypatch.setattr(stream.Stream, "take", watched)
    from guda.run.models import train_model

    train_model(shared, 7, shared.path("checkpoints", "watched"), leave_out="even")
    assert shown == set(groups.without(groups.index("even")).tolist())


def test_drift_is_measured_on_images_that_are_no_part_of_the_group(shared: Run) -> None:
    method = get_method(shared, "retrack")
    images = reference(shared)
    inside = load_data(shared).groups.membership[images.index]
    assert np.array_equal(method.outside(images.index), ~inside)
    assert (inside.sum(axis=1) == 2).any()


def test_what_needs_one_group_of_every_image_is_refused(shared: Run) -> None:
    with pytest.raises(GudaError, match="esd knows one group of every image, and some images are in several groups"):
        steps.fit(shared, ["esd"], Inline())


def test_a_group_of_everything_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    data = write_digits(tmp_path / "data", ("0", "1"), 4)
    files = sorted(data.rglob("*.png"))
    lines = [json.dumps({"file_name": str(f.relative_to(data)), "tags": ["all", f.parent.name]}) for f in files]
    (data / "metadata.jsonl").write_text("\n".join(lines))
    with pytest.raises(GudaError, match="'all' holds every image"):
        steps.init(tmp_path / "run", tiny(data, data={"group_by": "tags"}))
    assert not (tmp_path / "run").exists()
