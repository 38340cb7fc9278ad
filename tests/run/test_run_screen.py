"""A screen before the race: who starts, what it costs, and what the others are told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tinyrun import SET, Inline, tiny, write_digits

from guda import steps
from guda.errors import GudaError
from guda.files import read_json, write_json
from guda.run.run import Run
from guda.scoring.race import Race, StopRule
from guda.scoring.scores import Scores
from guda.scoring.screen import Screen, caught, fused_ranks
from guda.steps.score import scores_path
from refusals import refused

GROUPS = ("0", "1", "2", "3", "4")
RULE = "top1@0.9,budget=400"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    root = tmp_path_factory.mktemp("screen")
    recipe = tiny(
        write_digits(root / "data", GROUPS),
        methods={"posterior": {}},
    )
    found = steps.init(root / "run", recipe)
    steps.train(found, Inline())
    steps.fit(found, ["retrack", "posterior"], Inline())
    steps.sample(found, Inline())
    return found


def test_only_the_screens_first_groups_race(run: Run) -> None:
    engine = Inline()
    found = steps.score(run, SET, ["retrack"], engine, stop=RULE, screen="posterior:3")["retrack"]
    screen = Scores.read(scores_path(run, SET, "posterior"))
    started = screen.rank <= 3
    assert (np.asarray(found.n_evals) > 0).tolist() == started.tolist()
    assert np.isfinite(found.lo[started]).all()
    assert np.isnan(found.lo[~started]).all()
    assert np.array_equal(found.score[~started], screen.score[~started])
    assert (found.rank[started].reshape(-1, 3) <= 3).all()
    assert scores_path(run, SET, "retrack", f"{RULE}+posterior=3").is_file()
    again = Inline()
    same = steps.score(Run.open(run.root), SET, ["retrack"], again, stop=RULE, screen="posterior:3")["retrack"]
    assert again.ran == []
    assert np.array_equal(same.score, found.score)


def test_a_screen_that_keeps_all_is_the_plain_race(run: Run) -> None:
    plain = steps.score(run, SET, ["retrack"], Inline(), stop=RULE)["retrack"]
    all_of_them = steps.score(run, SET, ["retrack"], Inline(), stop=RULE, screen="posterior:5")["retrack"]
    assert np.array_equal(plain.score, all_of_them.score)
    assert np.array_equal(plain.rank, all_of_them.rank)


def test_a_fused_screen_starts_the_first_by_both_methods(run: Run) -> None:
    fused = "posterior+similarity-pixel:3"
    found = steps.score(run, SET, ["retrack"], Inline(), stop=RULE, screen=fused)["retrack"]
    tables = {m: Scores.read(scores_path(run, SET, m)) for m in ("posterior", "similarity-pixel")}
    started = fused_ranks(tables) <= 3
    assert (np.asarray(found.n_evals) > 0).tolist() == started.tolist()
    assert (started.sum(axis=1) == 3).all()
    assert np.array_equal(found.score[~started], tables["posterior"].score[~started])
    swapped = fused_ranks(dict(reversed(tables.items())))
    assert np.array_equal(swapped <= 3, started)


def test_recall_of_a_screen_is_kept_with_the_run(run: Run) -> None:
    assert steps.known_recall(run, SET, "posterior:2", "retrack") is None
    settled = steps.score(run, SET, ["retrack"], Inline())["retrack"]
    found = steps.evaluate_screen(run, SET, "posterior:2", Inline())
    screen = {"posterior": Scores.read(scores_path(run, SET, "posterior"))}
    assert found.recall["retrack"].mean == caught(screen, settled, 2).mean()
    assert 0 <= found.reproduced["retrack"].mean <= 1
    assert "posterior" not in found.recall
    assert steps.known_recall(run, SET, "posterior:2", "retrack") == found.recall["retrack"]
    with refused("screen-invalid"):
        steps.evaluate_screen(run, SET, "tree:2", Inline())


def test_reciprocal_ranks_by_hand() -> None:
    def table(name: str, *row: float) -> Scores:
        return Scores(name, "nats", "", ("p",), ("a", "b", "c"), np.array([row]), 1)

    # ranks 1 2 3 and 3 1 2: 1/61 + 1/63, 1/62 + 1/61, 1/63 + 1/62
    assert fused_ranks({"x": table("x", 3, 2, 1), "y": table("y", 1, 3, 2)}).tolist() == [[2, 1, 3]]


@pytest.mark.parametrize(
    ("stop", "screen", "message"),
    [
        (None, "posterior:3", "give --stop too"),
        (RULE, "posterior", "write METHOD:KEEP"),
        (RULE, "posterior:1", "two groups at least"),
        ("top3@0.9", "posterior:3", "top3 is settled from the start; keep more"),
        (RULE, "tree:0", "or tree:KEEP"),
        (RULE, "tree:2", "have none above them"),
        (RULE, "posterior:9", "there are 5 groups"),
        (RULE, "similarity-pixel:3", "no cheap scores in nats"),
        (RULE, "similarity-pixel+posterior:3", "put posterior first"),
        (RULE, "posterior+posterior:3", "name every method once"),
        (RULE, "posterior+tree:3", "or tree:KEEP"),
        (RULE, "posteriro:3", "unknown method"),
    ],
)
def test_screens_that_cannot_be(run: Run, stop: str | None, screen: str, message: str) -> None:
    with pytest.raises(GudaError, match=message):
        steps.score(run, SET, ["retrack"], Inline(), stop=stop, screen=screen)


def test_confidence_counts_the_comparisons_of_those_that_started() -> None:
    """Three of 1,000 groups race as three groups alone do: the others cost neither evaluations nor confidence."""
    rng = np.random.default_rng(0)
    three = rng.normal([[[0.4], [0.0], [-0.2]]], 0.3, (1, 3, 4))
    start = np.zeros((1, 1000), bool)
    start[:, [7, 500, 999]] = True
    rule = StopRule.parse("top1@0.9")
    small, large = Race(1, 3, 4, rule, 30), Race(1, 1000, 4, rule, 30, start=start)
    for _ in range(30):
        if not small.wanted().any():
            break
        three = rng.normal([[[0.4], [0.0], [-0.2]]], 0.3, (1, 3, 4))
        wide = np.full((1, 1000, 4), np.nan)
        wide[:, [7, 500, 999]] = three
        small.publish(three)
        large.publish(wide)
        assert large.wanted()[0, [7, 500, 999]].tolist() == small.wanted()[0].tolist()
    assert small.settled.all()
    assert large.settled.all()
    assert large.evals.tolist() == small.evals.tolist()
    assert large.result().winner().tolist() == [7]


def test_recall_counts_pictures_whose_first_group_was_kept() -> None:
    groups, queries = ("a", "b", "c"), ("p", "q")
    settled = Scores("x", "nats", "", queries, groups, np.array([[3.0, 2, 1], [1, 2, 3]]), 1)
    screen = Scores("y", "nats", "", queries, groups, np.array([[2.0, 3, 1], [3, 2, 1]]), 1)
    assert [caught({"y": screen}, settled, keep).mean() for keep in (1, 2, 3)] == [0.0, 0.5, 1.0]
    assert Screen.parse("posterior:10") == Screen(("posterior",), 10)


def test_recall_of_the_truth_where_pictures_have_known_groups(run: Run, tmp_path: Path) -> None:
    every, held = write_digits(tmp_path / "every", GROUPS, each=24), tmp_path / "real"
    for group in GROUPS:
        (held / group).mkdir(parents=True)
        for file in sorted((every / group).iterdir())[-3:]:  # the run trains on the first sixteen
            file.rename(held / group / file.name)
    known = steps.sanity(run, held, Inline(), ["posterior"]).queries
    found = steps.evaluate_screen(run, known, "posterior:2", Inline())
    table = Scores.read(scores_path(run, known, "posterior"))
    own = [group == query.partition("/")[0] for query in table.queries for group in table.groups]
    kept = (table.rank <= 2)[np.array(own).reshape(table.rank.shape)]
    assert found.known is not None
    assert len(kept) == 15
    assert found.known.mean == kept.mean()
    assert found.recall == {}
    assert steps.evaluate_screen(run, known, "posterior:5", Inline()).known.mean == 1
    steps.score(run, SET, ["retrack"], Inline())
    assert steps.evaluate_screen(run, SET, "posterior:2", Inline()).known is None
    path = steps.scores_path(run, known, "posterior").with_name("sanity.json")
    damaged = read_json(path)
    damaged["known"].pop(table.queries[0])
    write_json(path, damaged)
    with refused("sanity-damaged"):
        steps.evaluate_screen(run, known, "posterior:2", Inline())
