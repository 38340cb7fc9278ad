"""Foreign pictures and near copies in a run: one answer for every method, estimand and door; overrides are kept."""

from __future__ import annotations

import contextlib
import csv
import functools
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tinyrun import Inline, copy_run, tiny, write_digits

from guda import steps
from guda.data.queries import Queries
from guda.report.content import Content
from guda.report.export import to_json, write_csv
from guda.report.page import render
from guda.run.data import load_data
from guda.run.run import Run
from guda.run.samples import average_name
from guda.scoring.scores import Scores
from guda.steps.score import scores_path

PLANTED = {"0": 1, "1": 5, "2": 50}  # group -> how often its first image is there
METHODS = ("retrack", "similarity-pixel")


def first_images(root: Path) -> dict[str, np.ndarray]:
    return {g: np.asarray(Image.open(sorted((root / g).glob("*.png"))[0])) for g in PLANTED}


@functools.cache
def asked_root() -> Path:
    """A trained and fitted run with planted duplicates; its queries are not scored yet. Copy it before changing it."""
    holder = tempfile.TemporaryDirectory(prefix="guda-origin-")
    asked_root.holder = holder  # type: ignore[attr-defined]
    folder = Path(holder.name)
    data, rng = write_digits(folder / "digits", each=60), np.random.default_rng(0)
    for group, image in first_images(data).items():
        for n in range(PLANTED[group] - 1):
            near = np.clip(image + rng.integers(-2, 3, image.shape), 0, 255).astype(np.uint8)
            Image.fromarray(near).save(data / group / f"planted-{n:02d}.png")
    recipe = tiny(
        data,
        data={"limit_per_group": None},
        model={"options": {"width": 96, "depth": 2}},
        training={"steps": 800, "ema": None},
        queries={"n": 60, "steps": 25},
        methods={"logo": {"seeds": [1]}},
        scoring={"plan": "stratified", "shard": 16},
    )
    run = steps.init(folder / "run", recipe)
    steps.fit(run, METHODS, Inline())
    return run.root


def pictures(root: Path) -> Queries:
    """Copies of the planted images, and two pictures that no such model makes."""
    rng, found = np.random.default_rng(1), {}
    for group, image in first_images(root.parent / "digits").items():
        found[f"copy-{group}"] = np.clip(image + rng.integers(-6, 7, image.shape), 0, 255)
    found["flat"], found["stripes"] = np.full((8, 8), 255), np.tile([0, 255], (8, 4))
    return Queries.from_arrays(np.stack(list(found.values()))[:, None].astype(np.uint8), list(found))


@functools.cache
def scored_root() -> Path:
    run = copy_run(asked_root().parent / "scored", asked_root())
    steps.score(run, steps.keep_queries(run, pictures(asked_root())), METHODS, Inline())
    return run.root


@pytest.fixture
def scored(tmp_path: Path) -> Run:
    return copy_run(tmp_path / "run", scored_root())


@pytest.fixture
def name() -> str:
    return next(s for s in Run.open(scored_root()).query_sets() if not s.startswith("samples"))


def kinds(run: Run, name: str, method: str = "retrack") -> dict[str, str]:
    return {q: v.kind for q, v in Scores.read(scores_path(run, name, method)).verdict().items()}


def test_copies_and_foreign_pictures_get_their_verdict_by_every_method(scored: Run, name: str) -> None:
    expected = {"copy-0": "copy", "copy-1": "copy", "copy-2": "copy", "flat": "foreign", "stripes": "foreign"}
    assert kinds(scored, name, "retrack") == kinds(scored, name, "similarity-pixel") == expected
    tables = [Scores.read(scores_path(scored, name, m)) for m in METHODS]
    assert tables[0].origins == tables[1].origins
    said = tables[0].verdict()
    assert [said[f"copy-{g}"].groups for g in PLANTED] == [("0",), ("1",), ("2",)]
    data = load_data(scored)
    for origin, image in zip(
        (tables[0].origins or ())[:3], first_images(asked_root().parent / "digits").values(), strict=True
    ):
        found = data.images[data.ids.index(str(origin.copy_of)), 0].astype(int)
        assert np.abs(found - image).max() <= 2  # the image, or one of its duplicates
        assert origin.copy_distance is not None
        assert 0 < origin.copy_distance < 0.5


def test_own_samples_are_rarely_foreign_and_hardly_ever_copies(scored: Run) -> None:
    own = average_name(scored)
    engine = Inline()
    scores = steps.score(scored, own, ["similarity-pixel"], engine)["similarity-pixel"]
    p = [o.typical_p for o in scores.origins or ()]
    places = sorted(float(v or 0) * 60 for v in p)  # each its own place among the 60, or a better one that it shares
    assert all(place >= n - 1e-9 for n, place in enumerate(places, 1))
    assert not [name for name in engine.ran if name.startswith(("sample", "full model", "nearest"))]  # all was there


def test_a_picture_gets_the_same_answer_alone_and_under_every_estimand(scored: Run, name: str) -> None:
    whole = Scores.read(scores_path(scored, name, "retrack")).origins
    one = pictures(asked_root()).subset(["flat"])
    one = Queries(one.ids, one.images, None, "one")
    alone = steps.score(scored, steps.keep_queries(scored, one), ["retrack"], Inline())["retrack"]
    assert whole is not None
    assert alone.origins == (whole[3],)
    for change in ({"estimand": "path", "excess": True}, {"estimand": "elbo", "excess": False, "plan": "uniform"}):
        steps.change_scoring(scored, **change)
        assert steps.score(scored, name, ["retrack"], Inline())["retrack"].origins == whole
    raced = steps.score(scored, name, ["retrack"], Inline(), stop="budget=300")["retrack"]
    assert raced.origins == whole
    looks = list(steps.watch(scored, name, "retrack", Inline(), "budget=300"))
    assert all(scores.origins == whole for scores, _ in looks)


def test_what_is_computed_is_computed_once(scored: Run, name: str) -> None:
    before = scores_path(scored, name, "retrack").read_bytes()
    again = Inline()
    steps.score(scored, name, METHODS, again)
    assert again.ran == []
    assert scores_path(scored, name, "retrack").read_bytes() == before


def test_an_override_is_deliberate_and_kept(scored: Run, name: str) -> None:
    steps.change_scoring(scored, foreign="accept")
    scores = steps.score(scored, name, ["retrack"], Inline())["retrack"]
    assert scores.verdict()["flat"].kind not in ("foreign", "copy")
    kept = Scores.read(scores_path(scored, name, "retrack"))
    assert [o.accepted for o in kept.origins or ()] == [False, False, False, True, True]
    assert "attributed on request" in render(scored, name)
    steps.change_scoring(scored, foreign="skip")
    skipped = Inline()
    assert steps.score(scored, name, ["retrack"], skipped)["retrack"].origins is None
    assert skipped.ran == []


def test_report_and_its_tables_name_no_group_for_foreign_pictures(scored: Run, name: str, tmp_path: Path) -> None:
    page = render(scored, name)
    assert "<strong>2 unlike what this model makes</strong>" in page
    assert "3 nearly repeating a training image" in page
    card = page[page.index('<li class="card foreign"') :].split('</li>\n<li class="card')[0]
    assert 'class="aside refused"' in card
    assert page.count('<p class="copied">') == 3
    content = Content.read(scored, name)
    found = to_json(content)
    assert [p["origin"]["copy_group"] for p in found["pictures"]] == ["0", "1", "2", None, None]
    assert found["pictures"][3]["origin"]["typical_p"] < 0.05
    assert [a["verdict"]["kind"] for a in found["methods"][0]["answers"]][3:] == ["foreign", "foreign"]
    rows = list(csv.DictReader(write_csv(content, tmp_path / "report.csv").open()))
    assert {r["verdict"] for r in rows if r["query"] == "flat"} == {"foreign"}
    assert {r["copy_group"] for r in rows if r["query"] == "copy-1"} == {"1"}
    # a foreign picture counts for no group
    assert sum(line.first for line in content.view.group_lines([()] * 3)) == 3


def test_the_command_says_how_many_and_its_json_says_which(
    scored: Run, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from guda.cli.main import main

    def guda(*args: str) -> str:
        monkeypatch.setattr("sys.argv", ["guda", "score", str(scored.root), "-q", name, "-m", "retrack", *args])
        capsys.readouterr()
        with contextlib.suppress(SystemExit):
            main()
        return capsys.readouterr().out

    said = guda()
    assert "2 of 5 pictures are foreign to this model, so no group is named: flat, stripes" in said
    assert "3 of 5 nearly repeat a training image: copy-0, copy-1, copy-2" in said
    assert "flat: this model does not make such pictures" in said
    told = json.loads(guda("--json"))["origins"]
    assert told["asked"]
    assert told["foreign"] == ["flat", "stripes"]
    assert list(told["copies"]) == ["copy-0", "copy-1", "copy-2"]
    accepted = guda("--foreign", "accept")
    assert "2 of 5 pictures are foreign to this model and attributed on request" in accepted
    assert Run.open(scored.root).recipe.scoring.foreign == "refuse"  # for that command alone


def test_too_few_samples_are_said_to_be_too_few(
    scored: Run, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from guda.cli.main import main

    steps.change_queries(scored, n=20)
    engine = Inline()
    scores = steps.score(scored, name, ["similarity-pixel"], engine)["similarity-pixel"]
    assert engine.ran == []  # twenty samples would tell nothing, so they are not drawn
    assert [o.typical_p for o in scores.origins or ()] == [None] * 5
    assert {q: v.kind for q, v in scores.verdict().items()}["copy-2"] == "copy"  # which needs no samples
    monkeypatch.setattr("sys.argv", ["guda", "score", str(scored.root), "-q", name, "-m", "similarity-pixel"])
    with contextlib.suppress(SystemExit):
        main()
    assert "Not asked whether the model makes such pictures" in capsys.readouterr().out


def test_the_plan_counts_what_is_drawn_for_comparison() -> None:
    rows = {r["what"]: r["evals"] for r in steps.plan(Run.open(asked_root()), ["similarity-pixel"], 7)["rows"]}
    # blocks of 64 are drawn whole, 25 steps each
    assert rows["draw 60 samples for comparison with the queries"] >= 60 * 25
    assert rows["check where 7 queries come from"] == 7 * 6 * 6 * 2
    assert rows["full model on the samples compared with"] == 60 * 6 * 6 * 2
