"""Scoring in a run: pilot, races, bands, memory, what is computed when something is added, and what it will cost."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tinyrun import GROUPS, SET, Inline, copy_run, digits_folder, exact, finished_root, tiny, tree, write_queries

import guda
from guda import steps
from guda.data.queries import Queries
from guda.diffusion.denoiser import Denoiser
from guda.errors import GudaError, Mismatch
from guda.files import read_json
from guda.methods import terms
from guda.methods.base import get_method
from guda.methods.terms import run_scorer, terms_folder
from guda.run.data import load_data
from guda.run.models import load_model, run_schedule
from guda.run.plan import halve_block, probe, run_plan, run_settings
from guda.run.run import Run
from guda.scoring import pilot, scorer
from guda.scoring.plan import OutOfMemory, Settings, candidates
from guda.scoring.reading import RACED
from guda.scoring.scorer import Reader
from guda.scoring.scores import Scores
from guda.unlearning.bank import Bank
from refusals import refused

RULE = "top1@0.8,budget=400"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return copy_run(tmp_path / "run")


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes [queries, strata, halves] of what networks are asked, without padding."""
    asked: list[int] = []

    def spy(denoiser: Denoiser, draws: Any, *args: Any) -> Any:
        asked.append(int(np.prod(draws.eps.shape[:3])))
        return real(denoiser, draws, *args)

    real = scorer.measure
    monkeypatch.setattr(scorer, "measure", spy)
    return asked


# --- the pilot ------------------------------------------------------------------------------------


def test_the_pilot_is_made_once_and_says_what_it_was_measured_on(run: Run) -> None:
    value = read_json(run.path("pilot.json"))
    assert sum(value["density"]) == pytest.approx(1)
    assert len(value["density"]) == run_schedule(run).t_max
    assert value["base"] == load_model(run, "base").digest()
    assert value["images"] == pilot.IMAGES
    assert value["evals"] == pilot.IMAGES * 2 * min(pilot.POINTS, run_schedule(run).t_max) * 2  # a rule answers for all
    assert (value["by"], value["groups"]) == ("rule", list(GROUPS))  # nobody's counterfactuals
    assert run_plan(run).density == tuple(value["density"])
    before = run.path("pilot.json").read_bytes()
    engine = Inline()
    steps.score(run, steps.add_queries(run, write_queries(run.root / "queries" / "tmp-q")), ["retrack"], engine)
    assert not any("pilot" in name for name in engine.ran)
    assert run.path("pilot.json").read_bytes() == before
    run.path("pilot.json").unlink()
    engine = Inline()
    steps.score(run, SET, ["retrack"], engine)
    assert engine.ran == ["pilot"]  # and the same numbers, so that no term is computed again
    assert run.path("pilot.json").read_bytes() == before


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda v: v | {"base": "0" * 64}, "measured on another model: found '0000"),
        (lambda v: v | {"density": v["density"][:-1]}, "make a new pilot"),
        (lambda v: v | {"density": [0.0, *v["density"][1:]]}, "positive"),
        (lambda v: {k: x for k, x in v.items() if k != "density"}, "damaged; delete it"),
        (lambda v: [], "damaged; delete it"),
        (lambda v: None, "damaged"),
    ],
)
def test_another_models_or_a_damaged_pilot_is_refused_and_deleting_it_repairs(
    run: Run, damage: Any, message: str
) -> None:
    file = run.path("pilot.json")
    value = damage(read_json(file))
    file.write_text('{"density": [0.1' if value is None else json.dumps(value))
    kind = Mismatch if "another model" in message else GudaError
    with pytest.raises(kind, match=message) as error:
        steps.score(run, SET, ["retrack"], Inline())
    assert "\n" not in str(error.value)
    file.unlink()
    steps.pipeline(run, Inline())
    assert exact(run.root) == exact(finished_root())


def test_stratified_and_paper_plans_need_no_pilot(run: Run) -> None:
    run.path("pilot.json").unlink()
    for changes in ({"plan": "stratified"}, {"plan": "uniform", "antithetic": False}, {"estimand": "paper"}):
        run.update(tiny(digits_folder(), scoring=changes | {"rounds": 1}))
        found = steps.score(run, SET, ["retrack"], Inline())["retrack"]
        assert np.isfinite(found.score).all()
    assert "raw sum" in found.estimand
    assert not run.has("pilot.json")


# --- races ----------------------------------------------------------------------------------------


def race(run: Run, engine: Any, rule: str = RULE, method: str = "retrack") -> bytes:
    steps.score(run, SET, [method], engine, stop=rule)
    return steps.scores_path(run, SET, method, rule).read_bytes()


def test_a_race_is_replayed_after_an_interruption_byte_by_byte(run: Run, tmp_path: Path) -> None:
    whole = copy_run(tmp_path / "whole")
    expected = race(whole, Inline())
    ran: list[str] = []
    for _ in range(100):
        engine = Inline(stop_after=2)
        try:
            found = race(Run.open(run.root), engine)
            break
        except KeyboardInterrupt:
            pass
        finally:
            ran += engine.ran
    assert found == expected
    assert len(ran) == len(set(ran)) > 4
    again = Inline()
    assert race(run, again) == expected
    assert again.ran == []
    assert exact(run.root) == exact(whole.root)
    plain = {k: v for k, v in exact(run.root).items() if "race" not in k and RULE not in k}
    assert plain == exact(finished_root())  # a race leaves the plain scores alone

    scores = Scores.read(steps.scores_path(run, SET, "retrack", RULE))
    assert f"raced to {RULE}" in scores.estimand
    for said in scores.verdict().values():
        assert said.note == RACED
        assert RACED in said.text
    per_group = np.asarray(scores.n_evals)
    each = 2 * run_plan(run).evals_per_round
    assert (per_group % each == 0).all()
    rounds = per_group // each
    spent = (rounds.sum(axis=1) + rounds.max(axis=1)) * run_plan(run).evals_per_round
    assert (spent <= 400).all()
    assert rounds.max() > rounds.min()
    for q in range(len(scores.queries)):  # who stayed longer ranks above; among equals by score
        order = np.argsort(scores.rank[q])
        keys = [(-rounds[q, g], -scores.score[q, g]) for g in order]
        assert keys == sorted(keys)


def test_two_workers_race_to_the_bytes_of_one_process(run: Run, tmp_path: Path) -> None:
    other = copy_run(tmp_path / "other")
    for each in (run, other):
        each.path("pilot.json").unlink()
    expected = race(run, Inline())
    assert race(other, steps.local_engine(2)) == expected
    assert exact(other.root) == exact(run.root)  # pilot.json and raced terms too


def test_two_races_do_not_share_the_full_models_parts(run: Run) -> None:
    """Each race asks the full model about the queries it still wants, so another method's part would be misread."""
    first = race(run, Inline())
    steps.change_settings(run, ["retrack"], ["steps=9", "lr=0.05"])
    steps.fit(run, ["retrack"], Inline())
    second = race(run, Inline())
    assert first != second
    steps.change_settings(
        run, ["retrack"], ["steps=5", f"lr={get_method(Run.open(finished_root()), 'retrack').config.lr}"]
    )
    again = Inline()
    assert race(run, again) == first
    assert again.ran == []


def test_what_cannot_be_raced_is_refused_before_anything_is_computed(run: Run) -> None:
    run.path("pilot.json").unlink()
    before = tree(run.root)
    for methods, stop, band, message in (
        (["logo"], "top1@0.9", None, "logo is an oracle"),
        (["similarity-pixel"], "top1@0.9", None, "similarity-pixel needs no evaluations"),
        (["retrack", "logo"], "top1@0.9", None, "logo is an oracle"),
        (["retrack"], "top1", None, "stop rule"),
        (["retrack"], "budget=0", None, "budget of no evaluations"),
        (["retrack"], "top1@0.9", "1:50", "either --stop or --band"),
    ):
        with pytest.raises(GudaError, match=message):
            steps.score(run, SET, methods, Inline(), stop=stop, band=band)
        assert tree(run.root) == before
    with refused("stop-budget-small", match=r"one round of 3 groups and the full model costs 48"):
        steps.score(run, SET, ["retrack"], Inline(), stop="budget=47")
    with refused("stop-already-settled", match="top3 is settled from the start"):
        steps.score(run, SET, ["retrack"], Inline(), stop="top3@0.9")
    steps.change_settings(run, ["logo"], ["seeds=[1]"])  # one seed is an oracle all the same
    with refused("race-method-oracle"):
        steps.score(run, SET, ["logo"], Inline(), stop="top1@0.9")
    steps.change_scoring(run, estimand="paper")
    with refused("race-grid-unsupported"):
        steps.score(run, SET, ["retrack"], Inline(), stop="top1@0.9")


# --- bands ----------------------------------------------------------------------------------------


def test_a_band_is_named_and_is_arithmetic_on_stored_terms(run: Run, evaluations: list[int]) -> None:
    before = exact(run.root)
    engine = Inline()
    found = steps.score(run, SET, ["retrack", "logo"], engine, band="1:30=0.5,60:100")
    assert engine.ran == []
    assert evaluations == []
    assert found["retrack"].estimand == f"{run_plan(run).estimand}, bands 1:30=0.5,60:100 only"
    method = get_method(run, "retrack")
    full, groups = method.sets()[0]  # type: ignore[attr-defined]
    queries = terms.load_queries(run, SET)
    read = Reader(run_scorer(run), queries, run.recipe.scoring.rounds)
    base = read(full)
    factor = np.zeros(100)
    factor[1:30], factor[60:] = 0.5, 1.0
    for g, name in enumerate(GROUPS):
        d = (read(groups[name]).kl - base.kl) * factor[base.t]
        np.testing.assert_allclose(found["retrack"].score[:, g], d.mean(axis=0).sum(axis=-1), rtol=1e-9, atol=1e-9)
    after = exact(run.root)
    assert {k: after[k] for k in before} == before
    assert {k for k in after if k not in before} == {
        f"scores/{SET}/1-30x0.5_60-100/{m}.parquet" for m in ("retrack", "logo", "logo-s1", "logo-s2")
    }
    parts = [steps.score(run, SET, ["retrack"], engine, band=b)["retrack"].score for b in ("1:50", "50:100")]
    plain = Scores.read(steps.scores_path(run, SET, "retrack")).score
    np.testing.assert_allclose(sum(parts), plain, rtol=1e-9, atol=1e-9)
    shares = steps.band_shares(run, SET, "retrack")
    assert sum(shares.values()) == pytest.approx(1)
    assert list(shares) == ["0:5", "5:10", "10:20", "20:30", "30:60", "60:100"]


@pytest.mark.parametrize("band", ["1:50,40:60", "0:101", "all", "0:1"])
def test_bad_bands_change_nothing(run: Run, band: str) -> None:
    before = tree(run.root)
    for attempt in (
        lambda: steps.score(run, SET, ["retrack"], Inline(), band=band),
        lambda: steps.evaluate(run, SET, band),
    ):
        with pytest.raises(GudaError, match="band"):
            attempt()
    assert tree(run.root) == before


def test_evaluation_of_a_band_goes_beside_the_plain_one(run: Run) -> None:
    plain = run.path("evaluation.json").read_bytes()
    entry = steps.evaluate(run, SET, "30:100")
    assert entry.estimand.endswith("bands 30:100 only")
    assert run.path("evaluation.json").read_bytes() == plain
    assert run.path("scores", SET, "evaluation.json").read_bytes() == plain
    beside = json.loads(run.path("scores", SET, "30-100", "evaluation.json").read_text())
    assert beside == entry.model_dump(mode="json")
    before = tree(run.root)
    table = steps.evaluate_bands(run, SET)
    assert list(table) == ["0:5", "5:10", "10:20", "20:30", "30:60", "60:100"]
    for row in table.values():
        assert list(row) == ["ceiling", "retrack", "similarity-pixel"]
        assert all(0 <= x <= 1 for x in row.values())
    assert tree(run.root) == before


# --- memory and settings --------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [None, RULE])
@pytest.mark.parametrize("with_pilot", [True, False])
def test_out_of_memory_halves_the_block_and_the_terms_go_under_the_new_key(
    run: Run, monkeypatch: pytest.MonkeyPatch, stop: str | None, with_pilot: bool
) -> None:
    shutil.rmtree(run.path("terms"))
    if not with_pilot:
        run.path("pilot.json").unlink()
    real = Denoiser.raw

    def small(self: Denoiser, x: torch.Tensor, t: torch.Tensor, cond: Any = None) -> torch.Tensor:
        if len(x) > 5:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, x, t, cond)

    monkeypatch.setattr(Denoiser, "raw", small)
    found = steps.score(run, SET, ["retrack"], Inline(), stop=stop)["retrack"]
    (folder,) = run.path("terms").iterdir()  # 16 -> 8 -> 4; nothing is left of the larger ones
    assert "-b4-cpu-fp32" in folder.name
    assert run_settings(run).block == 4
    assert terms_folder(run).endswith("-b4-cpu-fp32")
    if stop is None and with_pilot:
        plain = Scores.read(Run.open(finished_root()).path("scores", SET, "retrack.parquet"))
        np.testing.assert_allclose(found.score, plain.score, rtol=1e-3, atol=1e-3)
    again = Inline()
    steps.score(Run.open(run.root), SET, ["retrack"], again, stop=stop)
    assert again.ran == []


def test_when_not_even_one_image_fits_it_says_so(run: Run) -> None:
    for block in (8, 4, 2, 1):
        assert halve_block(run) == Settings(block)
    with refused("image-out-of-memory"):
        halve_block(run)
    steps.change_scoring(run, block=32)  # another question
    assert run_settings(run) == Settings(32)
    run.path("probe.json").write_text('{"settings": {"blok": 1}}')
    with refused("probe-damaged"):
        run_settings(run)


def test_settings_have_distinct_keys_and_gpus_have_candidates(run: Run) -> None:
    assert candidates(64, "cpu") == [Settings(64)]
    ways = candidates(64, "cuda")
    assert {(s.precision, s.channels_last, s.compiled) for s in ways} == {
        ("fp32", False, False), ("bf16", False, False), ("bf16", True, False), ("bf16", True, True),
    }  # fmt: skip
    everything = [*ways, Settings(64), Settings(32), Settings(64, channels_last=True), Settings(64, compiled=True)]
    assert len({s.key for s in everything}) == len(everything)
    before = tree(run.root)
    assert probe(run, load_model(run, "base")) == Settings(16)
    assert tree(run.root) == before  # nothing to choose on a CPU


def test_other_errors_are_not_taken_for_lack_of_memory() -> None:
    for error in (torch.OutOfMemoryError("x"), RuntimeError("DefaultCPUAllocator: can't allocate memory: ...")):
        with refused("block-out-of-memory", match="a block of 7 images", kind=OutOfMemory), Settings(7).active():
            raise error
    for other in (RuntimeError("shapes"), GudaError("group-unknown", "mine")):
        with pytest.raises(type(other), match=str(other)), Settings(7).active():
            raise other


# --- only what is missing -------------------------------------------------------------------------


def test_more_queries_rounds_and_methods_compute_only_what_is_missing(
    run: Run, tmp_path: Path, evaluations: list[int]
) -> None:
    per_round = run_plan(run).evals_per_round
    assert per_round == 12
    steps.score(run, SET, ["retrack", "logo"], Inline())
    assert evaluations == []
    known = terms.load_queries(run, SET)  # the first shard of five is known, the rest is new
    images = np.concatenate([known.images[:5], 255 - known.images[5:8]])
    Queries((*known.ids[:5], "x", "y", "z"), images, None, "mixed").save(run.path("queries", "mixed"))
    engine = Inline()
    steps.score(run, "mixed", ["retrack"], engine)
    assert len([name for name in engine.ran if name.startswith("score")]) == 1
    assert sum(evaluations) == 4 * 3 * per_round * 2  # base and three groups, three pictures, two rounds
    evaluations.clear()
    steps.score(run, "mixed", ["retrack", "logo"], engine)  # another method: the base is known
    assert sum(evaluations) == (2 + 6) * 3 * per_round * 2  # two full models of its own, six retrained
    evaluations.clear()
    steps.change_scoring(run, rounds=3)
    steps.score(run, "mixed", ["retrack"], engine)
    assert sum(evaluations) == 4 * 8 * per_round


# --- guda plan ------------------------------------------------------------------------------------


def test_the_plan_adds_up_and_shrinks_as_work_is_done(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = steps.plan(run, ["logo", "retrack"], 7)
    json.dumps(value, allow_nan=False)
    rows = {r["what"]: r for r in value["rows"]}
    for what in ("train the full model", "fit logo", "fit retrack"):
        assert (rows[what]["evals"], rows[what]["seconds"], rows[what]["disk"]) == (0, 0, 0)
    models = {"retrack": 1 + 3, "logo": 2 + 6}
    for name, n in models.items():
        row = rows[f"score 7 queries by {name}"]
        assert row["evals"] == n * 12 * 2 * 7
        assert row["seconds"] > 0
        assert row["disk"] > 0
        here = {r["rounds"]: r for r in value["alternatives"] if r["method"] == name}
        assert list(here) == [1, 2, 4, 8, 16]
        assert all(r["evals_per_query"] == n * 12 * rounds for rounds, r in here.items())
        median = np.median(Scores.read(steps.scores_path(run, SET, name)).stderr)  # type: ignore[arg-type]
        assert here[2]["half_width"] == pytest.approx(1.96 * median)
        assert here[8]["half_width"] == pytest.approx(here[2]["half_width"] / 2)
    shutil.rmtree(run.path("scores"))
    assert "guesses from the pilot" in steps.plan(run, ["retrack"], 7)["note"]

    recorded = [(3.0, 1500.0), (1.0, 500.0)]  # seconds and evaluations of trainings: 2 ms each, whatever scoring takes
    monkeypatch.setattr(Run, "timings", lambda run, stage: recorded if stage == "train" else [])
    shutil.rmtree(run.path("artifacts"))
    row = next(r for r in steps.plan(run, ["logo"], 7, workers=2)["rows"] if r["what"] == "fit logo")
    assert row["seconds"] == pytest.approx(row["evals"] * 0.002 / 2)  # trainings at the speed of the run's own
    monkeypatch.undo()

    fresh = steps.init(tmp_path / "fresh", tiny(digits_folder()))
    value = steps.plan(fresh, ["retrack"], 7, workers=2)
    rows = {r["what"]: r for r in value["rows"]}
    assert rows["train the full model"]["evals"] == 3 * 40 * 32
    assert rows["fit retrack"]["evals"] == 3 * 5 * (3 * 8 + 4 * 8)
    assert rows["fit retrack"]["seconds"] == pytest.approx(
        rows["fit retrack"]["evals"] * value["seconds_per_evaluation"] / 2
    )
    assert all(r["half_width"] is None for r in value["alternatives"])
    assert "unknown until" in value["note"]


# --- in memory ------------------------------------------------------------------------------------


def test_attribute_in_memory_is_the_runs_estimand_and_agrees(run: Run) -> None:
    method = get_method(run, "retrack")
    folder = run.path(method.artifact())
    model, bank, queries = load_model(run, "base"), Bank.load(folder), terms.load_queries(run, SET)
    data = load_data(run)
    settings = {"strata": 12, "rounds": 6, "block": 64, "seed": 5, "estimand": "elbo", "excess": False}
    found = guda.attribute(model, bank, queries, data=data, plan="importance", **settings)
    plain = guda.attribute(model, bank, queries, **settings)
    stored = Scores.read(steps.scores_path(run, SET, "retrack"))
    assert found.estimand == plain.estimand == stored.estimand
    assert found.groups == stored.groups
    assert found.n_evals == 2 * 2 * 12 * 6
    for one in (found, plain):
        for two in (stored, plain):
            z = (one.score - two.score) / np.hypot(one.stderr, two.stderr).clip(1e-12)  # type: ignore[arg-type]
            if one is not two:
                assert np.mean(abs(z) < 3) > 0.9
    assert found.p_first is not None
    np.testing.assert_allclose(found.p_first.sum(axis=1), 1)
    steps.change_scoring(run, plan="stratified", **settings)  # the same keys: the run's own numbers
    own = steps.score(run, SET, ["retrack"], Inline())["retrack"]
    np.testing.assert_allclose(plain.score, own.score, rtol=1e-3, atol=1e-4)
    with pytest.raises(GudaError) as e:
        guda.attribute(model, bank, queries, plan="importance")
    assert e.value.code == "training-images-missing"
    alone = guda.attribute(model, Bank({"0": bank["0"]}), queries, **settings)  # one group only
    np.testing.assert_array_equal(alone.score[:, 0], plain.score[:, 0])


def test_unlearn_and_attribute_with_defaults(run: Run) -> None:
    model, data = load_model(run, "base"), load_data(run)
    bank = guda.unlearn(model, data, steps=2, batch_forget=4, batch_retain=4)
    found = guda.attribute(model, bank, terms.load_queries(run, SET).shards(3)[0])
    assert found.score.shape == (3, 3)
    assert found.stderr is not None
    assert (found.lo < found.hi).all()  # type: ignore[operator]
    assert model.digest() == load_model(run, "base").digest()
