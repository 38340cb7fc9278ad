"""Our TRAK against an independent one: dattri 0.3.0 (PyPI), on one small denoiser, the same images and noise.

dattri differentiates, projects and solves by itself; shared are the network, x_t and the target. It divides gradients
by sqrt(p), so its ridge is our lambda / p; it multiplies images by 1 - "correct probability", which a denoiser has none
of (0 here). Everything else must agree: to rounding without projection and with dattri's own matrix, and in rank with
independent projections, the closer the more is kept of a gradient.

Measured (40 images, 8 queries, p = 1048): without projection the scores differ by 4e-7 of the largest at most. With
independent Gaussian projections, the mean of four each, Spearman over all scores is 0.76, 0.92, 0.98 at k = 64, 256,
1024 (0.72, 0.91, 0.98 for our countsketch against its Gaussian).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch

from guda.baselines.features import FeatureConfig, Featuriser, make_sketch
from guda.baselines.ridge import Cholesky, Eigen, Ridge, Rows, Spectrum, gram
from guda.diffusion.denoiser import Denoiser
from guda.evaluation.metrics import spearman

pytest.importorskip("dattri")

GROUPS = [np.arange(0, 10), np.arange(10, 22), np.arange(22, 40)]
N, Q, LEVELS = 40, 8, 4
DIMS = (64, 256, 1024)
Output = Literal["loss", "squared_norm"]
Data = tuple[torch.Tensor, torch.Tensor]  # x_t and target, [n, levels, C, H, W]


class Case:
    """One denoiser, training images in three groups, queries like them, and both sides' scores."""

    def __init__(self, denoiser: Denoiser) -> None:
        rng = np.random.default_rng(0)
        looks = rng.standard_normal((3, 1, 4, 4))
        of = np.repeat([0, 1, 2], [len(g) for g in GROUPS])
        self.denoiser = denoiser
        self.p = denoiser.n_parameters()
        self.train, self.queries = (
            torch.tensor(np.tanh(looks[w] + 0.7 * rng.standard_normal((len(w), 1, 4, 4))), dtype=torch.float32)
            for w in (of, np.arange(Q) % 3)
        )

    def features(self, output: Output = "loss", sketch: str = "identity", dim: int = 1, seed: int = 0) -> Any:
        """Ours: (training images' [n, k], queries' [q, k])."""
        config = FeatureConfig(output=output, sketch=sketch, dim=dim, timesteps=LEVELS, noise="per_item", block=7)
        made = Featuriser(self.denoiser, config)
        made.sketch = make_sketch(sketch, made.gradients.sizes, dim, seed)  # other sketch, the same noise
        return made(self.train, ids(N), "train"), made(self.queries, ids(Q), "queries")

    def noised(self) -> tuple[Data, Data]:
        made = Featuriser(self.denoiser, FeatureConfig(timesteps=LEVELS, noise="per_item"))
        self.t = made.t
        return made._noised(self.train, ids(N), "train"), made._noised(self.queries, ids(Q), "queries")

    def dattri(self, train: Output = "loss", query: Output = "loss") -> tuple[Any, list[Any]]:
        """Theirs: the task, and the two loaders; in float64."""
        from dattri.task import AttributionTask
        from torch.utils.data import DataLoader, TensorDataset

        net = self.denoiser.clone().module.double()
        noised = self.noised()

        def function(what: Output) -> Callable[..., torch.Tensor]:
            def f(params: dict[str, torch.Tensor], data: Data) -> torch.Tensor:
                x_t, target = data
                said = torch.func.functional_call(net, params, (x_t, self.t))
                wanted = target if what == "loss" else 0 * target
                return torch.nn.functional.mse_loss(said, wanted)

            return f

        task = AttributionTask(function(train), net, net.state_dict(), target_func=function(query))
        return task, [DataLoader(TensorDataset(*(v.double() for v in part)), batch_size=13) for part in noised]


def ids(n: int) -> list[str]:
    return [str(i) for i in range(n)]


def trak(task: Any, p: int, lam: float, kind: str, dim: int = 1, seed: int = 0) -> Any:
    from dattri.algorithm.trak import TRAKAttributor

    # every setting said each time: dattri keeps the last caller's as its defaults
    how = {"proj_type": kind, "proj_dim": dim, "proj_seed": seed, "proj_max_batch_size": 32, "device": "cpu"}
    return TRAKAttributor(task, lambda params, data: 0 * data[0].sum(), how, regularization=lam / p)


def scores(found: Any) -> np.ndarray:
    """dattri's [train, test] as ours, [queries, images]."""
    return found.T.detach().double().numpy()


def solved(phi: torch.Tensor, lam: float, eigen: bool = False) -> Ridge:
    rows = Rows.of(phi, block=9)
    matrix = gram(rows)
    return Ridge(rows, Eigen(Spectrum.of(matrix), lam) if eigen else Cholesky(matrix, lam))


def influence(ridge: Ridge, phi_q: torch.Tensor) -> np.ndarray:
    """[queries, images]."""
    return (phi_q.double() @ torch.cat([z for _, _, z in ridge.vectors()]).T).numpy()


def mean_eigenvalue(phi: torch.Tensor) -> float:
    return float(phi.double().square().sum()) / min(phi.shape)


def assert_equal(ours: np.ndarray, theirs: np.ndarray, relative: float = 1e-5) -> None:
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() < relative * np.abs(theirs).max()


def overall(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman over all scores at once."""
    return float(spearman(a.reshape(1, -1), b.reshape(1, -1))[0])


@pytest.fixture(scope="module")
def case(make_mlp: Any) -> Case:
    return Case(make_mlp(width=8, depth=1))


@pytest.mark.parametrize("strength", [0.01, 1.0])
@pytest.mark.parametrize(
    ("train", "query"), [("loss", "loss"), ("squared_norm", "squared_norm"), ("loss", "squared_norm")]
)
def test_without_projection(case: Case, train: Output, query: Output, strength: float) -> None:
    """TRAK, D-TRAK, and one function for training images with the other for queries."""
    phi, phi_q = case.features(train)[0], case.features(query)[1]
    lam = strength * mean_eigenvalue(phi)
    task, (images, queries) = case.dattri(train, query)
    attributor = trak(task, case.p, lam, "identity")
    theirs = scores(attributor.attribute(queries, images))
    for eigen in (False, True):
        ridge = solved(phi, lam, eigen)
        ours = influence(ridge, phi_q)
        assert_equal(ours, theirs)
        assert overall(ours, theirs) > 0.9999
    # sums over groups, without a query-by-image matrix
    every = torch.zeros(N, 3)
    for g, members in enumerate(GROUPS):
        every[members, g] = 1
    sums = (phi_q.double() @ ridge.combine(every).T).numpy()
    assert_equal(sums, np.stack([theirs[:, m].sum(axis=1) for m in GROUPS], axis=1))
    # the influence of an image on itself is its leverage
    own = attributor.self_attribute(images).flatten().double().numpy()
    assert_equal(ridge.leverage().numpy(), own)


def test_with_their_projection(case: Case) -> None:
    """dattri's Gaussian matrix, read off the identity, on our gradients: fewer numbers than images (primal) or more."""
    from dattri.func.projection import random_project

    phi, phi_q = case.features()
    task, (images, queries) = case.dattri()
    for dim in (24, 150):
        eye = torch.eye(case.p, dtype=torch.float64)
        matrix = random_project(eye, case.p, dim, 32, 5, "normal")(eye)
        kept, kept_q = (v.double() @ matrix for v in (phi, phi_q))
        lam = 0.1 * mean_eigenvalue(kept)
        theirs = scores(trak(task, case.p, lam, "normal", dim, 5).attribute(queries, images))
        assert_equal(influence(solved(kept, lam), kept_q), theirs)


@pytest.fixture(scope="module")
def projected(case: Case) -> tuple[float, np.ndarray, dict[int, np.ndarray]]:
    """A ridge, our scores without projection, dattri's with its Gaussian ones (means of four seeds, by dimension)."""
    phi, phi_q = case.features()
    lam = mean_eigenvalue(phi)
    task, (images, queries) = case.dattri()

    def mean(dim: int) -> np.ndarray:
        found = (trak(task, case.p, lam, "normal", dim, seed).attribute(queries, images) for seed in range(4))
        return np.mean([scores(f) for f in found], axis=0)

    return lam, influence(solved(phi, lam), phi_q), {dim: mean(dim) for dim in DIMS}


@pytest.mark.parametrize("sketch", ["gaussian", "countsketch"])
def test_with_projections_of_ones_own(case: Case, projected: Any, sketch: str, record_property: Any) -> None:
    """Both estimate the score without projection, so between them are two independent errors and nothing else: the
    correlation of the two is the product of theirs with the truth."""
    lam, exact, other = projected
    ranks = []
    for dim, theirs in other.items():
        made = (case.features(sketch=sketch, dim=dim, seed=seed) for seed in range(4))
        ours = np.mean([influence(solved(phi, lam), phi_q) for phi, phi_q in made], axis=0)
        ranks.append(overall(ours, theirs))
        assert abs(ranks[-1] - overall(ours, exact) * overall(theirs, exact)) < 0.05
        per_query = spearman(ours, theirs)
        told = [float(x) for x in (ranks[-1], per_query.mean(), per_query.min())]  # numpy numbers do not travel
        record_property(f"spearman_{sketch}_{dim}", told)
        print(
            f"{sketch}, k = {dim}: {ranks[-1]:.3f} over all, {per_query.mean():.3f} per query ({per_query.min():.3f})"
        )
    assert ranks[0] < ranks[1] < ranks[2]
    assert ranks[2] > 0.95
    assert per_query.min() > 0.9


def test_without_a_kernel(case: Case) -> None:
    """TracIn: gradient times gradient, and their cosine."""
    from dattri.algorithm.tracin import TracInAttributor

    phi, phi_q = (v.double() for v in case.features())
    task, (images, queries) = case.dattri()
    how = {"proj_type": "identity", "proj_dim": 1, "proj_seed": 0, "proj_max_batch_size": 32, "device": "cpu"}
    for cosine in (False, True):
        theirs = scores(TracInAttributor(task, torch.ones(1), cosine, how).attribute(images, queries))
        a, b = ((v / v.norm(dim=1, keepdim=True) if cosine else v) for v in (phi, phi_q))
        assert_equal((b @ a.T).numpy(), theirs)
