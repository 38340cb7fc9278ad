"""`guda tune`: the best of what was tried, on queries of its own, and the same study however often it is killed."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tinyrun import SET, Inline, copy_run, digits_folder, tiny, tree

from guda import steps
from guda.errors import GudaError
from guda.evaluation.results import Figure
from guda.methods.base import get_method
from guda.methods.regroup import Subset
from guda.methods.terms import load_queries
from guda.run.recipe import Recipe
from guda.run.run import Run
from guda.steps.search_space import parse_space
from guda.steps.tune import TuneTrial, choose_groups, ranked, read_trace, suggest, tune
from programs import Programs
from refusals import refused
from waiting import stopped, wait_for

TUNING = "samples-s1-n12-t4"  # the recipe's queries have seed 0, so tuning takes 1
SEARCH = "lr=1e-4..1e-1,steps=1|2|4"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return copy_run(tmp_path / "run")


def study(run: Run, trials: int, search: str = SEARCH, engine: Inline | None = None, **options):
    options = {"n": 12} | options
    return tune(run, "retrack", trials, engine or Inline(), space=parse_space(search), **options)


def test_it_picks_what_evaluating_every_trial_says_is_best(run: Run, tmp_path: Path) -> None:
    before = run.seconds("fit/retrack"), (run.root / "recipe.yaml").read_text()
    found = study(run, 5)
    assert (run.seconds("fit/retrack"), (run.root / "recipe.yaml").read_text()) == before
    assert found.queries == TUNING
    assert found.groups == ("0", "1", "2")
    brute = []
    other = copy_run(tmp_path / "other")
    steps.change_queries(other, n=12, seed=1)
    assert steps.sample(other, Inline()) == TUNING
    for trial in found.trials:
        lr, count = trial.settings["lr"], trial.settings["steps"]
        steps.change_settings(other, ["retrack"], [f"lr={lr!r}", f"steps={count}"])
        steps.fit(other, ["retrack"], Inline())
        steps.score(other, TUNING, ["logo", "retrack"], Inline())
        entry = steps.evaluate(other, TUNING)
        assert trial.metrics == entry.methods["retrack"].metrics
        assert trial.ratio_to_ceiling == entry.methods["retrack"].ratio_to_ceiling
        assert trial.fit_evals == entry.methods["retrack"].fit_evals == count * (3 * 8 + 4 * 8)
        assert trial.evals_ratio_vs_logo == entry.figures["evals_ratio_vs_logo.retrack"]
        assert found.ceiling == entry.ceiling["top1"].mean
        top1, mrr = (entry.methods["retrack"].metrics[m].mean for m in ("top1", "mrr"))
        brute.append((-top1, -mrr, count, trial.number, {"lr": lr, "steps": count}))
    assert found.chosen == min(brute)[-1]
    assert len({b[0] for b in brute}) > 1, "all trials are equal: the test could not fail"


def test_by_function_the_best_moves_the_model_most_like_a_retraining(run: Run, tmp_path: Path) -> None:
    found = study(run, 3, by="function")
    other, values = copy_run(tmp_path / "other"), []
    steps.change_queries(other, n=12, seed=1)
    assert steps.sample(other, Inline()) == TUNING
    for trial in found.trials:
        changes = [f"lr={trial.settings['lr']!r}", f"steps={trial.settings['steps']}"]
        steps.change_settings(other, ["retrack"], changes)
        steps.fit(other, ["retrack"], Inline())
        row = steps.evaluate_function(other, TUNING, ["retrack"], Inline()).rows[0]
        assert trial.metrics["cos_first"] == row.own["retrack"]
        assert trial.value == (row.own["retrack"].mean + row.other["retrack"].mean) / 2
        values.append(trial.value)
    assert found.ranking[0].value == max(values) > min(values)
    assert found.folder != study(run, 1).folder  # another objective is another study
    with refused("objective-unknown"):
        study(run, 1, by="luck")


def test_a_few_groups_only(run: Run) -> None:
    """Restricted to two groups: only they are fitted, and the oracle ranks only them."""
    found = study(run, 1, "steps=3", groups=("2", "0"))
    trial = found.trials[0]
    assert found.groups == ("0", "2")
    method = type(get_method(run, "retrack"))(
        run, "retrack", get_method(run, "retrack").config.model_copy(update={"steps": 3})
    )
    assert [f.name for f in sorted(run.path(method.artifact()).iterdir())] == [
        "0000-0.safetensors",
        "0002-2.safetensors",
    ]
    queries = load_queries(run, TUNING)
    oracle, method = (m.on(Subset(names=("0", "2"))) for m in (get_method(run, "logo"), method))
    one, two = (oracle.all_scores(queries)[f"logo-s{s}"].score for s in (1, 2))
    mine = method.scores(queries).score
    assert mine.shape == (12, 2)

    def first(scores: np.ndarray) -> np.ndarray:
        return scores[:, 0] >= scores[:, 1]  # ties: the earlier group

    expected = np.mean([first(mine) == first(gold) for gold in (two, one)])
    assert trial.metrics["top1"].mean == pytest.approx(expected, abs=1e-12)
    assert found.ceiling == pytest.approx(np.mean(first(one) == first(two)), abs=1e-12)


def test_which_groups(run: Run) -> None:
    assert choose_groups(run, None) == ("0", "1", "2")
    two = choose_groups(run, 2)
    assert len(two) == 2
    assert set(two) < {"0", "1", "2"}
    assert choose_groups(run, ["2", "0"]) == ("0", "2")
    for bad, message in (
        (1, "at least 2"),
        (4, "the run has 3"),
        (["0"], "name several"),
        (["0", "7"], "unknown group"),
    ):
        with pytest.raises(GudaError, match=message):
            choose_groups(run, bad)


@pytest.mark.slow
def test_stopped_anywhere_it_goes_on_as_if_it_had_not_been(run: Run, tmp_path: Path, launch: Programs) -> None:
    """Ten trials, so that the sampler models what it has seen: in one go; kill -9, interruptions, in pieces."""
    whole = study(run, 10, n=5)
    text = (whole.folder / "trace.jsonl").read_bytes()
    other = copy_run(tmp_path / "other")
    trace = other.root / whole.folder.relative_to(run.root) / "trace.jsonl"
    program = [sys.executable, str(Path(__file__).with_name("killable_tune.py")), str(other.root), "10", SEARCH]
    process = launch(program, stderr=subprocess.PIPE)
    wait_for(lambda: stopped(other.root).exists() or process.poll() is not None, "the third trial")
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    kept = trace.read_bytes()
    assert text.startswith(kept)
    assert kept != text
    stamps = {p: p.stat().st_mtime_ns for p in other.path("artifacts").rglob("*.safetensors") if p.name[0] != "."}
    with pytest.raises(KeyboardInterrupt):
        study(other, 10, engine=Inline(stop_after=4), n=5)
    assert study(other, 8, n=5).ran > 0
    last = Inline()
    again = study(other, 10, engine=last, n=5)
    assert again.ran == 2
    assert last.ran
    assert trace.read_bytes() == text
    assert (again.folder / "chosen.yaml").read_bytes() == (whole.folder / "chosen.yaml").read_bytes()
    assert {p: p.stat().st_mtime_ns for p in stamps} == stamps, "finished work was done again"
    idle = Inline()
    assert study(other, 10, engine=idle, n=5).ran == 0
    assert idle.ran == []
    # replayed line by line, the sampler says what it said
    lines = read_trace(trace)
    space = parse_space(SEARCH)
    assert [suggest(space, lines[:i], i) for i in range(10)] == [t.params for t in lines]
    assert suggest(space, lines[1:], 9) != lines[9].params, "the last suggestion does not depend on the trace"


def test_tuning_on_what_is_reported_is_refused(run: Run, tmp_path: Path) -> None:
    before = tree(run.root)
    with refused("tuning-seed-taken", match=r"seed 0 draws the queries that .* is evaluated on"):
        study(run, 1, queries_seed=0)
    assert tree(run.root) == before
    study(run, 1, "steps=1")
    drawn = load_queries(run, TUNING)
    (tmp_path / "mine").mkdir()
    Image.fromarray(drawn.images[3, 0]).save(tmp_path / "mine" / "a.png")
    Image.fromarray(255 - drawn.images[3, 0]).save(tmp_path / "mine" / "b.png")
    steps.add_queries(run, tmp_path / "mine")
    study(run, 1, "steps=1")  # nothing is reported on those pictures yet
    steps.score(run, "mine", ["logo", "retrack"], Inline())
    steps.evaluate(run, "mine")
    with pytest.raises(GudaError, match=f"tuning query '{drawn.ids[3]}' of '{TUNING}' is also query 'a' of 'mine'"):
        study(run, 1, "steps=1")
    study(run, 1, "steps=1", queries_seed=2)


def test_the_chosen_recipe_is_whole_and_may_be_applied(run: Run) -> None:
    found = study(run, 2, "steps=1|2|4")
    text = found.recipe.read_text()
    comment = " ".join(line for line in text.splitlines() if line.startswith("#"))
    for part in (TUNING, "groups 0, 1, 2", "of 2,", "separated from the second"):
        assert part in comment
    old = run.recipe
    expected = old.model_dump()
    expected["methods"]["retrack"] |= found.chosen
    assert Recipe.read(found.recipe).model_dump() == expected
    idle = Inline()
    again = study(run, 2, "steps=1|2|4", idle, apply=True)
    assert Run.open(run.root).recipe.model_dump() == expected
    assert (again.folder, again.ran, idle.ran) == (found.folder, 0, [])
    # the searched settings of the recipe are no part of the study: applying them does not start another
    assert study(run, 2, "steps=1|2|4").folder == found.folder
    assert json.loads((found.folder / "study.json").read_text())["fixed"]["batch_forget"] == 8
    steps.change_settings(run, ["retrack"], ["batch_forget=4"])
    assert study(run, 1, "steps=1|2|4").folder != found.folder


def test_a_setting_that_blows_up_is_a_trial_that_failed(run: Run) -> None:
    found = study(run, 4, "lr=1e-3|1e38,steps=3")
    failed = [t for t in found.trials if t.failed]
    assert 0 < len(failed) < 4
    assert all(t.value == 0.0 and not t.metrics and "NaN" in t.failed for t in failed)
    assert found.chosen["lr"] == 1e-3
    with refused("trials-all-failed", match="all 1 trials of retrack failed, the first: unlearning"):
        study(run, 1, "lr=1e38,steps=3")


def trial(number: int, value: float, steps: int, evals: float, failed: str | None = None) -> TuneTrial:
    metrics = {"top1": Figure(mean=value, lo=value, hi=value)}
    return TuneTrial(number=number, params={}, settings={"steps": steps, "n": number // 2}, value=value,
                     metrics=metrics, fit_evals=evals, failed=failed)  # fmt: skip


def test_the_order_of_trials() -> None:
    trace = [
        trial(0, 0.5, 1, 9),
        trial(2, 0.7, 1, 9),
        trial(3, 0.7, 1, 9),
        trial(4, 0.7, 2, 3),
        trial(6, 0.9, 1, 1, "x"),
    ]
    assert [t.number for t in ranked(trace)] == [4, 2, 0]  # 3 has the settings of 2, and 6 failed


def test_what_else_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tree(run.root)
    for method, message in (("retrak", "did you mean 'retrack'"), ("logo", "logo is the oracle"),
                            ("similarity-pixel", "no default search")):  # fmt: skip
        with pytest.raises(GudaError, match=message):
            tune(run, method, 2, Inline())
    with refused("setting-unknown"):
        study(run, 1, "stepz=1")
    assert tree(run.root) == before
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "optuna", None)
        with refused("package-missing", match=r"pip install 'guda\[tune\]'"):
            study(run, 1)
    found = study(run, 1, "steps=1")
    (found.folder / "trace.jsonl").write_text('{"number": 0')
    with refused("trace-damaged", match=r"trace.jsonl is damaged"):
        study(run, 1, "steps=1")


def test_without_the_oracle_there_is_nothing_to_agree_with(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    recipe = tiny(digits_folder(), methods={"logo": {"seeds": [1, 5]}})
    run.update(recipe)
    with refused(
        "logo-not-fitted", match=r"LOGO, which is not fitted for 0, 1, 2 \(4 trainings missing.*--method logo"
    ):
        study(run, 1)
    assert SET in run.query_sets()


def test_tuning_queries_are_never_the_default_and_are_named_where_they_are_evaluated(run: Run) -> None:
    study(run, 1, "steps=3")
    assert "flatter" not in str(steps.evaluate(run, SET).note)
    steps.change_queries(run, n=5, seed=9)  # not drawn yet
    shutil.rmtree(run.path("queries", SET))
    with refused("query-set-missing"):
        steps.choose_queries(run)
    steps.change_queries(run, n=6, seed=1)  # some of the tuning pictures, under another name
    name = steps.sample(run, Inline())
    steps.score(run, name, ["logo", "retrack"], Inline())
    assert "Settings of retrack were chosen on some of these queries" in str(steps.evaluate(run, name).note)


def test_a_study_is_another_when_what_its_trials_depend_on_changes(run: Run) -> None:
    def folder() -> Path:
        return tune(run, "hybrid", 1, Inline(), n=4, space=parse_space("share=0.1|0.5")).folder

    steps.change_settings(run, ["shift"], ["steps=2", "batch_forget=8", "batch_retain=8"])
    first = folder()
    assert folder() == first
    steps.change_settings(run, ["shift"], ["steps=3"])
    second = folder()
    steps.change_scoring(run, drift="subtract", reference=2)
    assert len({first, second, folder()}) == 3


def test_nothing_is_drawn_before_the_oracle_is_there(tmp_path: Path) -> None:
    run = steps.init(tmp_path / "run", tiny(digits_folder()))
    before = tree(run.root)
    with refused("logo-not-fitted"):
        study(run, 1)
    assert tree(run.root) == before
