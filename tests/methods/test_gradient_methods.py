"""TRAK and its kin on a tiny run, with the gradient itself as feature: every score by brute force."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from textrun import SET as TEXT_SET
from textrun import STYLES, copy_text
from tinyrun import GROUPS, SET, Inline, copy_run, digits_folder, exact, tiny

from guda import steps
from guda.baselines import influence
from guda.baselines.features import FeatureConfig, Featuriser, profile, residuals
from guda.errors import GudaError, Mismatch
from guda.files import read_json, read_tensors, write_json, write_tensors
from guda.methods.base import METHODS, get_method
from guda.methods.features import FeatureStore, error_tasks
from guda.methods.terms import load_queries
from guda.run.data import load_data
from guda.run.models import load_model
from guda.run.run import Run
from guda.scoring.scores import Scores

IDS = ("trak", "dtrak", "das", "das-public", "das-squared", "tracin", "relatif")
LAM = 0.3


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return copy_run(tmp_path / "run")


def score(run: Run, name: str, *settings: str, engine: Inline | None = None) -> np.ndarray:
    engine = engine or Inline()
    steps.change_settings(run, [name], list(settings))
    steps.fit(run, [name], engine)
    steps.score(run, SET, [name], engine)
    return Scores.read(steps.scores_path(run, SET, name)).score


def phis(run: Run, **config: Any) -> tuple[np.ndarray, np.ndarray]:
    """(training images, queries): bare gradients."""
    model, data, queries = load_model(run, "base"), load_data(run), load_queries(run, SET)
    make = Featuriser(model, FeatureConfig(sketch="identity", timesteps=3, **config))
    train = make(model.encode(data.images), data.ids, "train")
    return train.double().numpy(), make(model.encode(queries.images), queries.ids, "queries").double().numpy()


SETTINGS = ("sketch=identity", "timesteps=3", "lam_scale=jl", f"lam={LAM}")


def brute(run: Run, **config: Any) -> tuple[np.ndarray, np.ndarray]:
    """(influences [Q, n], leverages [n]) of the ridge kernel."""
    phi, phi_q = phis(run, **config)
    inverse = np.linalg.inv(phi @ phi.T + LAM * np.eye(len(phi)))
    kernel = phi @ phi.T @ inverse
    return phi_q @ phi.T @ inverse, np.diagonal(kernel)


def summed(run: Run, a: np.ndarray, how: Any = np.sum) -> np.ndarray:
    groups = load_data(run).groups
    return np.stack([how(a[:, groups.members(k)], axis=1) for k in range(len(GROUPS))], axis=1)


def close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-4 * np.abs(expected).max())


def test_the_ids_and_the_papers_settings(run: Run) -> None:
    assert set(IDS) <= METHODS.keys()
    trak, dtrak, das = (get_method(run, m).config for m in ("trak", "dtrak", "das"))
    assert (trak.output, trak.lam, trak.lam_scale, trak.aggregate) == ("loss", 100, "raw_gaussian", "sum")
    assert (dtrak.output, dtrak.lam, dtrak.lam_scale, dtrak.aggregate) == ("squared_norm", 1000, "raw_gaussian", "sum")
    assert (das.output, das.lam, das.lam_scale, das.aggregate) == ("mean_output", 0.01, "jl", "mean")
    assert (das.normalize, das.residual, das.leverage, das.square) == (True, "normalized", 1, False)
    assert get_method(run, "das-public").config.model_dump() == das.model_dump() | {"leverage": 0}


@pytest.mark.parametrize("name", ["trak", "dtrak"])
@pytest.mark.parametrize("solver", ["cholesky", "eigen"])
def test_trak_and_dtrak_by_brute_force(run: Run, name: str, solver: str) -> None:
    a, _ = brute(run, output="loss" if name == "trak" else "squared_norm")
    close(score(run, name, *SETTINGS, f"solver={solver}"), summed(run, a))


@pytest.mark.parametrize("how", ["mean", "max", "median", "top3", "top1000"])
def test_aggregations(run: Run, how: str) -> None:
    a, _ = brute(run)
    rule = {
        "mean": np.mean, "max": np.max, "median": np.median, "top1000": np.mean,
        "top3": lambda x, axis: np.sort(x, axis=1)[:, -3:].mean(axis=1),
    }  # fmt: skip
    close(score(run, "trak", *SETTINGS, f"aggregate={how}"), summed(run, a, rule[how]))


def test_das_weighs_images_not_queries(run: Run) -> None:
    """With as many queries as images the wrong axis would pass unseen, so the weights are checked by themselves."""
    a, h = brute(run, output="mean_output", normalize=True)
    model = load_model(run, "base")
    r = residuals(profile(model, model.encode(load_data(run).images), 20, 0, 256), "normalized")
    settings = (*SETTINGS, "residual_timesteps=20")
    close(score(run, "das", *settings), summed(run, a * r / (1 - h), np.mean))
    close(score(run, "das", *settings, "leverage=2"), summed(run, a * r / (1 - h) ** 2, np.mean))
    close(score(run, "das-public", *settings), summed(run, a * r, np.mean))
    close(score(run, "das-squared", *settings), summed(run, (a * r) ** 2, np.mean))
    close(score(run, "das-public", *SETTINGS, "residual_timesteps=100", "residual=none"), summed(run, a, np.mean))


def test_tracin_relatif_and_cosines(run: Run) -> None:
    phi, phi_q = phis(run)
    close(score(run, "tracin", *SETTINGS[:2]), summed(run, phi_q @ phi.T))
    unit, unit_q = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (phi, phi_q))
    close(score(run, "tracin", *SETTINGS[:2], "divide=gradient"), summed(run, unit_q @ unit.T))
    a, _ = brute(run)
    z = np.linalg.inv(phi @ phi.T + LAM * np.eye(len(phi))) @ phi
    close(score(run, "relatif", *SETTINGS), summed(run, a / np.linalg.norm(z, axis=1)))
    close(score(run, "relatif", *SETTINGS, "divide=gradient"), summed(run, a / np.linalg.norm(phi, axis=1)))


def test_removal_of_a_group_is_exact(run: Run) -> None:
    phi, phi_q = phis(run)
    groups = load_data(run).groups
    expected = []
    for k in range(len(GROUPS)):
        members = groups.members(k)
        rest = np.delete(phi, members, axis=0)
        # K_rest^-1 Phi_g^T 1 through the rest's own dual form
        b = phi[members].sum(axis=0)
        inner = rest @ rest.T + LAM * np.eye(len(rest))
        expected.append(phi_q @ ((b - rest.T @ np.linalg.solve(inner, rest @ b)) / LAM))
    close(score(run, "trak", *SETTINGS, "aggregate=removal"), np.stack(expected, axis=1))


def test_f_of_queries_may_differ(run: Run) -> None:
    phi, _ = phis(run)
    _, phi_q = phis(run, output="squared_norm")
    close(score(run, "tracin", *SETTINGS[:2], "query_output=squared_norm"), summed(run, phi_q @ phi.T))


def test_seeds_and_models_are_averaged_score_by_score(run: Run) -> None:
    small = ("dim=16", "timesteps=2")
    one, two = (score(run, "trak", *small, f"seeds=[{s}]") for s in (0, 1))
    assert np.abs(one - two).max() > 1e-6
    np.testing.assert_allclose(score(run, "trak", *small, "seeds=[0, 1]"), (one + two) / 2, rtol=1e-9, atol=1e-12)
    full = score(run, "trak", *small, "seeds=[0]", "models=[full-s1]")
    np.testing.assert_allclose(score(run, "trak", *small, "models=[base, full-s1]"), (one + full) / 2, rtol=1e-9)


def test_a_query_that_is_a_training_image_has_its_group_first(run: Run) -> None:
    """Positive control, with the image's own feature in the query's place."""
    data = load_data(run)
    score(run, "dtrak", "dim=256", "aggregate=max", "lam=1e-4", "lam_scale=trace")
    method = get_method(run, "dtrak")
    phi = torch.cat([block for _, block in method.stores()[0].rows().read()]).double()
    items = [method.vectors(0, k)[0]["items"] for k in range(len(GROUPS))]
    found = np.stack([influence.item_scores(method.config, phi, i) for i in items], axis=1)
    own = np.concatenate([np.full(len(m), k) for k, m in enumerate(map(data.groups.members, range(len(GROUPS))))])
    place = np.concatenate([data.groups.members(k) for k in range(len(GROUPS))])
    assert (found[place].argmax(axis=1) == own).mean() > 0.9


def test_work_is_shared_and_done_once(run: Run) -> None:
    small = ("dim=16", "timesteps=2")
    first, second, third = Inline(), Inline(), Inline()
    score(run, "trak", *small, engine=first)
    assert sum("of training images" in name for name in first.ran) == 1
    score(run, "tracin", *small, engine=second)
    assert second.ran == ["fit tracin, network 0, part 0", f"score {SET}/0 by tracin"]
    score(run, "tracin", *small, engine=third)
    assert third.ran == []


def test_a_run_is_byte_identical_however_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("guda.run.parts.SHARD", 5)
    small = ("dim=16", "timesteps=2", "block=4")
    whole, pieces = copy_run(tmp_path / "one"), copy_run(tmp_path / "two")
    every = {"das": (*small, "residual_timesteps=5", "aggregate=max"), "trak": small}
    for name, settings in every.items():
        score(whole, name, *settings)
    for name, settings in every.items():
        for _ in range(50):
            try:
                score(pieces, name, *settings, engine=Inline(stop_after=2))
                break
            except KeyboardInterrupt:
                continue
        else:
            pytest.fail("never finished")
    assert exact(whole.root) == exact(pieces.root)


def test_shards_do_not_change_a_feature(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    small = ("dim=16", "timesteps=2", "block=4")
    score(run, "tracin", *small)
    whole = torch.cat([b for _, b in get_method(run, "tracin").stores()[0].rows().read()])
    monkeypatch.setattr("guda.run.parts.SHARD", 7)
    store = get_method(run, "tracin").stores()[0]
    for path in run.path(store.folder).glob("train-*"):
        path.unlink()
    steps.fit(run, ["tracin"], Inline())
    assert torch.equal(torch.cat([b for _, b in store.rows().read()]), whole)


def test_features_of_other_weights_are_refused(run: Run) -> None:
    score(run, "trak", "dim=16", "timesteps=2")
    store: FeatureStore = get_method(run, "trak").stores()[0]
    queries = load_queries(run, SET)
    path = run.path(store.asked(queries).files[0])
    tensors, header = read_tensors(path)
    write_tensors(path, tensors, header | {"meta": header["meta"] | {"model": "another"}})
    run.path(get_method(run, "trak").made(queries).files[0]).unlink()
    with pytest.raises(Mismatch, match="model differs"):
        steps.score(run, SET, ["trak"], Inline())


@pytest.mark.parametrize("how", ["sum", "max"])
def test_groups_are_asked_about_when_scores_are_read(run: Run, how: str) -> None:
    """Which groups are wanted changes no file, so other groups never get these groups' numbers."""
    whole = score(run, "trak", "dim=16", "timesteps=2", f"aggregate={how}")
    for names in (("0", "1"), ("1", "2")):
        steps.change_groups(run, ",".join(names))
        steps.score(run, SET, ["trak"], engine := Inline())
        found = Scores.read(steps.scores_path(run, SET, "trak"))
        assert engine.ran == []
        assert found.groups == names
        np.testing.assert_array_equal(found.score, whole[:, [GROUPS.index(n) for n in names]])


def test_nothing_of_other_weights_is_read(run: Run) -> None:
    """The model was exchanged since: features, residuals, vectors and scores are refused, each by itself."""
    score(run, "das", "dim=16", "timesteps=2", "residual_timesteps=5")
    das, queries = get_method(run, "das"), load_queries(run, SET)
    store = das.stores()[0]
    card = run.path("models", "full-s0", "guda.json")
    write_json(card, read_json(card) | {"weights": "others"})
    for read in (lambda: das.scores(queries), store.rows, lambda: das.residual(store), lambda: das.vectors(0, 0)):
        with pytest.raises(Mismatch) as e:
            read()
        assert e.value.code == "features-stale"


def test_residuals_do_not_depend_on_shards(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    score(run, "das", "dim=16", "timesteps=2", "residual_timesteps=5")
    das = get_method(run, "das")
    whole = das.residual(das.stores()[0])
    for path in run.path("artifacts").glob("residuals-*/*"):
        path.unlink()
    monkeypatch.setattr("guda.run.parts.SHARD", 7)
    for task in error_tasks(run, 5, "base", 0):
        Inline()(run, [task], "")
    np.testing.assert_array_equal(das.residual(das.stores()[0]), whole)


def test_the_plan_counts_the_full_model_once(tmp_path: Path) -> None:
    run = steps.init(tmp_path / "new", tiny(digits_folder()))
    rows = {r["what"]: r for r in steps.plan(run, ["trak"], 10)["rows"]}
    n = load_data(run).n
    assert rows["fit trak"]["evals"] == pytest.approx(30 * n, abs=5)  # and a unit for each task without network
    assert rows["score 10 queries by trak"]["evals"] == 300
    assert rows["fit trak"]["disk"] == 4 * 4096 * n + 8 * n**2


def test_several_workers_make_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = ("dim=16", "timesteps=2", "block=4", "aggregate=max")
    one, two = copy_run(tmp_path / "one"), copy_run(tmp_path / "two")
    score(one, "dtrak", *small)
    steps.change_settings(two, ["dtrak"], list(small))
    engine = steps.local_engine(2)
    steps.fit(two, ["dtrak"], engine)
    steps.score(two, SET, ["dtrak"], engine)
    assert exact(one.root) == exact(two.root)


def test_labels_that_are_shuffled_leave_nothing_to_find(run: Run) -> None:
    """Negative control: sums over random groups are near each other, sums over digits are not."""
    a, _ = brute(run, output="squared_norm")
    spread = summed(run, a).std(axis=1).mean()
    rng, n = np.random.default_rng(0), load_data(run).n
    random = [np.stack([a[:, p].sum(axis=1) for p in np.split(rng.permutation(n), 3)], axis=1) for _ in range(20)]
    assert spread > 1.5 * np.mean([r.std(axis=1).mean() for r in random])


@pytest.mark.parametrize(
    ("name", "setting", "message"),
    [
        ("trak", "aggregate=average", "aggregate"),
        ("trak", "lam=0", "lam"),
        ("trak", "sketch=hash", "sketch"),
        ("das", "aggregate=removal", "removal is exact by itself"),
        ("tracin", "leverage=1", "set kernel: ridge"),
        ("trak", "models=[logo]", "models are base or full-s<seed>"),
        ("trak", "models=['5']", "models are base or full-s<seed>"),
        ("trak", "seeds=[1, 1]", "name each once"),
        ("trak", "weights='('", "is not a regular expression"),
        ("tracin", "lam=3", "lam means nothing with these settings"),
        ("trak", "residual_timesteps=7", "residual_timesteps means nothing"),
        ("das", "residual_timesteps=101", "101 timesteps of a schedule that has 100"),
        ("trak", "sketch=sjlt:3", "3 equal parts"),
        ("trak", "timesteps=1000", "1000 timesteps of a schedule that has 100"),
        ("trak", "weights=attn2", "names none of the network's weights"),
    ],
)
def test_wrong_settings_are_one_line(run: Run, name: str, setting: str, message: str) -> None:
    with pytest.raises(GudaError, match=message) as e:
        score(run, name, setting)
    assert "\n" not in str(e.value)


def test_costs_are_counted(run: Run) -> None:
    n = load_data(run).n
    steps.change_settings(run, ["das"], ["timesteps=4", "residual_timesteps=50"])
    das = get_method(run, "das")
    assert das.fit_evals() == n * (3 * 4 + 50) / len(GROUPS)
    assert das.score_evals() == 12


@pytest.mark.slow
def test_a_text_to_image_model_and_its_cross_attention_alone(tmp_path: Path) -> None:
    run = copy_text(tmp_path / "text")
    for name in ("trak", "das"):
        settings = ["dim=32", "timesteps=2", "weights=attn2\\.to_[kv]", "block=4"]
        settings += ["residual_timesteps=3"] if name == "das" else []
        steps.change_settings(run, [name], settings)
        steps.fit(run, [name], Inline())
        steps.score(run, TEXT_SET, [name], Inline())
        found = Scores.read(steps.scores_path(run, TEXT_SET, name))
        assert found.groups == STYLES
        assert np.ptp(found.score, axis=1).min() > 0
    names = get_method(run, "trak").stores()[0].featuriser().gradients.names
    assert names
    assert all("attn2.to_k" in n or "attn2.to_v" in n for n in names)


def test_a_fresh_process_finds_methods_of_other_files() -> None:
    """A worker imports the task's module alone; kfac's tasks are this module's too."""
    look = "from guda.methods.gradient import _method; print(_method(None, 'kfac', {}).method_id)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "kfac"
