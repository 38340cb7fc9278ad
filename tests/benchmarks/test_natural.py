"""The benchmark of natural images: its committed start can be read, and has seen none of its images."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield
    for name in ("alignment", "cost", "natural", "path"):
        sys.modules.pop(name, None)


def test_the_start_and_the_experiment_share_no_image() -> None:
    from guda.run.recipe import Recipe

    start, recipe = (Recipe.read(ROOT / "benchmarks" / "recipes" / f"{n}.yaml") for n in ("cifar10-start", "cifar10"))
    assert start.data.source == recipe.data.source == "cifar10"
    assert start.data.options["skip"] >= recipe.data.options["take"]
    assert start.data.size == recipe.data.size
    assert {start.data.split, recipe.data.split} == {None}


def test_the_committed_start_is_a_model() -> None:
    import guda
    import guda_sources  # noqa: F401  registers the family of its network
    from guda_sources import patched
    from path import START

    model = guda.Denoiser.from_pretrained(START)
    assert isinstance(model.module, patched.PatchedUNet2D)
    assert model.shape == (3, 16, 16)
    x, t = torch.zeros(1, *model.shape), torch.tensor([500])
    with torch.no_grad():
        assert torch.isfinite(model.eps(x, t)).all()
    # it has learned something: a flat grey picture is recovered from noise better than by the mean of all pictures
    grey = torch.full((8, *model.shape), 0.5)
    noise = torch.randn(grey.shape, generator=torch.Generator().manual_seed(0))
    at = torch.full((8,), 300)
    with torch.no_grad():
        found = model.x0(model.schedule.add_noise(grey, noise, at), at)
    assert float((found - grey).square().mean()) < 0.05


@pytest.mark.parametrize("name", ["alignment", "natural", "cost"])
def test_the_scripts_can_be_imported(name: str) -> None:
    assert __import__(name).COMMAND.endswith(f"{name}.py")
