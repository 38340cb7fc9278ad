"""The change of the optimal denoiser when a group leaves: against brute force and quadrature."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from guda.data.images import ImageData
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.families.mlp import ResidualMLP
from guda.diffusion.loading import make_scheduler
from guda.diffusion.schedule import Schedule
from guda.unlearning.density import GaussianDensity, GaussianRemoval, ImageDensity, fit_gaussians
from guda.unlearning.projection import Projected, fit_projection, project
from guda.unlearning.rule import Rule, RuleConfig, RuledDenoiser, fit_rule, make_density
from refusals import refused

SCHEDULE = Schedule.from_scheduler(make_scheduler("squaredcos_cap_v2:1000"))


def data(n: int = 24, size: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 3
    x = 0.3 * torch.randn(n, 1, size, size, generator=g) + 0.4 * (labels[:, None, None, None] - 1)
    return x, labels


def noised(x: torch.Tensor, t: int) -> tuple[torch.Tensor, torch.Tensor]:
    steps = torch.full((len(x),), t)
    eps = torch.randn(x.shape, generator=torch.Generator().manual_seed(9))
    return SCHEDULE.add_noise(x, eps, steps), steps


def kernel_mean(row: torch.Tensor, a: float, s: float, images: torch.Tensor, h: float) -> torch.Tensor:
    v = s**2 + a**2 * h**2
    r = images.double().flatten(1)
    w = torch.softmax(-((row - a * r) ** 2).sum(1) / (2 * v), 0)
    return w @ (r + (a * h**2 / v) * (row - a * r))


@pytest.mark.parametrize("t", [1, 30, 200, 600, 990])
@pytest.mark.parametrize("h", [0.0, 0.3])
def test_images_every_groups_change_equals_brute_force(t: int, h: float) -> None:
    x, labels = data()
    x_t, steps = noised(x[:7], t)
    found = ImageDensity(x, labels, SCHEDULE, h).changes(x_t, steps)
    a, s = float(SCHEDULE.a[t]), float(SCHEDULE.s[t])
    for b, row in enumerate(x_t.double().flatten(1)):
        everything = kernel_mean(row, a, s, x, h)
        for k in range(3):
            expected = kernel_mean(row, a, s, x[labels != k], h) - everything
            torch.testing.assert_close(found[k, b].flatten().double(), expected, rtol=1e-5, atol=2e-6)


def gaussian_brute(row: np.ndarray, a: float, s: float, parts: dict[str, np.ndarray], keep: np.ndarray) -> np.ndarray:
    logs, means = [], []
    for c in np.flatnonzero(keep):
        mu, v, lam = parts["mean"][c].astype(float), parts["vectors"][c].astype(float), parts["values"][c]
        cov = v @ np.diag(lam) @ v.T
        total = a**2 * cov + s**2 * np.eye(len(mu))
        r = row - a * mu
        logs.append(parts["log_share"][c] - 0.5 * (r @ np.linalg.solve(total, r) + np.linalg.slogdet(total)[1]))
        means.append(mu + a * cov @ np.linalg.solve(total, r))
    w = np.exp(np.array(logs) - np.max(logs))
    return (w / w.sum()) @ np.array(means)


@pytest.mark.parametrize("t", [1, 30, 200, 600, 990])
def test_gaussians_every_groups_change_equals_brute_force(t: int) -> None:
    x, labels = data(60)
    tensors = fit_gaussians(x.numpy(), labels.numpy(), components=2, shrink=0.3, floor=1e-2, seed=0)
    assert len(tensors["owner"]) == 6
    parts = {k: v.numpy() for k, v in tensors.items()}
    x_t, steps = noised(x[:5], t)
    found = GaussianDensity(tensors, SCHEDULE, "cpu").changes(x_t, steps)
    a, s = float(SCHEDULE.a[t]), float(SCHEDULE.s[t])
    for b, row in enumerate(x_t.double().flatten(1).numpy()):
        everything = gaussian_brute(row, a, s, parts, np.ones(6, bool))
        for k in range(3):
            expected = gaussian_brute(row, a, s, parts, parts["owner"] != k) - everything
            np.testing.assert_allclose(found[k, b].flatten().numpy(), expected, rtol=2e-4, atol=2e-5)


def test_gaussian_posterior_mean_equals_quadrature_in_one_dimension() -> None:
    x, labels = torch.tensor([-1.0, -0.8, 0.1, 0.5])[:, None, None, None], torch.tensor([0, 0, 1, 1])
    tensors = fit_gaussians(x.numpy(), labels.numpy(), components=1, shrink=0.2, floor=0.05, seed=0)
    x_t, steps = noised(x, 300)
    found = GaussianDensity(tensors, SCHEDULE, "cpu").changes(x_t, steps)
    a, s = float(SCHEDULE.a[300]), float(SCHEDULE.s[300])
    grid = np.linspace(-8, 8, 200_001)
    mu, var, share = (tensors[k].double().numpy().ravel() for k in ("mean", "values", "log_share"))
    bells = np.exp(-((grid - mu[:, None]) ** 2) / (2 * var[:, None])) / np.sqrt(var)[:, None]
    components = np.exp(share)[:, None] * bells
    for b in range(4):
        like = np.exp(-((float(x_t[b]) - a * grid) ** 2) / (2 * s**2))
        every, without_0 = ((p * like * grid).sum() / (p * like).sum() for p in (components.sum(axis=0), components[1]))
        assert float(found[0, b]) == pytest.approx(without_0 - every, abs=1e-5)


def test_covariances_are_shrunk_as_said_and_small_groups_are_not_split() -> None:
    x, labels = data(9, size=2)
    tensors = fit_gaussians(x.numpy(), labels.numpy(), components=2, shrink=0.25, floor=0.01, seed=0)
    assert tensors["owner"].tolist() == [0, 1, 2]  # three images each
    flat = x.flatten(1).double().numpy()
    scatters = [np.cov(flat[labels == k].T, bias=True) * 3 for k in range(3)]
    expected = 0.75 * scatters[1] / 3 + 0.25 * sum(scatters) / 9 + 0.01 * np.eye(4)
    v = tensors["vectors"][1].double().numpy()
    np.testing.assert_allclose(v @ np.diag(tensors["values"][1].numpy()) @ v.T, expected, atol=1e-6)
    assert tensors["log_share"].exp().sum().item() == pytest.approx(1)


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction", "sample"])
def test_a_ruled_model_predicts_x0_moved_by_the_change(prediction: str) -> None:
    rng = np.random.default_rng(0)
    images = ImageData.from_arrays(rng.integers(0, 256, (30, 1, 4, 4), np.uint8), [str(i % 3) for i in range(30)])
    torch.manual_seed(0)
    net = ResidualMLP(sample_size=4, width=16, depth=1)
    torch.nn.init.normal_(net.out.weight, std=0.1)
    base = Denoiser.from_module(net, make_scheduler(f"squaredcos_cap_v2:1000:{prediction}"))
    config = RuleConfig.model_validate({"components": 1, "window": [0.1, 0.9]})
    rule = Rule(make_density(base, images, config, fit_rule(base, images, config)), config.window)
    x0 = base.encode(images.images[:4])
    t = torch.tensor([50, 300, 600, 950])
    x_t = base.schedule.add_noise(x0, torch.randn(x0.shape, generator=torch.Generator().manual_seed(1)), t)
    change = rule.density.changes(x_t, t)
    with torch.no_grad():
        both = RuledDenoiser(base, rule, [2, 0])
        moved = RuledDenoiser(base, rule, [1]).x0(x_t, t) - base.x0(x_t, t)
        torch.testing.assert_close(moved[1:3], change[1, 1:3], rtol=1e-3, atol=1e-4)
        assert torch.equal(moved[[0, 3]], torch.zeros_like(moved[[0, 3]]))  # outside the window
        raws = both.raws(x_t, t)
        for i, k in enumerate((2, 0)):
            torch.testing.assert_close(raws[i], RuledDenoiser(base, rule, [k]).raw(x_t, t))


def test_images_too_large_for_covariances_are_refused() -> None:
    with refused("density-too-large"):
        fit_gaussians(np.zeros((4, 3, 64, 64)), np.array([0, 0, 1, 1]), 1, 0.3, 1e-3, 0)


def test_atoms_of_a_few_images_are_shares_of_their_group() -> None:
    """Tags on single images: without a loan every covariance would be the floor, a memorised set."""
    x, groups = data(60)
    atoms = torch.where(torch.arange(60) % 4 == 0, torch.arange(60), 60 + groups).unique(return_inverse=True)[1]
    tensors = fit_gaussians(x.numpy(), atoms.numpy(), 1, 0.3, 1e-3, 0, groups.numpy())
    alone = int((torch.bincount(atoms) == 1).sum())
    assert alone == 15
    assert len(tensors["owner"]) == alone + 3
    assert len(tensors["mean"]) == 3 + 3  # the rest of each group, and each group as a whole
    assert float(tensors["values"].max()) > 0.01
    assert float(tensors["log_share"].exp().sum()) == pytest.approx(1.0)
    made_of = torch.nn.functional.one_hot(
        torch.stack([groups[atoms == a][0] for a in range(int(atoms.max()) + 1)])
    ).bool()
    x_t, steps = noised(x[:5], 200)
    found = GaussianDensity(tensors, SCHEDULE, "cpu", made_of).changes(x_t, steps)
    parts = {k: v.numpy() for k, v in tensors.items()}
    spread = {k: parts[k][parts["gaussian"]] for k in ("mean", "vectors", "values")} | {"log_share": parts["log_share"]}
    a, s = float(SCHEDULE.a[200]), float(SCHEDULE.s[200])
    for b, row in enumerate(x_t.double().flatten(1).numpy()):
        everything = gaussian_brute(row, a, s, spread, np.ones(len(parts["owner"]), bool))
        for k in range(3):
            rest = gaussian_brute(row, a, s, spread, ~made_of.numpy()[parts["owner"], k])
            np.testing.assert_allclose(found[k, b].flatten().numpy(), rest - everything, rtol=1e-3, atol=1e-4)


# atoms of four kinds of images, and groups that are made of them: two that share, one above two others, one alone
MADE_OF = torch.tensor([[1, 0, 1, 0], [1, 1, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1]], dtype=torch.bool)


@pytest.mark.parametrize("t", [1, 30, 200, 600, 990])
def test_groups_that_share_images_change_it_as_brute_force_says(t: int) -> None:
    """At low noise two and three groups hold nearly all of the weight at once, and each is computed without itself."""
    x, _ = data(40)
    atom = torch.arange(40) % 4
    x_t, steps = noised(x[:12], t)
    found = ImageDensity(x, atom, SCHEDULE, made_of=MADE_OF).changes(x_t, steps)
    a, s = float(SCHEDULE.a[t]), float(SCHEDULE.s[t])
    assert found.shape[0] == 4
    for b, row in enumerate(x_t.double().flatten(1)):
        everything = kernel_mean(row, a, s, x, 0.0)
        for k in range(4):
            expected = kernel_mean(row, a, s, x[~MADE_OF[atom, k]], 0.0) - everything
            torch.testing.assert_close(found[k, b].flatten().double(), expected, rtol=1e-5, atol=2e-6)


def test_a_row_does_not_depend_on_the_rows_beside_it() -> None:
    """How many groups hold half of the weight differs from row to row; what one row gets must not."""
    x, _ = data(40)
    density = ImageDensity(x, torch.arange(40) % 4, SCHEDULE, made_of=MADE_OF)
    near, far = noised(x[:4], 1), noised(x[4:8], 990)
    both = density.changes(torch.cat([near[0], far[0]]), torch.cat([near[1], far[1]]))
    swapped = density.changes(torch.cat([x_t := noised(x[8:12], 30)[0], far[0]]), torch.cat([near[1] + 29, far[1]]))
    assert x_t.shape == near[0].shape
    assert torch.equal(both[:, 4:], swapped[:, 4:])


# --- any other set of images ----------------------------------------------------------------------


def mlp_and_images(n: int = 30) -> tuple[Denoiser, ImageData]:
    rng = np.random.default_rng(3)
    images = rng.integers(0, 90, (n, 1, 3, 3), np.uint8) + np.arange(n, dtype=np.uint8)[:, None, None, None] % 3 * 60
    data = ImageData.from_arrays(images.astype(np.uint8), [str(i % 3) for i in range(n)], layout="NCHW")
    return Denoiser.from_module(ResidualMLP(sample_size=3, width=8, depth=1), make_scheduler("linear:100")), data


def removal(base: Denoiser, images: ImageData, removed: np.ndarray | None, **settings: object) -> Rule:
    config = RuleConfig.model_validate(settings)
    return Rule(make_density(base, images, config, fit_rule(base, images, config, removed)), config.window)


@pytest.mark.parametrize("t", [1, 40, 95])
def test_images_that_are_no_group_are_removed_from_the_empirical_density(t: int) -> None:
    base, images = mlp_and_images()
    removed = np.array([0, 1, 7, 12, 20])  # of every group
    x = base.encode(images.images)
    x_t, steps = x[:6] + 0.5 * torch.randn(6, 1, 3, 3, generator=torch.Generator().manual_seed(1)), torch.full((6,), t)
    found = removal(base, images, removed, density="images", bandwidth=0.2).changes(x_t, steps)
    a, s = float(base.schedule.a[t]), float(base.schedule.s[t])
    left = np.setdiff1d(np.arange(30), removed)
    for b, row in enumerate(x_t.double().flatten(1)):
        expected = kernel_mean(row, a, s, x[left], 0.2) - kernel_mean(row, a, s, x, 0.2)
        torch.testing.assert_close(found[0, b].flatten().double(), expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("t", [1, 40, 95])
def test_gaussians_that_lost_images_are_those_of_the_others(t: int) -> None:
    """Closed form: the moments of what is left of each group, shrunk towards the pooled covariance of all images."""
    base, images = mlp_and_images()
    removed = np.array([0, 1, 7, 12, 20])
    flat, labels = base.encode(images.images).flatten(1).double().numpy(), np.arange(30) % 3
    pooled = sum(np.cov(flat[labels == k].T, bias=True) * 10 for k in range(3)) / 30

    def mean(row: np.ndarray, keep: np.ndarray) -> np.ndarray:
        a, s = float(base.schedule.a[t]), float(base.schedule.s[t])
        logs, means = [], []
        for k in range(3):
            own = flat[keep & (labels == k)]
            cov = 0.7 * np.cov(own.T, bias=True) + 0.3 * pooled + 1e-3 * np.eye(9)
            total, r = a**2 * cov + s**2 * np.eye(9), row - a * own.mean(axis=0)
            logs.append(np.log(len(own)) - 0.5 * (r @ np.linalg.solve(total, r) + np.linalg.slogdet(total)[1]))
            means.append(own.mean(axis=0) + a * cov @ np.linalg.solve(total, r))
        w = np.exp(np.array(logs) - np.max(logs))
        return np.asarray((w / w.sum()) @ np.array(means))

    every = np.ones(30, bool)
    left = ~np.isin(np.arange(30), removed)
    x_t, steps = base.encode(images.images[:4]) * 0.9 + 0.1, torch.full((4,), t)
    found = removal(base, images, removed, components=1).changes(x_t, steps)
    expected = np.stack([mean(row, left) - mean(row, every) for row in x_t.double().flatten(1).numpy()])
    np.testing.assert_allclose(found[0].flatten(1).numpy(), expected, rtol=2e-3, atol=5e-6)
    assert np.abs(expected).max() > 1e-3


@pytest.mark.parametrize("settings", [{"density": "images"}, {"components": 1}, {"components": 2}])
def test_removing_the_images_of_a_group_is_removing_the_group(settings: dict[str, object]) -> None:
    base, images = mlp_and_images()
    x_t = base.encode(images.images[:8]) * 0.7
    for t in (1, 50, 99):
        steps = torch.full((8,), t)
        groups = removal(base, images, None, **settings).changes(x_t, steps)
        for k in range(3):
            alone = removal(base, images, images.groups.members(k), **settings).changes(x_t, steps)
            torch.testing.assert_close(alone[0], groups[k], rtol=1e-3, atol=1e-5)


def test_a_gaussian_that_several_atoms_share_loses_the_images_of_each() -> None:
    x = np.random.default_rng(0).standard_normal((40, 4))
    atoms = np.array([0] * 30 + [1] * 5 + [2] * 5)  # five images have no covariance of their own
    homes = np.zeros(40, int)
    every = fit_gaussians(x, atoms, 1, 0.3, 1e-3, 0, homes)
    left = fit_gaussians(x, atoms, 1, 0.3, 1e-3, 0, homes, np.arange(30, 35))
    assert (every["owner"].tolist(), left["owner"].tolist()) == ([0, 1, 2], [0, 2])
    assert every["gaussian"].tolist() == [0, 1, 1]
    assert left["gaussian"].tolist() == [0, 1]
    np.testing.assert_allclose(left["mean"][1].numpy(), np.delete(x, np.arange(30, 35), axis=0).mean(axis=0), atol=1e-6)
    made_of = torch.eye(3, dtype=torch.bool)
    density = GaussianRemoval(*(GaussianDensity(m, SCHEDULE, "cpu", made_of) for m in (every, left)))
    found = density.changes(torch.zeros(2, 1, 2, 2), torch.tensor([5, 500]))
    assert found.shape == (1, 2, 1, 2, 2)
    assert bool(torch.isfinite(found).all())


def shared_rest(tensors: dict[str, torch.Tensor], variance: float) -> dict[str, torch.Tensor]:
    """The same Gaussians in all directions: those of the projection, and one of a variance that all share."""
    basis, centre = tensors["basis"].double(), tensors["centre"].double()
    others = torch.linalg.qr(torch.cat([basis, torch.eye(len(basis), dtype=torch.float64)], dim=1)).Q[
        :, basis.shape[1] :
    ]
    values, vectors = tensors["values"], tensors["vectors"].double()
    return tensors | {
        "mean": (tensors["mean"].double() @ basis.T + centre).float(),
        "vectors": torch.stack([torch.cat([basis @ v, others], dim=1) for v in vectors]).float(),
        "values": torch.cat([values, torch.full((len(values), others.shape[1]), variance, dtype=torch.float64)], dim=1),
    }


@pytest.mark.parametrize("t", [60, 200, 990])
@pytest.mark.parametrize("removed", [None, np.arange(5)])
def test_along_few_directions_groups_change_as_with_gaussians_that_share_the_rest(
    t: int, removed: np.ndarray | None
) -> None:
    x, labels = data(60)
    tensors = fit_projection(x.numpy(), 3, 0)
    found = fit_gaussians(project(x.numpy(), tensors), labels.numpy(), 2, 0.3, 1e-2, 0)
    few, whole = (
        GaussianDensity(found, SCHEDULE, "cpu"),
        GaussianDensity(shared_rest(found | tensors, 0.4), SCHEDULE, "cpu"),
    )
    x_t, steps = noised(x[:5], t)
    if removed is None:
        projected, expected = Projected(few, tensors, "cpu"), whole.changes(x_t, steps)
    else:
        rest = fit_gaussians(project(x.numpy(), tensors), labels.numpy(), 2, 0.3, 1e-2, 0, removed=removed)
        projected = Projected(GaussianRemoval(few, GaussianDensity(rest, SCHEDULE, "cpu")), tensors, "cpu")
        left = GaussianDensity(shared_rest(rest | tensors, 0.4), SCHEDULE, "cpu")
        expected = GaussianRemoval(whole, left).changes(x_t, steps)
    torch.testing.assert_close(projected.changes(x_t, steps), expected, rtol=2e-4, atol=2e-5)
    assert float(expected.abs().max()) > 1e-3


def test_all_directions_are_the_density_itself() -> None:
    x, labels = data(60)
    settings = (labels.numpy(), 1, 0.3, 1e-2, 0)
    tensors = fit_projection(x.numpy(), 9, 0)
    x_t, steps = noised(x[:5], 200)
    few = GaussianDensity(fit_gaussians(project(x.numpy(), tensors), *settings), SCHEDULE, "cpu")
    expected = GaussianDensity(fit_gaussians(x.numpy(), *settings), SCHEDULE, "cpu").changes(x_t, steps)
    torch.testing.assert_close(Projected(few, tensors, "cpu").changes(x_t, steps), expected, rtol=2e-4, atol=2e-5)


def test_directions_that_cannot_be() -> None:
    x, _ = data(6)
    with refused("directions-too-many"):
        fit_projection(x.numpy(), 6, 0)
    with pytest.raises(ValueError, match="directions"):
        RuleConfig(density="images", directions=3)  # type: ignore[call-arg]


def test_images_too_large_for_covariances_have_directions(make_images: Callable[..., ImageData]) -> None:
    images = make_images({"a": 12, "b": 12}, size=80)
    base = Denoiser.from_module(ResidualMLP(sample_size=80, width=4, depth=1), make_scheduler("linear:1000"))
    with refused("density-too-large"):
        fit_rule(base, images, RuleConfig())  # type: ignore[call-arg]
    config = RuleConfig(directions=8)  # type: ignore[call-arg]
    tensors = fit_rule(base, images, config)
    x_t, steps = noised(base.encode(images.images[:3]), 300)
    found = make_density(base, images, config, tensors).changes(x_t, steps)
    assert found.shape == (2, *x_t.shape)
    assert torch.isfinite(found).all()
