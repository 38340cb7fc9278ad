"""The unlearning loop, and ReTrack on data whose counterfactual is known.

Two far clusters, A and B. Without A the best any model can say at a noisy A point is the posterior mean over B.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from guda.config import TrainingConfig
from guda.data.images import ImageData
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.loading import make_scheduler
from guda.diffusion.training import train
from guda.errors import GudaError
from guda.unlearning.operators.retrack import Posterior, Retrack, RetrackConfig
from guda.unlearning.unlearn import OPERATORS, Batch, Operator, UnlearnConfig, unlearn_group, window_range
from refusals import refused

WINDOW = (0.15, 0.9)


def config(**values: Any) -> RetrackConfig:
    return RetrackConfig.model_validate({"steps": 5, "batch_forget": 8, "batch_retain": 8} | values)


@pytest.fixture(scope="module")
def clusters() -> ImageData:
    """40 + 40 images of 2x2 pixels: A near (200, 200, 60, 60), B near (60, 60, 200, 200)."""
    rng = np.random.default_rng(0)
    centre = np.array([[200, 200, 60, 60], [60, 60, 200, 200]]).repeat(40, axis=0)
    pixels = (centre + rng.integers(-12, 13, centre.shape)).astype(np.uint8).reshape(80, 1, 2, 2)
    return ImageData.from_arrays(pixels, ["A"] * 40 + ["B"] * 40, layout="NCHW")


@pytest.fixture(scope="module")
def teacher(make_mlp: Callable[..., Denoiser], clusters: ImageData) -> Denoiser:
    denoiser = make_mlp("squaredcos_cap_v2:100", sample_size=2, width=64)
    settings = TrainingConfig.model_validate({"steps": 800, "batch": 64, "lr": 3e-3, "warmup": 50, "ema": None})
    return denoiser.with_weights(train(denoiser, clusters.images, clusters.groups, settings, seed=0).weights)


def noisy(denoiser: Denoiser, clusters: ImageData, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of a cluster at noise levels where the cluster is still plain to see, inside the window."""
    x0 = denoiser.encode(clusters.images[clusters.groups.members(group)]).repeat(8, 1, 1, 1)
    g = torch.Generator().manual_seed(3)
    t = torch.randint(20, 40, (len(x0),), generator=g)
    return denoiser.schedule.add_noise(x0, torch.randn(x0.shape, generator=g), t), t


def rms(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).square().mean().sqrt())


def test_retrack_moves_forgotten_points_to_the_posterior_over_the_rest_and_leaves_the_rest(
    teacher: Denoiser, clusters: ImageData
) -> None:
    settings = config(steps=400, lr=3e-3, decay=True, window=WINDOW, batch_forget=64, batch_retain=64)
    student = unlearn_group(teacher, clusters, "A", "retrack", settings).apply(teacher)
    data = teacher.encode(clusters.images)
    over_all, over_b = Posterior(data, teacher.schedule), Posterior(data[40:], teacher.schedule)
    with torch.no_grad():
        x, t = noisy(teacher, clusters, 0)
        known = over_b.eps(x, t)
        before, after = rms(teacher.eps(x, t), known), rms(student.eps(x, t), known)
        assert rms(teacher.eps(x, t), over_all.eps(x, t)) < 0.3 * before  # the teacher had learned both clusters
        assert after < 0.2 * before
        x, t = noisy(teacher, clusters, 1)
        assert rms(student.eps(x, t), teacher.eps(x, t)) < 0.15 * before
        assert rms(student.eps(x, t), over_b.eps(x, t)) < 0.3 * before


def test_retracks_loss_is_zero_for_the_optimal_denoiser_of_the_retain_set(
    clusters: ImageData, teacher: Denoiser
) -> None:
    rule = Retrack(teacher, clusters, "A", config())

    class Optimal(torch.nn.Module):
        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            return Posterior(teacher.encode(clusters.images[40:]), teacher.schedule).eps(x, t)

    ideal = Denoiser.from_module(Optimal(), make_scheduler("squaredcos_cap_v2:100"), (1, 2, 2))
    x, t = noisy(teacher, clusters, 0)
    forget = Batch(x, t, x, x)
    assert float(rule.forget(ideal, forget)) < 1e-10
    assert rule.forget(teacher, forget).item() > 0.1


def test_k_nearest_is_heard(clusters: ImageData, teacher: Denoiser) -> None:
    x, t = noisy(teacher, clusters, 0)
    forget = Batch(x, t, x, x)
    losses = {
        k: Retrack(teacher, clusters, "A", config(k_nearest=k)).forget(teacher, forget).item() for k in (1, 40, None)
    }
    assert losses[40] == losses[None] != losses[1]


def test_preservation_is_zero_at_the_start_even_with_dropout(
    make_unet: Callable[..., Any], make_images: Callable[..., ImageData]
) -> None:
    data = make_images({"a": 4, "b": 4}, size=8)
    teacher = Denoiser.from_module(make_unet(dropout=0.5), make_scheduler("linear:50"))
    rule = Retrack(teacher, data, "a", config())
    x = torch.randn(4, 1, 8, 8)
    half = Batch(x, torch.tensor([0, 10, 20, 49]), x, x)
    assert rule.preserve(teacher.clone(), half).item() == 0
    both = rule.loss(teacher.clone(), half, half)
    assert both.item() == pytest.approx(rule.forget(teacher, half).item())


def test_with_nothing_to_forget_the_student_stays_the_teacher(teacher: Denoiser, clusters: ImageData) -> None:
    weights = unlearn_group(teacher, clusters, "A", "retrack", config(lambda_forget=0.0)).apply(teacher).weights()
    assert teacher.with_weights(weights).digest() == teacher.digest()


def test_unlearning_is_deterministic_keyed_and_leaves_the_teacher_alone(teacher: Denoiser, clusters: ImageData) -> None:
    before = teacher.digest()

    def run(group: str = "A", **values: Any) -> str:
        torch.manual_seed(hash(group) % 1000)  # the global generator must not matter
        return unlearn_group(teacher, clusters, group, "retrack", config(**values)).apply(teacher).digest()

    assert run() == run()
    assert len({run(), run(seed=1), run("B"), run(lr=2e-3), run(window=(0.5, 1.0)), before}) == 6
    assert teacher.digest() == before
    assert all(p.grad is None for p in teacher.module.parameters())


def test_forget_timesteps_keep_to_the_window_and_images_to_their_side(
    teacher: Denoiser, clusters: ImageData, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Batch, Batch]] = []

    class Watch(Operator):
        def forget(self, student: Denoiser, forget: Batch) -> torch.Tensor:
            return student.eps(forget.x_t, forget.t).square().mean()

        def loss(self, student: Denoiser, forget: Batch, retain: Batch) -> torch.Tensor:
            seen.append((forget, retain))
            return super().loss(student, forget, retain)

    settings = UnlearnConfig.model_validate({"steps": 30, "window": (0.3, 0.4), "batch_forget": 60, "batch_retain": 60})
    monkeypatch.setitem(OPERATORS._items, "watch", Watch)
    unlearn_group(teacher, clusters, "A", "watch", settings)
    t = torch.cat([f.t for f, _ in seen])
    assert (int(t.min()), int(t.max())) == (30, 39)
    t = torch.cat([r.t for _, r in seen])
    assert int(t.min()) < 5
    assert int(t.max()) > 95
    assert all((f.x0[:, 0, 0, 0] > 0).all() and (r.x0[:, 0, 0, 0] < 0).all() for f, r in seen)
    for f, r in seen:
        assert torch.equal(f.x_t, teacher.schedule.add_noise(f.x0, f.eps, f.t))
        assert not torch.equal(f.eps[:8], r.eps[:8])
    assert seen[0][0].x0.shape[0] == 60  # more than the 40 images there are: drawn with replacement
    assert len(torch.unique(seen[0][1].x0, dim=0)) > 20


@pytest.mark.parametrize("window", [(0.5, 0.5), (0.8, 0.2), (-0.1, 0.5), (0.0, 1.2), (0.501, 0.504)])
def test_windows_without_a_timestep_are_refused(
    window: tuple[float, float], teacher: Denoiser, clusters: ImageData
) -> None:
    with pytest.raises(GudaError, match="window"):
        window_range(window, 100)
    with pytest.raises(GudaError, match="window"):
        unlearn_group(teacher, clusters, "A", "retrack", config(window=window))


def test_windows_are_fractions_of_the_schedule() -> None:
    assert window_range((0.0, 1.0), 1000) == (0, 1000)
    assert window_range((0.5, 0.975), 4000) == (2000, 3900)  # the paper's


def test_whole_classes_are_refused_and_anchors_are_named(
    make_unet: Callable[..., Any], make_images: Callable[..., ImageData]
) -> None:
    teacher = Denoiser.from_module(make_unet(num_class_embeds=2), make_scheduler("linear:50"))
    with refused("operator-model-unsupported", "anchors-weighted"):
        unlearn_group(teacher, make_images({"a": 4, "b": 4}, size=8), "a", "retrack", config())


def test_an_unknown_group_is_answered_with_the_known_ones(teacher: Denoiser, clusters: ImageData) -> None:
    with pytest.raises(GudaError, match="unknown group 'C'; the groups are A, B"):
        unlearn_group(teacher, clusters, "C", "retrack", config())


def test_unlearning_that_blows_up_is_said(teacher: Denoiser, clusters: ImageData) -> None:
    with pytest.raises(GudaError, match="unlearning 'A' with retrack"):
        unlearn_group(teacher, clusters, "A", "retrack", config(lr=1e38, steps=4))


def test_cost_counts_backward_passes_three_times_and_the_teacher_once() -> None:
    """Evaluation units: forward of one sample = 1, forward + backward = 3, teacher forwards count."""
    assert Retrack.fit_evals(config(steps=10, batch_forget=2, batch_retain=3)) == 10 * (3 * 2 + 3 * 3 + 3)


def test_ticks_count_the_steps(teacher: Denoiser, clusters: ImageData) -> None:
    ticks: list[tuple[int, int]] = []
    unlearn_group(teacher, clusters, "A", "retrack", config(steps=3), lambda done, total: ticks.append((done, total)))
    assert ticks == [(1, 3), (2, 3), (3, 3)]
