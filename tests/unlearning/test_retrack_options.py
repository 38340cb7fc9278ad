"""ReTrack's cap and flips against the definition."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from guda.data.images import ImageData
from guda.diffusion.denoiser import Denoiser, Latents
from guda.unlearning.operators import retrack as nearest
from guda.unlearning.operators.retrack import Retrack, RetrackConfig
from guda.unlearning.unlearn import Batch, Inputs, make_samplers

TIMES = torch.tensor([3, 20, 45, 70, 97])


@pytest.fixture(scope="module")
def model(make_mlp: Callable[..., Denoiser]) -> Denoiser:
    return make_mlp("squaredcos_cap_v2:100")


@pytest.fixture(scope="module")
def data(make_images: Callable[..., ImageData]) -> ImageData:
    return make_images({"a": 6, "b": 12, "c": 9})


def rule(model: Denoiser, data: ImageData, **values: Any) -> Retrack:
    return Retrack(model, data, "a", RetrackConfig.model_validate(values))


def half(model: Denoiser, data: ImageData) -> Batch:
    x0 = model.encode(data.images[data.groups.members(0)[: len(TIMES)]])
    eps = torch.randn(x0.shape, generator=torch.Generator().manual_seed(1))
    return Batch(x0, TIMES, eps, model.schedule.add_noise(x0, eps, TIMES))


def brute(model: Denoiser, h: Batch, images: torch.Tensor, cap: float | None, k: int | None) -> torch.Tensor:
    """eps + sum_r w_r capped((a/s)(x_f - x_r)), one image at a time in float64."""
    rows = []
    for i, t in enumerate(h.t.tolist()):
        a, s = model.schedule.a[t], model.schedule.s[t]
        logits = -((h.x_t[i].double() - a * images.double()) ** 2).sum((1, 2, 3)) / (2 * s**2)
        kept = logits.topk(k or len(images)).indices
        w = logits[kept].softmax(0)
        target = h.eps[i].double()
        for weight, r in zip(w, kept, strict=True):
            d = (a / s) * (h.x0[i].double() - images[r].double())
            if cap is not None and d.norm() > (2 * cap) ** 0.5:
                d = d * (2 * cap) ** 0.5 / d.norm()
            target = target + weight * d
        rows.append(target)
    return torch.stack(rows)


@pytest.mark.parametrize("k", [None, 4])
@pytest.mark.parametrize("cap", [None, 1e6, 1.0, 0.1])
@pytest.mark.parametrize("index", [False, True])
def test_the_target_with_a_cap_on_every_correction(
    model: Denoiser, data: ImageData, k: int | None, cap: float | None, index: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if index:
        pytest.importorskip("faiss")
        monkeypatch.setattr(nearest, "LARGE", 1)
    operator, h = rule(model, data, kl_cap=cap, k_nearest=k), half(model, data)
    exact = brute(model, h, model.encode(data.images[data.groups.without(0)]), cap, k)
    torch.testing.assert_close(operator.target(h).double(), exact, rtol=1e-4, atol=2e-4)
    if cap is not None and cap <= 1:
        moved = (operator.target(h) - h.eps).flatten(1).norm(dim=1)
        free = (rule(model, data, k_nearest=k).target(h) - h.eps).flatten(1).norm(dim=1)
        assert (moved <= (2 * cap) ** 0.5 + 1e-5).all()  # a mean of vectors no longer than that
        assert (free[:3] > 1.5 * moved[:3]).all()  # and it is felt


def test_an_image_that_both_sets_hold_needs_no_correction(model: Denoiser, data: ImageData) -> None:
    """Distance 0: the cap divides by nothing."""
    twin = ImageData.from_arrays(
        np.concatenate([data.images[data.groups.members(0)]] * 2), ["a"] * 6 + ["b"] * 6, layout="NCHW"
    )
    h = half(model, twin)
    target = rule(model, twin, kl_cap=1.0).target(h)
    assert bool(target.isfinite().all())
    torch.testing.assert_close(target[0], h.eps[0], rtol=0, atol=1e-3)  # t = 3: the posterior is its twin


def test_flips_put_mirror_images_into_both_sets(model: Denoiser, data: ImageData) -> None:
    operator, h = rule(model, data, flips=True, density_ratio=True), half(model, data)
    retain = model.encode(data.images[data.groups.without(0)])
    exact = brute(model, h, torch.cat([retain, retain.flip(-1)]), None, None)
    torch.testing.assert_close(operator.target(h).double(), exact, rtol=1e-4, atol=2e-4)
    assert len(operator.own.x) == 12
    mirrored = Batch(h.x0.flip(-1), h.t, h.eps.flip(-1), h.x_t.flip(-1))
    torch.testing.assert_close(operator.target(mirrored), operator.target(h).flip(-1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(operator.weights(mirrored), operator.weights(h), rtol=1e-6, atol=0)


def test_flips_mirror_half_of_the_drawn_images_and_change_nothing_else(model: Denoiser, data: ImageData) -> None:
    x0 = model.encode(data.images)

    def drawn(**values: Any) -> list[Batch]:
        operator = rule(model, data, batch_forget=200, batch_retain=200, **values)
        return [
            s.draw(model, Inputs(Latents(x0)), operator.config, "a", 4)
            for s in make_samplers(operator, operator.config)[0]
        ]

    for plain, flipped, again in zip(drawn(), drawn(flips=True), drawn(flips=True), strict=True):
        assert torch.equal(plain.t, flipped.t)
        assert torch.equal(plain.eps, flipped.eps)
        assert torch.equal(flipped.x0, again.x0)  # keyed
        mirrored = (flipped.x0 == plain.x0.flip(-1)).flatten(1).all(1)
        same = (flipped.x0 == plain.x0).flatten(1).all(1)
        assert bool((mirrored ^ same).all())
        assert 70 < int(mirrored.sum()) < 130
        assert torch.equal(flipped.x_t, model.schedule.add_noise(flipped.x0, flipped.eps, flipped.t))
