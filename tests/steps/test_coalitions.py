"""Shares and opt-outs of a run, by every engine: they add up, resume, do not depend on company, and refuse."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from subsetrun import MODELS, trained_root
from tinyrun import GROUPS, SET, Inline, copy_run, digits_folder, finished_root, tiny

from guda import steps
from guda.evaluation.shares import SharesFile
from guda.methods.base import get_method
from guda.methods.terms import load_queries
from guda.report.shares import coalition_sections, draw_opt_out
from guda.run.run import Run
from guda.steps import ShareOptions
from guda.steps.evidence import gather_evidence
from refusals import refused


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return copy_run(tmp_path / "run", trained_root())


def check_sums(found: SharesFile) -> None:
    for picture in found.pictures:
        assert sum(r.mean for r in picture.rows) == pytest.approx(picture.total.mean, rel=1e-6, abs=1e-8)
        assert all(r.lo < r.mean < r.hi for r in picture.rows)
    assert sum(r.mean for r in found.rows) == pytest.approx(found.total.mean, rel=1e-6)
    for k, row in enumerate(found.rows):
        assert row.mean == pytest.approx(np.mean([p.rows[k].mean for p in found.pictures]), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("value", ["elbo", "path"])
@pytest.mark.parametrize("engine", ["posterior", "subsets", "unlearned"])
def test_shares_add_up_by_every_engine(run: Run, engine: str, value: str) -> None:
    options = ShareOptions(engine=engine, value=value, pool=False)  # type: ignore[arg-type]
    found = steps.shares(run, SET, options, Inline())
    check_sums(found)
    assert [r.name for r in found.rows] == list(GROUPS)
    again = Inline()
    assert steps.shares(Run.open(run.root), SET, options, again) == found
    assert again.ran == []  # everything was kept
    assert steps.read_shares(run, SET) == [found]
    path = steps.shares_file(run, found)
    table = list(csv.DictReader(io.StringIO(path.with_suffix(".csv").read_text())))
    assert len(table) == len(found.pictures) * len(GROUPS)
    assert float(table[0]["share (nats)"]) == pytest.approx(found.pictures[0].rows[0].mean, rel=1e-4)


def test_the_posterior_prices_a_picture_whatever_its_company(run: Run) -> None:
    whole = steps.shares(run, SET, ShareOptions(pool=False), Inline())
    queries = load_queries(run, SET)
    one = queries.subset([queries.ids[3]])
    steps.keep_queries(run, type(one)(one.ids, one.images, one.prompts, "alone"))
    alone = steps.shares(run, "alone", ShareOptions(pool=False), Inline())
    expected = whole.picture(queries.ids[3])
    assert expected is not None
    got = [r.mean for r in alone.pictures[0].rows]
    assert got == pytest.approx([r.mean for r in expected.rows], rel=1e-5, abs=1e-7)


def test_parcels_and_random_orders(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = steps.shares(run, SET, ShareOptions(parcel=8, pool=False, value="path"), Inline())
    assert exact.parcels == dict.fromkeys(GROUPS, 2)
    assert exact.coalitions == 27
    check_sums(exact)
    monkeypatch.setattr("guda.methods.coalitions.EXACT", 4)
    options = ShareOptions(parcel=8, pool=False, value="path", tolerance=0.01, orders=64)
    drawn = steps.shares(run, SET, options, Inline())
    assert drawn.sampled
    for a, b in zip(exact.rows, drawn.rows, strict=True):
        assert abs(a.mean - b.mean) < 4 * (a.stderr + b.stderr)
        assert b.stderr > 0


def test_groups_below_noise_are_pooled_as_the_evaluation_says(run: Run) -> None:
    steps.evaluate(run, SET)
    every = steps.shares(run, SET, ShareOptions(pool=False), Inline())
    file = steps.scores_folder(run, SET) / "evaluation.json"
    entry = json.loads(file.read_text())
    for signal in entry["attributable"]["logo"]["groups"]:
        signal["answer"] = "attributable" if signal["group"] == "1" else "below noise"
    file.write_text(json.dumps(entry))
    for engine in ("posterior", "subsets"):
        every = steps.shares(run, SET, ShareOptions(engine=engine, pool=False), Inline())  # type: ignore[arg-type]
        found = steps.shares(run, SET, ShareOptions(engine=engine), Inline())  # type: ignore[arg-type]
        assert [r.groups for r in found.rows] == [["1"], ["0", "2"]]
        check_sums(found)
        assert found.rows[1].mean == pytest.approx(every.rows[0].mean + every.rows[2].mean)
        assert "logo" in found.pooling


@pytest.mark.parametrize("engine", ["posterior", "subsets", "unlearned"])
def test_without_predicts_by_every_engine(run: Run, engine: str) -> None:
    found = steps.without(run, SET, ["0", "2"], engine, None, Inline())  # type: ignore[arg-type]
    assert found.groups == ["0", "2"]
    assert (found.images, found.of) == (32, 48)
    assert [p.mean for p in found.pictures] == sorted((p.mean for p in found.pictures), reverse=True)
    assert found.overall.mean == pytest.approx(np.mean([p.mean for p in found.pictures]))
    assert [r.name for r in found.remaining] == ["1"]
    again = Inline()
    assert steps.without(Run.open(run.root), SET, ["2", "0"], engine, None, again) == found  # type: ignore[arg-type]
    assert again.ran == []
    if engine == "unlearned":
        assert found.check is None
    else:
        assert found.check is not None
        assert found.check.subsets == MODELS


@pytest.mark.parametrize("engine", ["posterior", "unlearned"])
def test_pictures_are_drawn_with_and_without_the_groups(run: Run, engine: str) -> None:
    found = steps.without(run, SET, ["0", "2"], engine, None, Inline())  # type: ignore[arg-type]
    drawn = steps.draw_without(run, found, None, 2, Inline())
    assert [name for name, _ in drawn] == [p.name for p in found.pictures[:2]]
    queries = load_queries(run, SET)
    for name, one in drawn:
        assert (one.picture == queries.subset([name]).images[0]).all()
        assert (one.without != one.full).any()
    again = Inline()
    steps.draw_without(Run.open(run.root), found, None, 2, again)
    assert again.ran == []  # everything was kept
    path = draw_opt_out(found, drawn, steps.without_file(run, found).with_suffix(".png"))
    assert path.is_file()
    assert [s.picture is not None for s in coalition_sections(run, SET, None)] == [True, False]


def test_without_one_group_the_posterior_draws_as_its_own_counterfactual(run: Run) -> None:
    steps.score(run, SET, ["posterior"], Inline())
    found = steps.without(run, SET, ["1"], "posterior", None, Inline())
    [(name, one)] = steps.draw_without(run, found, None, 1, Inline())
    assert (one.without == gather_evidence(run, SET, name, "posterior", "1", Inline()).drawn.without).all()


def test_models_of_halves_draw_no_opt_out(run: Run) -> None:
    found = steps.without(run, SET, ["0", "2"], "subsets", None, Inline())
    assert steps.draw_without(run, found, None, 2, Inline()) == []


def test_without_one_group_by_posterior_is_its_score(run: Run) -> None:
    scores = steps.score(run, SET, ["posterior"], Inline())["posterior"]
    found = steps.without(run, SET, ["1"], "posterior", None, Inline())
    by_name = {p.name: p.mean for p in found.pictures}
    own = np.array([by_name[q] for q in scores.queries])
    assert own == pytest.approx(scores.score[:, 1], rel=1e-3, abs=1e-3)


def test_losses_by_regression_add_up(run: Run) -> None:
    one, two, both = (steps.without(run, SET, names, "subsets", None, Inline()) for names in (["0"], ["2"], ["0", "2"]))
    assert one.overall.mean + two.overall.mean == pytest.approx(both.overall.mean)


@pytest.mark.parametrize("command", ["shares", "without"])
def test_the_density_is_fitted_when_it_is_asked_for(tmp_path: Path, run: Run, command: str) -> None:
    """It evaluates no network, like the methods that `guda score` fits."""
    bare = copy_run(tmp_path / "bare")

    def ask(of: Run, engine: Inline) -> object:
        if command == "shares":
            return steps.shares(of, SET, ShareOptions(pool=False), engine)
        return steps.without(of, SET, ["0"], "posterior", None, engine).pictures

    steps.update_settings(bare, "posterior", {"components": 1})
    assert ask(bare, engine := Inline()) == ask(run, Inline())
    assert "fit posterior" in engine.ran


def test_refusals(tmp_path: Path, run: Run) -> None:
    bare = copy_run(tmp_path / "bare")
    with refused("method-not-fitted"):
        steps.shares(bare, SET, ShareOptions(engine="subsets"), Inline())
    with refused("coalition-engine-unknown"):
        steps.shares(run, SET, ShareOptions(engine="magic"), Inline())  # type: ignore[arg-type]
    with refused("coalition-method-unused"):
        steps.shares(run, SET, ShareOptions(method="retrack"), Inline())
    with refused("parcels-unsupported"):
        steps.shares(run, SET, ShareOptions(engine="subsets", parcel=4), Inline())
    with refused("coalition-value-unknown"):
        steps.shares(run, SET, ShareOptions(value="likelihood"), Inline())  # type: ignore[arg-type]
    with refused("union-method-unsupported"):
        steps.shares(run, SET, ShareOptions(engine="unlearned", method="similarity-pixel"), Inline())
    with refused("coalition-rounds-too-few"):
        steps.shares(steps.override(run, scoring={"rounds": 1}), SET, ShareOptions(), Inline())
    with refused("group-unknown", "nobody"):
        steps.without(run, SET, ["nobody"], "posterior", None, Inline())
    with refused("without-covers-all"):
        steps.without(run, SET, list(GROUPS), "posterior", None, Inline())
    with refused("without-groups-missing"):
        steps.without(run, SET, [], "posterior", None, Inline())
    some = steps.override(run, groups="0,1")
    with refused("method-not-fitted"):  # halves of other groups are other models
        steps.without(some, SET, ["2"], "subsets", None, Inline())
    assert not run.path("shares").exists()
    assert not run.path("without").exists()


def guda(*args: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "guda", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)


@pytest.mark.slow
def test_from_the_command_line(run: Run) -> None:
    queries = load_queries(run, SET)
    done = guda("shares", run.root, "--picture", queries.ids[0], "--workers", "1")
    assert done.returncode == 0, done.stderr
    assert "v(all) - v(nothing)" in done.stdout
    assert (run.root / "shares" / SET / "posterior-elbo.svg").is_file()
    done = guda("shares", run.root, "--picture", "nobody")
    assert done.returncode == 2
    assert "[query-unknown]" in done.stderr
    done = guda("without", run.root, "--groups", "0,1", "--json", "--workers", "1")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["groups"] == ["0", "1"]


def test_everything_up_to_the_report_trains_halves_and_scores_the_others(tmp_path: Path) -> None:
    recipe = tiny(digits_folder(), methods={"subsets": {"models": 4}}, queries={"n": 4})
    run = steps.init(tmp_path / "all", recipe)
    name, _ = steps.run_all(run, Inline(), ["retrack", "subsets"])
    assert steps.scored_methods(run, name) == ["retrack"]
    assert get_method(run, "subsets").fitted()


def test_nothing_is_the_pretrained_start_where_there_is_one(tmp_path: Path) -> None:
    start = finished_root() / "models" / "full-s0"
    recipe = tiny(
        digits_folder(), model={"start": str(start)},
        training={"steps": 10, "lr": 1e-4}, methods={"subsets": {"models": 8}}, queries={"n": 4},
    )  # fmt: skip
    run = steps.init(tmp_path / "tuned", recipe)
    steps.fit(run, ["subsets"], Inline())
    name = steps.sample(run, Inline())
    found = steps.shares(run, name, ShareOptions(engine="subsets", pool=False), Inline())
    check_sums(found)
    assert found.nothing == "the pretrained start"
    with refused("coalition-nothing-unsupported"):
        steps.shares(run, name, ShareOptions(engine="subsets", value="path"), Inline())


def test_the_report_shows_what_was_computed(run: Run) -> None:
    from guda.report.content import Content
    from guda.report.page import write_content

    def page() -> str:
        return write_content(Content.read(run, SET), run.path("report.html"), drawn=False).read_text()

    assert 'id="coalitions"' not in page()
    steps.evaluate(run, SET)
    steps.shares(run, SET, ShareOptions(pool=False), Inline())
    steps.without(run, SET, ["0"], "subsets", None, Inline())
    shown = page()
    assert 'id="coalitions"' in shown
    for text in ("v(all) - v(nothing)", "Without 0 (16 of 48 training images)", "linear datamodeling score"):
        assert text in shown, text
