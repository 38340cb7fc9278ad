"""Features: closed forms, and that nothing but an image and the settings decides its feature."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from guda.baselines.features import FeatureConfig, Featuriser, grid, meet, profile, residuals
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.loading import make_scheduler
from guda.diffusion.noise import generator
from guda.errors import Mismatch, NotFinite
from refusals import refused

EXACT = {"sketch": "identity", "block": 4}


class Linear(nn.Module):
    """eps_hat = W x_t."""

    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(d, d, generator=torch.Generator().manual_seed(1)) / d)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return (x.flatten(1) @ self.w.T).reshape(x.shape)


@pytest.fixture
def linear() -> Denoiser:
    return Denoiser.from_module(Linear(), make_scheduler("linear:100"), (1, 4, 4))


def images(n: int = 7, seed: int = 0) -> tuple[torch.Tensor, list[str]]:
    return torch.randn(n, 1, 4, 4, generator=torch.Generator().manual_seed(seed)), [f"image-{i}" for i in range(n)]


def made(denoiser: Denoiser, seed: int = 0, split: Any = "train", n: int = 7, **config: Any) -> torch.Tensor:
    x0, ids = images(n)
    return Featuriser(denoiser, FeatureConfig(**(EXACT | config)), seed)(x0, ids, split)


def x_ts(denoiser: Denoiser, times: list[int], seed: int = 0) -> torch.Tensor:
    """[S, n, d], by hand."""
    x0, _ = images()
    found = []
    for t in times:
        eps = torch.from_numpy(generator("features", seed, t).standard_normal((1, 4, 4), np.float32))
        found.append(denoiser.schedule.a[t] * x0 + denoiser.schedule.s[t] * eps)
    return torch.stack(found).flatten(2).float()


def test_the_grid_is_even_from_zero_and_has_as_many_as_asked() -> None:
    assert grid(4000, 10).tolist() == list(range(0, 4000, 400))
    assert grid(100, 7).tolist() == [0, 14, 28, 42, 57, 71, 85]  # 100 // 7 = 14 would have made eight
    assert grid(5, 5).tolist() == [0, 1, 2, 3, 4]
    with refused("timesteps-too-many", match="6 timesteps of a schedule that has 5"):
        grid(5, 6)


def test_closed_form_of_a_linear_denoiser(linear: Denoiser) -> None:
    w = linear.module.w.detach()
    x = x_ts(linear, [0, 25, 50, 75])
    d = 16
    # mean over pixels of (W x)^2 has the gradient (2/d) W x x^T
    expected = torch.einsum("ij,snj,snk->nik", 2 / d * w, x, x) / 4
    torch.testing.assert_close(
        made(linear, output="squared_norm", timesteps=4), expected.flatten(1), rtol=1e-4, atol=1e-6
    )
    # the mean output: (1/d) 1 x^T
    ones = x.mean(dim=0)[:, None, :].expand(7, d, d) / d
    torch.testing.assert_close(made(linear, output="mean_output", timesteps=4), ones.flatten(1), rtol=1e-4, atol=1e-6)


def test_unit_gradients_per_timestep(linear: Denoiser) -> None:
    x = x_ts(linear, [0, 50])
    by_hand = (x / x.norm(dim=2, keepdim=True)).mean(dim=0)[:, None, :].expand(7, 16, 16) / 4  # |1 x^T| = 4 |x|
    found = made(linear, output="mean_output", timesteps=2, normalize=True)
    torch.testing.assert_close(found, by_hand.flatten(1), rtol=1e-4, atol=1e-6)
    assert (found.norm(dim=1) <= 1 + 1e-6).all()


def test_scaling_the_output_scales_plain_features_and_leaves_unit_ones(linear: Denoiser) -> None:
    twice = linear.clone()
    twice.module.w.data *= 2  # output and squared norm grow, their gradients with respect to W follow
    torch.testing.assert_close(
        made(twice, output="squared_norm"), 2 * made(linear, output="squared_norm"), rtol=1e-4, atol=1e-6
    )
    one, two = (made(m, output="squared_norm", normalize=True) for m in (linear, twice))
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "settings", [{}, {"normalize": True}, {"noise": "per_item"}, {"sketch": "countsketch", "dim": 32}]
)
def test_an_images_feature_does_not_depend_on_its_neighbours(make_mlp: Callable[..., Denoiser], settings: Any) -> None:
    denoiser = make_mlp()
    config = FeatureConfig(**(EXACT | {"timesteps": 3} | settings))
    x0, ids = images(11)
    whole = Featuriser(denoiser, config)(x0, ids, "train")
    order = torch.randperm(11, generator=torch.Generator().manual_seed(3))
    turned = Featuriser(denoiser, config)(x0[order], [ids[i] for i in order], "train")
    assert torch.equal(turned, whole[order])
    parts = [Featuriser(denoiser, config)(x0[i : i + 3], ids[i : i + 3], "train") for i in range(0, 11, 3)]
    assert torch.equal(torch.cat(parts), whole)
    other = Featuriser(denoiser, config.model_copy(update={"block": 7}))(x0, ids, "train")
    torch.testing.assert_close(other, whole, rtol=1e-4, atol=1e-6)


def test_vmap_and_loop_give_the_same_features(make_mlp: Callable[..., Denoiser]) -> None:
    one, two = (made(make_mlp(), timesteps=3, per_sample=mode) for mode in ("vmap", "loop"))
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


def test_shared_noise_makes_equal_pictures_equal_and_own_noise_does_not(make_mlp: Callable[..., Denoiser]) -> None:
    x0, ids = images(4)
    x0[2] = x0[0]
    for noise, same in (("shared", True), ("per_item", False)):
        found = Featuriser(make_mlp(), FeatureConfig(**EXACT, noise=noise))(x0, ids, "train")
        assert torch.equal(found[0], found[2]) is same
        queries = Featuriser(make_mlp(), FeatureConfig(**EXACT, noise=noise))(x0, ids, "queries")
        assert torch.equal(found, queries) is same  # an id that both have must not tie their noise


def test_the_mean_over_timesteps_is_sketched_as_the_mean_of_sketches(linear: Denoiser) -> None:
    sketched = {"sketch": "countsketch", "dim": 8, "output": "mean_output"}
    both = made(linear, timesteps=2, **sketched)
    single = made(linear, timesteps=1, **sketched)  # t = 0 alone
    x = x_ts(linear, [0, 50])
    ratio = made(linear, timesteps=2, sketch="identity", output="mean_output")
    torch.testing.assert_close(
        ratio, (x.mean(dim=0)[:, None, :].expand(7, 16, 16) / 16).flatten(1), rtol=1e-4, atol=1e-6
    )
    assert not torch.allclose(both, single)
    assert torch.equal(both, made(linear, timesteps=2, **sketched))
    assert not torch.allclose(both, made(linear, seed=1, timesteps=2, **sketched))


def test_a_precondition_acts_before_the_sketch(linear: Denoiser) -> None:
    x0, ids = images()
    featuriser = Featuriser(linear, FeatureConfig(**EXACT))
    plain = featuriser(x0, ids, "train")
    halved = featuriser(x0, ids, "train", precondition=lambda g: {k: v / 2 for k, v in g.items()})
    torch.testing.assert_close(halved, plain / 2)


def test_features_of_different_making_do_not_meet(make_mlp: Callable[..., Denoiser]) -> None:
    def meta(seed: int = 0, net: int = 0, **config: Any) -> dict[str, Any]:
        return Featuriser(make_mlp(seed=net), FeatureConfig(**(EXACT | config)), seed).meta

    meet(meta(), meta(), "here")
    for other in (
        meta(seed=1), meta(net=1), meta(output="squared_norm"), meta(timesteps=5), meta(noise="per_item"),
        meta(sketch="countsketch", dim=8), meta(weights="out"), meta(normalize=True),
    ):  # fmt: skip
        with refused("features-made-differently", kind=Mismatch):
            meet(meta(), other, "here")
    meet(meta(), meta(output="squared_norm"), "here", free=("output",))


def test_wrong_settings_are_refused(make_mlp: Callable[..., Denoiser]) -> None:
    with refused("weights-pattern-unmatched", match="names none of the network's weights"):
        Featuriser(make_mlp(), FeatureConfig(weights="attn2"))
    with refused("sketch-size-indivisible", match="sjlt:3 cuts the sketch into 3 equal parts and 8 is not a multiple"):
        Featuriser(make_mlp(), FeatureConfig(sketch="sjlt:3", dim=8))
    broken = make_mlp()
    broken.module.out.weight.data[0, 0] = float("nan")
    with refused("gradient-not-finite", match="gradient of 'image-0' holds NaN", kind=NotFinite):
        made(broken)


# ---- residuals ----------------------------------------------------------------------------------------


def test_the_error_profile_by_hand(linear: Denoiser) -> None:
    x0, _ = images()
    found = profile(linear, x0, 4, 0, 3)
    for s, t in enumerate([0, 25, 50, 75]):
        eps = torch.from_numpy(generator("residuals", 0, t).standard_normal((1, 4, 4), np.float32))
        x_t = (linear.schedule.a[t] * x0 + linear.schedule.s[t] * eps).float()
        expected = (linear.module(x_t, torch.tensor([t])) - eps).square().flatten(1).mean(dim=1)
        np.testing.assert_allclose(found[:, s], expected.detach().numpy(), rtol=1e-5)
    assert np.array_equal(profile(linear, x0[:2], 4, 0, 3), found[:2])


def test_normalized_residuals_see_the_profile_alone_and_rms_its_size() -> None:
    e = np.random.default_rng(0).uniform(0.1, 2, (5, 30))
    scaled = e.copy()
    scaled[2] *= 49
    np.testing.assert_allclose(residuals(scaled, "normalized"), residuals(e, "normalized"), rtol=1e-6)
    assert residuals(scaled, "rms")[2] == pytest.approx(7 * residuals(e, "rms")[2])
    assert (residuals(e, "none") == 1).all()
    r = residuals(e, "normalized")
    assert ((r > 1 / 30) & (r <= 30**-0.5 + 1e-9)).all()
    assert residuals(np.ones((1, 30)), "normalized")[0] == pytest.approx(30**-0.5)
