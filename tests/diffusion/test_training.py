"""Training: resume is exact, coupling is real, divergence is said."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from guda.config import TrainingConfig
from guda.data.images import ImageData
from guda.diffusion import training
from guda.diffusion.denoiser import Denoiser, Latents
from guda.diffusion.families.base import Cond
from guda.diffusion.loading import make_scheduler
from guda.diffusion.training import Trained, fresh, stream_key, to_batch, train
from guda.files import remove_folder
from refusals import refused


def config(**values: Any) -> TrainingConfig:
    return TrainingConfig.model_validate(
        {"steps": 30, "batch": 8, "warmup": 5, "checkpoint_every": 10, "lr": 1e-2, "ema": 0.99} | values
    )


class Killed(Exception):
    pass


def killed_at(step: int) -> Callable[[int, int], None]:
    def tick(done: int, total: int) -> None:
        if done == step:
            raise Killed

    return tick


def same(one: Trained, other: Trained) -> bool:
    return one.losses == other.losses and all(torch.equal(one.weights[k], other.weights[k]) for k in one.weights)


@pytest.fixture(scope="module")
def images(make_images: Callable[..., ImageData]) -> ImageData:
    return make_images({"a": 10, "b": 20, "c": 12})


@pytest.mark.parametrize("ema", [0.99, None])
@pytest.mark.parametrize("deaths", [(14,), (11, 25, 29)])
def test_a_resumed_run_ends_in_the_bits_of_an_uninterrupted_one(
    make_mlp: Callable[..., Denoiser], images: ImageData, tmp_path: Path, ema: float | None, deaths: tuple[int, ...]
) -> None:
    options: dict[str, Any] = {"seed": 3, "leave_out": "b"}
    whole = train(make_mlp(), images.images, images.groups, config(ema=ema), **options)
    for death in deaths:
        with pytest.raises(Killed):
            train(
                make_mlp(),
                images.images,
                images.groups,
                config(ema=ema),
                checkpoint=tmp_path,
                tick=killed_at(death),
                **options,
            )
    assert [p.name for p in tmp_path.iterdir()] == [f"step-{deaths[-1] // 10 * 10:08d}"]  # the newest only
    steps: list[int] = []
    resumed = train(
        make_mlp(), images.images, images.groups, config(ema=ema), checkpoint=tmp_path,
        tick=lambda done, total: steps.append(done), **options,
    )  # fmt: skip
    assert steps[0] == deaths[-1] // 10 * 10 + 1  # it did resume
    assert same(resumed, whole)
    assert resumed.earlier > 0 == whole.earlier


def test_resume_is_exact_with_dropout_flips_and_the_global_generator_disturbed(
    make_unet: Callable[..., Any], make_images: Callable[..., ImageData], tmp_path: Path
) -> None:
    data = make_images({"a": 10, "b": 20}, size=8)
    denoiser = Denoiser.from_module(make_unet(dropout=0.4), make_scheduler("squaredcos_cap_v2:50"))
    settings = config(steps=12, batch=4, flips=True, checkpoint_every=4, weight_decay=0.1)
    whole = train(denoiser, data.images, data.groups, settings, seed=0)
    with pytest.raises(Killed):
        train(denoiser, data.images, data.groups, settings, seed=0, checkpoint=tmp_path, tick=killed_at(7))
    torch.manual_seed(12345)
    resumed = train(denoiser, data.images, data.groups, settings, seed=0, checkpoint=tmp_path)
    assert same(resumed, whole)
    plain = Denoiser.from_module(make_unet(dropout=0.0), make_scheduler("squaredcos_cap_v2:50"))
    assert not same(train(plain, data.images, data.groups, settings, seed=0), whole)  # dropout was on


def test_every_step_has_a_dropout_seed_of_its_own(
    make_mlp: Callable[..., Denoiser], images: ImageData, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []
    monkeypatch.setattr("guda.diffusion.training._seed_dropout", lambda device, seed: seeds.append(seed))
    for seed in (0, 1):
        train(make_mlp(), images.images, images.groups, config(steps=10), seed=seed)
    assert len(set(seeds)) == len(seeds) == 20


def test_a_checkpoint_that_another_driver_removes_is_looked_for_again(
    make_mlp: Callable[..., Denoiser], images: ImageData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two drivers on one training: the newest checkpoint of a look may be gone when it is read."""
    whole = train(make_mlp(), images.images, images.groups, config(), seed=0)
    with pytest.raises(Killed):
        train(make_mlp(), images.images, images.groups, config(), seed=0, checkpoint=tmp_path, tick=killed_at(17))
    real, looks = training.newest, iter([tmp_path / "step-00000005"])
    monkeypatch.setattr(training, "newest", lambda folder: next(looks, None) or real(folder))
    monkeypatch.setattr(training, "PAUSE", 0.0)
    assert same(train(make_mlp(), images.images, images.groups, config(), seed=0, checkpoint=tmp_path), whole)
    monkeypatch.setattr(training, "newest", lambda folder: tmp_path / "step-00000005")  # never there
    with refused("file-missing"):
        train(make_mlp(), images.images, images.groups, config(), seed=0, checkpoint=tmp_path)


@pytest.mark.parametrize("moment", ["write_tensors", "write_json"])
def test_a_driver_that_is_done_removes_the_checkpoint_that_another_is_writing(
    make_mlp: Callable[..., Denoiser], images: ImageData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Before the first or the second file of it; the other goes on and ends in the same bits."""
    whole, folder = train(make_mlp(), images.images, images.groups, config(), seed=0), tmp_path / "checkpoint"
    real, removed = getattr(training, moment), []

    def late(path: Path, value: Any) -> None:
        if not removed:
            removed.append(path)
            remove_folder(folder)
        real(path, value)

    monkeypatch.setattr(training, moment, late)
    assert same(train(make_mlp(), images.images, images.groups, config(), seed=0, checkpoint=folder), whole)
    assert removed
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint"]  # nothing half-removed is left
    for step in folder.iterdir():
        assert sorted(p.name for p in step.iterdir()) == ["state.json", "state.safetensors"]


def test_checkpoints_fall_where_the_loss_curve_can_resume_too(
    make_mlp: Callable[..., Denoiser], images: ImageData, tmp_path: Path
) -> None:
    """200 steps: losses are means over 2 steps; a checkpoint every 5 waits for the next even step."""
    settings = config(steps=200, checkpoint_every=5, batch=4)
    whole = train(make_mlp(), images.images, images.groups, settings, seed=0)
    assert len(whole.losses) == 100
    with pytest.raises(Killed):
        train(make_mlp(), images.images, images.groups, settings, seed=0, checkpoint=tmp_path, tick=killed_at(117))
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000116"]
    assert same(train(make_mlp(), images.images, images.groups, settings, seed=0, checkpoint=tmp_path), whole)


def test_the_given_network_lends_its_architecture_and_keeps_its_weights(
    make_mlp: Callable[..., Denoiser], images: ImageData
) -> None:
    one, other = make_mlp(seed=0), make_mlp(seed=1)
    before = one.digest()
    a = train(one, images.images, images.groups, config(), seed=0)
    b = train(other, images.images, images.groups, config(), seed=0)
    assert same(a, b)
    assert one.digest() == before
    assert not same(a, train(one, images.images, images.groups, config(), seed=1))


def test_ema_weights_follow_the_published_recursion(make_mlp: Callable[..., Denoiser], images: ImageData) -> None:
    """e_n = d_n e_{n-1} + (1 - d_n) theta_n, d_n = min(decay, (1 + n)/(10 + n)); raw weights from runs cut short."""
    decay, steps = 0.3, 6

    def raw(n: int) -> dict[str, torch.Tensor]:
        return train(make_mlp(), images.images, images.groups, config(steps=n, warmup=10**6, ema=None), seed=0).weights

    # a warm-up longer than the run makes the learning rate independent of `steps`
    ema = train(make_mlp(), images.images, images.groups, config(steps=steps, warmup=10**6, ema=decay), seed=0)
    value: dict[str, torch.Tensor] | None = None
    for n in range(1, steps + 1):
        theta = raw(n)
        k = n - 1  # diffusers counts from the first update
        d = 0.0 if k == 0 else min(decay, (1 + k) / (10 + k))
        value = theta if value is None else {name: d * value[name] + (1 - d) * theta[name] for name in theta}
    assert value is not None
    for name, expected in value.items():
        torch.testing.assert_close(ema.weights[name], expected, rtol=1e-5, atol=1e-8)
    last = raw(steps)
    assert any(not torch.equal(ema.weights[name], last[name]) for name in last)


def test_training_lowers_the_loss(make_mlp: Callable[..., Denoiser], images: ImageData) -> None:
    losses = train(
        make_mlp(width=64), images.images, images.groups, config(steps=300, batch=32, lr=3e-3), seed=0
    ).losses
    assert np.mean(losses[-10:]) < 0.6 * np.mean(losses[:3])


def test_divergence_is_one_line_that_names_the_setting(make_mlp: Callable[..., Denoiser], images: ImageData) -> None:
    with refused("training-diverged"):
        train(make_mlp(), images.images, images.groups, config(lr=1e30, warmup=0), seed=0)


def test_a_conditional_network_is_refused(make_unet: Callable[..., Any], make_images: Callable[..., ImageData]) -> None:
    denoiser = Denoiser.from_module(make_unet(num_class_embeds=2), make_scheduler("linear:50"))
    data = make_images({"a": 3, "b": 3}, size=8)
    with refused("prompts-required"):
        train(denoiser, data.images, data.groups, config(), seed=0)


# ---- coupling -----------------------------------------------------------------------------------------------------


def test_coupled_runs_share_the_stream_and_initial_weights_of_the_full_model() -> None:
    assert stream_key(1, "a", coupled=True) == stream_key(1, "b", coupled=True) == stream_key(1, None, coupled=False)
    assert len({stream_key(1, g, coupled=False) for g in ("a", "b", None)}) == 3
    assert stream_key(1, "a", coupled=True) != stream_key(2, "a", coupled=True)


def test_fresh_weights_are_a_function_of_the_key(make_mlp: Callable[..., Denoiser]) -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    one, again, other = (fresh(make_mlp(seed=k), (key,)).digest() for k, key in enumerate((5, 5, 6)))
    assert one == again != other
    assert torch.equal(torch.rand(3), expected)  # and leave the global generator alone


def test_coupled_logo_runs_stay_closer_to_each_other_than_uncoupled_ones(
    make_mlp: Callable[..., Denoiser], images: ImageData
) -> None:
    def run(group: str, coupled: bool) -> torch.Tensor:
        trained = train(make_mlp(), images.images, images.groups, config(), seed=0, leave_out=group, coupled=coupled)
        return torch.cat([v.flatten() for v in trained.weights.values()])

    def distance(coupled: bool) -> float:
        return float((run("a", coupled) - run("b", coupled)).norm())

    assert distance(True) < 0.5 * distance(False)


def test_flips_are_mirrored_images_with_the_noise_as_drawn(
    make_mlp: Callable[..., Denoiser], images: ImageData
) -> None:
    from guda.diffusion.stream import Stream

    denoiser = make_mlp()
    batch = Stream((0,), images.groups, denoiser.shape, denoiser.schedule.T).take(16)
    x0 = Latents(denoiser.encode(images.images))
    plain, _, _, _ = to_batch(denoiser, x0, batch, flips=False)
    flipped, t, eps, x_t = to_batch(denoiser, x0, batch, flips=True)
    assert 0 < batch.flip.sum() < 16
    for i in range(16):
        assert torch.equal(flipped[i], plain[i].flip(-1) if batch.flip[i] else plain[i])
    assert torch.equal(x_t, denoiser.schedule.add_noise(flipped, torch.from_numpy(batch.eps), t))
    assert torch.equal(eps, torch.from_numpy(batch.eps))


@pytest.mark.parametrize("kind", ["mlp", "unet"])
def test_the_twin_of_a_fine_tuned_model_begins_as_the_start_for_every_label(
    make_mlp: Callable[..., Denoiser], make_unet: Callable[..., Any], make_images: Callable[..., ImageData], kind: str
) -> None:
    start = make_mlp() if kind == "mlp" else Denoiser.from_module(make_unet(), make_scheduler("linear:100"))
    data = make_images({"a": 10, "b": 20}, size=start.shape[-1])
    torch.manual_seed(0)
    x, t = torch.randn(3, *start.shape), torch.tensor([5, 20, 40])

    def predicted(lr: float) -> list[torch.Tensor]:
        trained = train(start, data.images, data.groups, config(lr=lr), seed=0, fine_tune=True, label_dropout=0.1)
        twin = fresh(start, (0,), labels=3)
        twin.module.load_state_dict(trained.weights)
        labels = [Cond({"class_labels": torch.full((3,), k)}) for k in range(3)]
        with torch.no_grad():
            return [twin.eps(x, t, label) for label in labels]

    with torch.no_grad():
        expected = start.eps(x, t)
    for eps in predicted(1e-12):
        torch.testing.assert_close(eps, expected, rtol=1e-4, atol=1e-4)
    one, other, _ = predicted(1e-2)
    assert float((one - other).abs().max()) > 1e-3  # and learns what the labels mean
