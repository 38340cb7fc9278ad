"""The method `synthesized` on tiny runs: by brute force, both kinds of model, resumed and sharded, settings refused."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import textrun
import torch
from tinyrun import SET, Inline, copy_run, exact

from guda import steps
from guda.baselines.features import grid
from guda.baselines.gradients import Gradients, fisher_pass, inverse, mean_of
from guda.baselines.similarity import exemplars
from guda.baselines.synthesized import Ascent, Query, Samples, losses, unlearn_query
from guda.errors import GudaError, NotFinite
from guda.files import read_tensors
from guda.methods import synthesized
from guda.methods.base import METHODS, get_method
from guda.methods.terms import load_queries
from guda.run.data import load_data
from guda.run.models import load_model
from guda.run.run import Run
from guda.run.task import Task
from guda.scoring.scores import Scores
from guda.steps.search_space import default_space
from guda.steps.setting_trial import Trials


def timesteps(T: int, n: int) -> torch.Tensor:
    return torch.from_numpy(grid(T, n))


ID = "synthesized"
SMALL = ("steps=6", "checkpoints=[2,4]", "scale=length", "lr=0.01", "levels=5", "per_group=3", "fisher_passes=2")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return copy_run(tmp_path / "run")


def score(run: Run, *settings: str, engine: Inline | None = None, queries: str = SET) -> np.ndarray:
    engine = engine or Inline()
    steps.change_settings(run, [ID], list(settings))
    steps.fit(run, [ID], engine)
    steps.score(run, queries, [ID], engine)
    return Scores.read(steps.scores_path(run, queries, ID)).score


def test_it_says_what_it_is(run: Run) -> None:
    found = get_method(run, ID)
    assert "positive = helps" in METHODS[ID].summary
    assert found.unit == "loss"
    assert found.config.reached == (10, 25, 50, 100)
    config = found.config
    assert (config.scale, config.levels, config.per_group, config.aggregate) == ("length", 10, 20, "sum")


def test_by_brute_force_from_the_parts(run: Run) -> None:
    found = score(run, *SMALL, "at=4", "scale=n", "lr=1e-3")
    data, model, queries = load_data(run), load_model(run, "base"), load_queries(run, SET)
    x0 = model.encode(data.images)
    fisher = mean_of([fisher_pass(Gradients(model), x0, data.ids, number=i, block=16) for i in range(2)])
    t = timesteps(100, 5)
    ascent = Ascent(model, "all", inverse(fisher, 1e-3), rate=1e-3 / data.n, levels=5)
    for k in range(3):
        members = exemplars(data, k, 3)
        samples = Samples.of(x0[members], [data.ids[i] for i in members])
        before = losses(model, samples, t, 16)
        for q in (0, 7):
            query = Query(queries.ids[q], model.encode(queries.images[q : q + 1])[0])
            tau = unlearn_query(ascent, query, samples, before, (4,), t, 16).change[0]
            assert abs(found[q, k] - tau.sum()) < 1e-4 * np.abs(found[q]).max()


def test_checkpoint_and_aggregate_cost_nothing(run: Run) -> None:
    score(run, *SMALL)
    by_hand = read_tensors(next(run.path(get_method(run, ID).folder).glob("*.safetensors")))[0]["change"].numpy()
    assert by_hand.shape == (12, 3, 9)
    for place, at in enumerate((2, 4, 6)):
        engine = Inline()
        np.testing.assert_allclose(
            score(run, f"at={at}", "aggregate=max", engine=engine), by_hand[:, place].reshape(12, 3, 3).max(-1)
        )
        assert engine.ran == []


def test_settings_share_what_they_can(run: Run) -> None:
    engine = Inline()
    score(run, *SMALL, engine=engine)
    assert len(engine.ran) == 4  # two passes, the losses, one shard
    other = Inline()
    score(run, "lr=0.02", engine=other)
    assert [name for name in other.ran if name.startswith("fit")] == []
    more = Inline()
    score(run, "fisher_passes=3", engine=more)
    assert [name for name in more.ran if name.startswith("fit")] == ["fit synthesized: Fisher information, pass 2"]


def test_no_step_scores_zero(run: Run) -> None:
    np.testing.assert_array_equal(score(run, *SMALL, "lr=0"), 0.0)


def test_of_a_flip_pair_the_larger_counts(run: Run) -> None:
    plain = score(run, *SMALL)
    both = score(run, "flips=true", "aggregate=mean") * 3
    change = read_tensors(next(run.path(get_method(run, ID).folder).glob("*.safetensors")))[0]["change"].numpy()
    assert change.shape == (12, 3, 18)
    pair = change[:, 2].reshape(12, 2, 9)
    np.testing.assert_allclose(both, pair.max(axis=1).reshape(12, 3, 3).sum(-1))
    np.testing.assert_allclose(pair[:, 0].reshape(12, 3, 3).sum(-1), plain, rtol=1e-3, atol=1e-6)
    assert (both >= plain - 1e-6).all()


def test_first_order_is_the_limit_of_small_steps(run: Run) -> None:
    """As far as float32 tells small differences of losses."""
    few = (*SMALL, "checkpoints=[]", "steps=1", "scale=n", "per_group=8", "levels=10")
    gaps = []
    for lr in (1e-4, 1e-5, 1e-6):
        steps, first = score(run, *few, f"lr={lr}", "order=steps"), score(run, "order=first")
        gaps.append(np.abs(steps - first).max() / np.abs(first).max())
    assert gaps[1] < gaps[0] / 5
    assert gaps[2] < 0.01


@pytest.mark.parametrize("order", ["steps", "first"])
def test_neither_resuming_nor_order_nor_shards_change_a_bit(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    steps.change_settings(run, [ID], [*SMALL, f"order={order}"])
    twin = Run.open(shutil.copytree(run.root, tmp_path / "twin"))
    monkeypatch.setattr(synthesized, "SHARD", 5)
    whole = score(run)

    class Backwards(Inline):
        """The last first, one at a time, a new engine after each: the tasks do not need one another's order."""

        def __call__(self, run: Run, tasks: list[Task], title: str) -> int:
            return sum(Inline.__call__(self, run, [task], title) for task in reversed(tasks) if task.ready(run))

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            steps.fit(twin, [ID], Inline(stop_after=1))
    steps.fit(twin, [ID], Backwards())
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            steps.score(twin, SET, [ID], Inline(stop_after=1))
    score(twin, engine=Backwards())
    assert exact(run.root) == exact(twin.root)
    for size in (1, 12):
        monkeypatch.setattr(synthesized, "SHARD", size)
        np.testing.assert_array_equal(score(run), whole)
    if order == "first":
        shutil.rmtree(run.path(get_method(run, ID).folder))
        monkeypatch.setattr(synthesized, "DIRECTIONS", 1)  # one query's directions at a time
        np.testing.assert_array_equal(score(run), whole)


def test_divergence_is_one_line_and_earlier_checkpoints_stay(run: Run) -> None:
    with pytest.raises(NotFinite, match=r"12 of 12 queries\) diverged before step 6; set lr lower") as e:
        score(run, *SMALL, "lr=0.6", "cap=0.2001")  # a tenth of the weights' length a step: two steps are within
    assert "\n" not in str(e.value)
    assert np.isfinite(score(run, "at=2")).all()


def test_settings_can_be_tried(run: Run) -> None:
    """`guda tune` and `guda ablate` hold settings other than the recipe's against LOGO."""
    trials = Trials(run, SET)
    trials.prepare(Inline())
    values = {"steps": 4, "checkpoints": [2], "scale": "length", "per_group": 2, "fisher_passes": 1, "levels": 5}
    found = {f"lr={lr}": trials.method(ID, values | {"lr": lr}, "test") for lr in (0.01, 0.02)}
    for method in found.values():
        trials.carry_out(method, Inline())
        assert trials.cost(method)["fit_evals"] > 0
        assert trials.seconds(method)["score_seconds"] > 0
    assert set(trials.compare(found).methods) == set(found)
    assert ID not in run.recipe.methods
    with pytest.raises(GudaError, match="synthesized has no default search"):
        default_space(METHODS[ID], {})


def test_its_time_is_found_and_its_steps_are_no_training(run: Run) -> None:
    score(run, *SMALL)
    entry = steps.evaluate(run, SET)
    assert entry.methods[ID].score_seconds > 0
    assert f"evals_ratio_vs_logo.{ID}" in entry.figures
    assert f"steps_ratio_vs_logo.{ID}" not in entry.figures
    assert "steps_ratio_vs_logo.retrack" in entry.figures


def test_costs(run: Run) -> None:
    steps.change_settings(run, [ID], [*SMALL])
    found = get_method(run, ID)
    once = 9 * 5  # images x timesteps
    assert found.fit_evals() == (3 * 48 * 2 + once) / 3
    assert found.score_evals() == 3 * 6 * 5 + 3 * once
    rows = {r["what"]: r for r in steps.plan(run, [ID], 12)["rows"]}
    assert rows[f"fit {ID}"]["evals"] == 3 * 48 * 2 + once
    assert rows[f"fit {ID}"]["disk"] == 2 * 8 * load_model(run, "base").n_parameters()
    assert rows[f"score 12 queries by {ID}"]["evals"] == 12 * found.score_evals()
    steps.change_settings(run, [ID], ["order=first", "flips=true", "fisher_images=10"])
    found = get_method(run, ID)
    assert found.fit_evals() == (3 * 10 * 2 + 2 * once) / 3
    assert found.score_evals() == 3 * 6 * 5 + 3 * 2 * once / 16


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["at=30"], r"at = 30 is not a checkpoint; losses are taken after \[10, 25, 50, 100\] steps"),
        (["steps=50", "at=100"], r"at = 100 is not a checkpoint"),
        (["checkpoints=[25,10]"], "must be numbers of steps, increasing"),
        (["checkpoints=[0,10]"], "must be numbers of steps, increasing"),
        (["weights='('"], "not a regular expression"),
        (["weights=attn2"], "weights 'attn2' names none of the network's weights"),
        (["levels=200"], "200 timesteps of a schedule that has 100"),
        (["aggregate=top0"], "aggregate"),
        (["damping=0"], "damping"),
        (["order=second"], "order"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(run: Run, settings: list[str], message: str) -> None:
    with pytest.raises(GudaError, match=message) as e:
        score(run, *settings)
    assert "\n" not in str(e.value)


# ---- text-to-image ------------------------------------------------------------------------------------------


@pytest.fixture
def text(tmp_path: Path) -> Run:
    """A given pipeline and pictures of ours: nothing to train, nothing to sample."""
    model = {"path": str(textrun.sd_folder()), "start": None}
    run = textrun.start(tmp_path / "text", textrun.tiny_text(model=model, training=None))
    steps.add_queries(run, textrun.write_prompted(tmp_path / "mine"))
    return run


def test_text_to_image_moves_keys_and_values_only(text: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Spy(Ascent):
        def moved(self) -> float:
            base = load_model(text, "base").weights()
            seen.append({n for n, w in self.denoiser.weights().items() if not torch.equal(w, base[n])})
            return super().moved()

    monkeypatch.setattr(synthesized, "Ascent", Spy)
    few = ("steps=2", "checkpoints=[1]", "scale=length", "per_group=2", "levels=2", "fisher_passes=1", "flips=true")
    found = score(text, *few, "fisher_images=4", queries="mine")
    assert found.shape == (3, 3)
    assert np.isfinite(found).all()
    assert np.abs(found).min() > 0
    moved = set.union(*seen)
    names = {n for n, _ in load_model(text, "base").module.named_parameters()}
    assert moved == {n for n in names if "attn2.to_k" in n or "attn2.to_v" in n}
    assert 0 < len(moved) < len(names)
    assert np.isfinite(score(text, "order=first", queries="mine")).all()


def test_the_prompt_of_a_query_counts(text: Run) -> None:
    """The same picture told something else is unlearned elsewhere."""
    few = ["steps=1", "checkpoints=[]", "scale=length", "per_group=1", "levels=2", "fisher_passes=1", "fisher_images=4"]
    steps.change_settings(text, [ID], few)
    steps.fit(text, [ID], Inline())
    work = synthesized._Work(text, get_method(text, ID).config.model_dump(mode="json"))
    x = work.model.encode(load_queries(text, "mine").images[:1])[0]
    ascent = work.ascent()
    told = work.model.condition(["An artwork of Dogs, with red", "An artwork of Sea, with blue"])
    one, other = (ascent.directions(Query("q", x, told[i : i + 1]), (1,)) for i in range(2))
    assert any(not torch.equal(one[name], other[name]) for name in one)
