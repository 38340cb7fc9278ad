"""The Python interface: the same numbers as the command line, in bounded memory, for every method."""

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import guda
import tiny_pipelines
from guda.config import ModelConfig
from guda.data.images import ImageData
from guda.data.queries import Queries
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.loading import build_denoiser
from guda.run.data import load_prompts
from guda.scoring.scores import Scores

COLUMNS = ("score", "stderr", "lo", "hi", "rank", "rank_lo", "rank_hi", "p_first", "n_evals")
ELBO = {"estimand": "elbo", "excess": False}

QUICK = {"steps": 2, "batch_forget": 4, "batch_retain": 4}


def pictures(folder: Path, names: list[str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    for k, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shade = 40 + 60 * (k % 3) + rng.integers(0, 40, (8, 8))
        Image.fromarray(shade.astype(np.uint8), "L").save(folder / f"{name}.png")


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model/, art/<group>/*.png and generated/*.png"""
    root = tmp_path_factory.mktemp("given")
    torch.manual_seed(0)
    config = ModelConfig(net="mlp", options={"width": 16, "depth": 1}, scheduler="squaredcos_cap_v2:100")  # type: ignore[call-arg]
    build_denoiser(config, (1, 8, 8)).save_pretrained(root / "model")
    pictures(root / "art", [f"{'abc'[i % 3]}/{i:02d}" for i in range(24)], 1)
    pictures(root / "generated", [f"img_{i:02d}" for i in range(20)], 2)
    return root


@pytest.fixture(scope="module")
def parts(given: Path) -> tuple[Denoiser, ImageData, Queries]:
    model = guda.Denoiser.from_pretrained(given / "model")
    return model, guda.ImageData.from_folder(given / "art"), guda.Queries.from_folder(given / "generated")


def assert_same(one: Scores, two: Scores) -> None:
    for name in ("method", "unit", "estimand", "queries", "groups", "sign"):
        assert getattr(one, name) == getattr(two, name), name
    for name in COLUMNS:
        found, expected = getattr(one, name), getattr(two, name)
        assert (found is None) == (expected is None), name
        if found is not None:
            np.testing.assert_array_equal(np.broadcast_to(found, one.score.shape), expected, name)


@pytest.mark.slow
def test_python_and_the_command_line_agree_to_the_last_bit(
    given: Path, parts: tuple[Denoiser, ImageData, Queries], tmp_path: Path
) -> None:
    def command(*words: str) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, "-m", "guda", *words], check=True, capture_output=True, env=environment)

    folder = str(tmp_path / "art")
    command("init", folder, "--model", str(given / "model"), "--data", str(given / "art"))
    command("fit", folder, "--method", "retrack")
    command("score", folder, "--queries", str(given / "generated"), "--method", "retrack")
    stored = guda.open(folder).scores("retrack")

    model, data, queries = parts
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    bank = guda.unlearn(model, data, operator="retrack")
    assert_same(guda.attribute(model, bank, queries), stored)
    torch.set_num_threads(before)
    assert_same(guda.attribute(model, data, queries, "retrack"), stored)
    assert torch.get_num_threads() == before


def test_a_bank_raced_banded_and_less_its_drift_is_what_a_run_gives(
    parts: tuple[Denoiser, ImageData, Queries], tmp_path: Path
) -> None:
    model, data, queries = parts
    bank = guda.unlearn(model, data, "shift", **QUICK)
    for asked in (
        {"stop": "top1@0.95,budget=600"},
        {"band": "20:100"},
        {"drift": "subtract", "reference": 3, "plan": "importance"} | ELBO,
    ):
        by_run = guda.attribute(model, data, queries, "shift", options=QUICK, folder=tmp_path / "run", **asked)
        by_bank = guda.attribute(model, bank, queries, **asked)
        assert_same(Scores.read(_written(by_bank, tmp_path)), Scores.read(_written(by_run, tmp_path)))
    rule = guda.unlearn(model, data, "posterior")
    assert_same(guda.attribute(model, rule, queries), guda.attribute(model, data, queries, "posterior"))


@pytest.mark.parametrize(
    "asked",
    [
        {"estimand": "path", "excess": False},
        {"estimand": "path", "excess": True, "plan": "importance"},
        {"estimand": "elbo", "excess": True},
        {"estimand": "path", "excess": True, "band": "20:100"},
        {"estimand": "path", "excess": False, "stop": "top1@0.95,budget=600"},
        {"estimand": "path", "excess": True, "stop": "top1@0.95,budget=600"},
    ],
    ids=str,
)
def test_both_doors_agree_on_path_divergences_and_excess(
    parts: tuple[Denoiser, ImageData, Queries], asked: dict[str, object], tmp_path: Path
) -> None:
    model, data, queries = parts
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    for method, options in (("retrack", QUICK), ("posterior", {})):
        by_run = guda.attribute(model, data, queries, method, options=options, folder=tmp_path / method, **asked)
        bank = guda.unlearn(model, data, method, **options)
        by_bank = guda.attribute(model, bank, queries, **asked)
        assert_same(Scores.read(_written(by_bank, tmp_path)), Scores.read(_written(by_run, tmp_path)))
        assert (by_bank.unit == "log ratio") == (asked["estimand"] == "path" and asked["excess"])
    torch.set_num_threads(before)


def test_an_average_may_be_given(parts: tuple[Denoiser, ImageData, Queries], given: Path) -> None:
    """A picture of it is left out of its own average, and a given average is not drawn."""
    model, data, queries = parts
    bank = guda.unlearn(model, data, **QUICK)
    plain = np.log(guda.attribute(model, bank, queries, estimand="path", excess=False).score)
    expected = [plain[q] - np.delete(plain, q, axis=0).mean(axis=0) for q in range(len(plain))]
    for average in (queries, given / "generated"):
        found = guda.attribute(model, bank, queries, estimand="path", excess=True, average=average)
        np.testing.assert_allclose(found.score, expected, rtol=1e-9, atol=1e-9)


def _written(scores: Scores, folder: Path) -> Path:
    scores.write(folder / "scores.parquet")
    return folder / "scores.parquet"


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("similarity-pixel", {}),
        ("hybrid", {}),
        ("dtrak", {"timesteps": 2}),
        ("logo", {"seeds": [1]}),
    ],
)
def test_every_kind_of_method_answers_from_python(
    parts: tuple[Denoiser, ImageData, Queries], method: str, options: dict[str, object], tmp_path: Path
) -> None:
    model, data, queries = parts
    training = {"steps": 2, "batch": 4, "warmup": 1}
    found = guda.attribute(
        model, data, queries, method, options=options, training=training, folder=tmp_path / "run", rounds=2
    )
    assert (found.method, found.queries, found.groups) == (method, queries.ids, ("a", "b", "c"))
    assert_same(guda.open(tmp_path / "run").scores(method), Scores.read(_written(found, tmp_path)))


@pytest.mark.parametrize("by_path", [False, True])
def test_text_to_image_models_answer_from_python(by_path: bool, tmp_path: Path) -> None:
    folder = tiny_pipelines.save("sd", tmp_path / "sd")
    rng = np.random.default_rng(0)
    for name in (f"{style}/{thing}/{i}.png" for style in "AB" for thing in ("Cats", "Dogs") for i in range(2)):
        (tmp_path / "art" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (16, 16, 3), np.uint8)).save(tmp_path / "art" / name)
    model, data = Denoiser.from_pretrained(folder), ImageData.from_folder(tmp_path / "art", content_by="level:2")
    pictures = rng.integers(0, 255, (3, 3, 16, 16), np.uint8)
    queries = Queries.from_arrays(pictures, prompts=["a cat", "a dog", "a cat"])
    options = {"steps": 1, "batch_forget": 2, "batch_retain": 2, "store": "fp32"}
    given = (folder, tmp_path / "art") if by_path else (model, data)
    found = guda.attribute(
        *given, queries, "anchors-removed", options=options, folder=tmp_path / "run", strata=2, **ELBO
    )
    assert found.groups == ("A", "B")
    assert (tmp_path / "run" / "models" / "given").exists() != by_path
    prompts = load_prompts(guda.open(tmp_path / "run").run)
    bank = guda.unlearn(model, data, "anchors-removed", prompts=prompts, **options)
    assert_same(guda.attribute(model, bank, queries, strata=2, **ELBO), Scores.read(_written(found, tmp_path)))
    with pytest.raises(guda.GudaError) as e:
        guda.attribute(model, bank, queries, strata=2)  # excess: what it is compared with must be given
    assert e.value.code == "average-missing"
    found = guda.attribute(model, bank, queries, strata=2, average=queries)
    assert np.isfinite(found.score).all()


def test_a_bank_from_disk_has_no_training_images(parts: tuple[Denoiser, ImageData, Queries], tmp_path: Path) -> None:
    model, data, queries = parts
    bank = guda.unlearn(model, data, **QUICK)
    bank.save(tmp_path / "bank")
    loaded = guda.Bank.load(tmp_path / "bank")
    assert_same(guda.attribute(model, loaded, queries, data=data), guda.attribute(model, bank, queries))
    guda.attribute(model, loaded, queries)  # by a stratified plan
    for asked in ({"drift": "subtract"} | ELBO, {"plan": "importance"}):
        with pytest.raises(guda.GudaError) as e:
            guda.attribute(model, loaded, queries, **asked)
        assert e.value.code == "training-images-missing"


def test_what_makes_no_sense_is_refused(parts: tuple[Denoiser, ImageData, Queries]) -> None:
    model, data, queries = parts
    bank = guda.unlearn(model, data, **QUICK)
    for code, asked in (
        ("bank-option-unsupported", {"method": "shift"}),
        ("bank-option-unsupported", {"folder": "somewhere"}),
        ("stop-with-band", {"stop": "top1@0.95", "band": "20:100"}),
        ("setting-unknown", {"round": 3}),
        ("excess-with-drift", {"excess": True, "drift": "subtract"}),
        ("path-with-drift", {"excess": False, "drift": "subtract"}),
        ("bank-option-unsupported", {"average": queries, "excess": False, "foreign": "skip"}),
    ):
        with pytest.raises(guda.GudaError) as e:
            guda.attribute(model, bank, queries, **asked)
        assert e.value.code == code
    with pytest.raises(guda.GudaError) as e:
        guda.attribute(model, data, queries, excess=True, average=queries)
    assert e.value.code == "bank-option-unsupported"


def test_memory_does_not_grow_with_the_pictures() -> None:
    """One shard of draws is 10 MB here; all of them would be 160 MB."""
    config = ModelConfig(net="mlp", options={"width": 4, "depth": 1}, scheduler="squaredcos_cap_v2:100")  # type: ignore[call-arg]
    model = build_denoiser(config, (3, 32, 32))
    rng = np.random.default_rng(0)
    data = ImageData.from_arrays(rng.integers(0, 255, (4, 3, 32, 32), np.uint8), ["a", "a", "b", "b"])
    queries = Queries.from_arrays(rng.integers(0, 255, (256, 3, 32, 32), np.uint8))
    bank = guda.unlearn(model, data, steps=1, batch_forget=2, batch_retain=2)
    tracemalloc.start()
    guda.attribute(model, bank, queries, rounds=2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 60e6


def test_the_namespace_is_what_is_public() -> None:
    assert set(dir(guda)) == {*guda.__all__, "__version__"}
    assert {"open", "attribute", "unlearn"} <= set(guda.__all__)
    for name in guda.__all__:
        assert getattr(guda, name) is not None
