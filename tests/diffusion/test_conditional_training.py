"""The group-conditional twin: labels with dropout, exact resume, and the unconditional path untouched."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from guda.config import TrainingConfig
from guda.data.images import ImageData
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.families.base import Cond
from guda.diffusion.families.mlp import ResidualMLP
from guda.diffusion.loading import make_scheduler
from guda.diffusion.training import fresh, group_condition, train
from refusals import refused


def config(**values: Any) -> TrainingConfig:
    return TrainingConfig.model_validate(
        {"steps": 20, "batch": 8, "warmup": 5, "checkpoint_every": 5, "lr": 1e-2, "ema": 0.99} | values
    )


@pytest.fixture(scope="module")
def images(make_images: Callable[..., ImageData]) -> ImageData:
    return make_images({"a": 10, "b": 20, "c": 12})


def labels(n: int, value: int) -> Cond:
    return Cond({"class_labels": torch.full((n,), value)})


def test_a_class_is_added_to_what_the_network_is_told_of_the_time() -> None:
    torch.manual_seed(0)
    net = ResidualMLP(sample_size=4, width=16, depth=2, num_class_embeds=3)
    torch.nn.init.normal_(net.out.weight)
    x, t = torch.randn(5, 1, 4, 4), torch.tensor([0, 3, 10, 50, 99])
    plain = ResidualMLP(sample_size=4, width=16, depth=2)
    plain.load_state_dict({k: v for k, v in net.state_dict().items() if k != "classes.weight"})
    with torch.no_grad():
        net.classes.weight[1] = 0
        torch.testing.assert_close(net(x, t, torch.full((5,), 1)), plain(x, t))
        plain.embed[2].bias += net.classes.weight[2]  # the same vector, from the other addend
        torch.testing.assert_close(net(x, t, torch.full((5,), 2)), plain(x, t))


def test_an_unconditional_network_starts_as_before_and_has_no_such_weights() -> None:
    torch.manual_seed(3)
    one = ResidualMLP(sample_size=4, width=16, depth=2)
    torch.manual_seed(3)
    other = ResidualMLP(sample_size=4, width=16, depth=2, num_class_embeds=3)
    assert set(other.state_dict()) - set(one.state_dict()) == {"classes.weight"}
    assert all(torch.equal(v, other.state_dict()[k]) for k, v in one.state_dict().items())


def test_labels_are_groups_or_null_with_the_given_probability(make_images: Callable[..., ImageData]) -> None:
    groups = make_images({"a": 3, "b": 3, "c": 3}).groups
    index = np.arange(9).repeat(500)
    key = (0, "train", "labels", 7)

    def drawn(dropout: float, key: tuple[str | int, ...] = key) -> np.ndarray:
        return group_condition(groups, index, dropout, key, torch.device("cpu")).tensors["class_labels"].numpy()

    found = drawn(0.1)
    null = found == 3
    assert abs(null.mean() - 0.1) < 4 * np.sqrt(0.09 / len(index))
    assert (found[~null] == groups.labels[index][~null]).all()
    assert (drawn(0.1) == found).all()
    assert (drawn(0.1, (0, "train", "labels", 8)) != found).any()
    assert (drawn(0.0) == groups.labels[index]).all()
    assert (drawn(1.0) == 3).all()


def test_every_step_draws_its_labels_anew(
    make_mlp: Callable[..., Denoiser], images: ImageData, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[tuple[str | int, ...]] = []

    def watched(groups: Any, index: Any, dropout: float, key: tuple[str | int, ...], device: Any) -> Cond:
        keys.append(key)
        return group_condition(groups, index, dropout, key, device)

    monkeypatch.setattr("guda.diffusion.training.group_condition", watched)
    for seed in (0, 1):
        train(make_mlp(), images.images, images.groups, config(steps=10), seed=seed, label_dropout=0.1)
    assert len(set(keys)) == len(keys) == 20
    keys.clear()
    train(make_mlp(), images.images, images.groups, config(steps=3), seed=0)
    assert keys == []


@pytest.mark.parametrize("net", ["mlp", "unet"])
def test_it_resumes_in_the_same_bits_and_learns_from_its_labels(
    net: str, make_mlp: Callable[..., Denoiser], make_unet: Callable[..., Any],
    make_images: Callable[..., ImageData], tmp_path: Path,
) -> None:  # fmt: skip
    size = 4 if net == "mlp" else 8
    data = make_images({"a": 10, "b": 20, "c": 12}, size=size)
    base = make_mlp() if net == "mlp" else Denoiser.from_module(make_unet(dropout=0.3), make_scheduler("linear:100"))

    class Killed(Exception):
        pass

    def tick(done: int, total: int) -> None:
        if done == 13:
            raise Killed

    def run(**options: Any) -> dict[str, torch.Tensor]:
        return train(base, data.images, data.groups, config(), seed=3, **({"label_dropout": 0.1} | options)).weights

    whole = run()
    with pytest.raises(Killed):
        run(checkpoint=tmp_path, tick=tick)
    resumed = run(checkpoint=tmp_path)
    assert all(torch.equal(whole[k], resumed[k]) for k in whole)
    other = run(label_dropout=0.5)
    assert any(not torch.equal(whole[k], other[k]) for k in whole)
    model = fresh(base, (), 4).with_weights(whole)
    assert (model.conditional, model.n_classes, base.n_classes) == (True, 4, None)
    x, t = torch.randn(2, *base.shape), torch.tensor([10, 60])
    with torch.no_grad():
        assert not torch.allclose(model.eps(x, t, labels(2, 0)), model.eps(x, t, labels(2, 1)))


def test_told_the_group_it_knows_more_than_told_nothing(make_mlp: Callable[..., Denoiser]) -> None:
    """Two constant groups, dark and bright: at high noise only the label says which."""
    pixels = np.array([40, 215], np.uint8).repeat(20)[:, None, None, None].repeat(4, 2).repeat(4, 3)
    data = ImageData.from_arrays(pixels, ["dark"] * 20 + ["light"] * 20, layout="NCHW")
    base = make_mlp("squaredcos_cap_v2:100")
    settings = config(steps=600, batch=32, lr=3e-3, ema=None)
    trained = train(base, data.images, data.groups, settings, seed=0, label_dropout=0.1)
    model = fresh(base, (), 3).with_weights(trained.weights)
    x0 = model.encode(data.images)
    t = torch.full((40,), 90)
    eps = torch.randn(x0.shape, generator=torch.Generator().manual_seed(0))
    x_t = model.schedule.add_noise(x0, eps, t)
    own = torch.from_numpy(data.groups.labels.copy())

    def error(label: torch.Tensor) -> float:
        with torch.no_grad():
            return float((model.eps(x_t, t, Cond({"class_labels": label})) - eps).square().mean())

    assert error(own) < error(torch.full_like(own, 2)) < error(1 - own)


def test_a_network_that_is_conditional_already_still_needs_to_be_told(
    make_mlp: Callable[..., Denoiser], images: ImageData
) -> None:
    with refused("prompts-required"):
        train(make_mlp(num_class_embeds=4), images.images, images.groups, config(), seed=0)


def test_it_is_saved_and_loaded_like_any_other(make_mlp: Callable[..., Denoiser], tmp_path: Path) -> None:
    model = make_mlp(num_class_embeds=4)
    model.save_pretrained(tmp_path / "m")
    again = Denoiser.from_pretrained(tmp_path / "m")
    assert again.n_classes == 4
    assert again.digest() == model.digest()
    plain = make_mlp()
    plain.save_pretrained(tmp_path / "p")
    assert Denoiser.from_pretrained(tmp_path / "p").n_classes is None
