"""Posterior mass of patches: the published definition by brute force, closed forms, invariances."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from guda.baselines.nda import Noised, cuts, posterior_mass
from guda.data.images import to_float

RNG = np.random.default_rng(7)


def pictures(n: int, channels: int = 1, height: int = 6, width: int = 5) -> np.ndarray:
    return RNG.integers(0, 256, (n, channels, height, width), dtype=np.uint8)


def noise(image: np.ndarray, a: float = 0.8, s: float = 0.6, places: np.ndarray | None = None) -> Noised:
    x = to_float(image).astype(np.float64)
    return Noised(a * x + s * RNG.normal(size=x.shape), a, s, places)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def padded_patches(images: np.ndarray, patch: int, mask: float) -> np.ndarray:
    """[n, H W, C, patch, patch]: every pixel's patch of images padded with a constant."""
    h = patch // 2
    padded = np.pad(images, ((0, 0), (0, 0), (h, h), (h, h)), constant_values=mask)
    size = [(r, c) for r in range(images.shape[2]) for c in range(images.shape[3])]
    return np.stack([padded[:, :, r : r + patch, c : c + patch] for r, c in size], axis=1)


def averaged(patches: np.ndarray, down: int) -> np.ndarray:
    """Sums over cells / down, whose rows are orthonormal where no cell is cut."""
    *rest, patch, _ = patches.shape
    cells = patches.reshape(*rest, patch // down, down, patch // down, down)
    return cells.sum(axis=(-1, -3)) / down


def brute(one: Noised, images: np.ndarray, patch: int) -> np.ndarray:
    """The published rule: a constant of 1,000 around both, distances by subtraction, one softmax over everything."""
    asked = padded_patches(one.x[None], patch, 1e3)[0]
    known = padded_patches(one.a * to_float(images).astype(np.float64), patch, 1e3)
    mass = np.zeros(len(images))
    for u in asked:
        distance = np.square(u - known).sum(axis=(2, 3, 4))
        mass += softmax(-distance / (2 * one.s**2)).sum(axis=1)
    return mass


@pytest.mark.parametrize("patch", [1, 3, 5, 9])
@pytest.mark.parametrize("channels", [1, 3])
def test_it_is_padding_with_a_large_constant(patch: int, channels: int) -> None:
    images, queries = pictures(4, channels), pictures(2, channels)
    asked = [noise(x) for x in queries]
    found = posterior_mass(asked, images, patch)
    np.testing.assert_allclose(found, [brute(x, images, patch) for x in asked], rtol=1e-9, atol=1e-12)


def test_two_scales_by_brute_force() -> None:
    images, one = pictures(5, height=9, width=9), noise(pictures(1, height=9, width=9)[0])
    fine, both = posterior_mass([one], images, 9)[0], posterior_mass([one], images, 9, down=3, alpha=0.25)[0]
    # the place in the middle is cut nowhere, so its cells are whole
    middle = Noised(one.x, one.a, one.s, np.array([40]))
    coarse = posterior_mass([middle], images, 9, down=3, alpha=0.0)[0] / 81
    distance = [
        np.square(averaged(one.x - one.a * to_float(y).astype(np.float64), 3)).sum() / (2 * one.s**2) for y in images
    ]
    np.testing.assert_allclose(coarse, softmax(-np.array(distance)), rtol=1e-9)
    only = posterior_mass([one], images, 9, down=3, alpha=0.0)[0]
    np.testing.assert_allclose(both, 0.25 * fine + 0.75 * only, rtol=1e-12)
    np.testing.assert_allclose(only.sum(), 81)


def test_averaging_keeps_the_noise_white_however_cells_are_cut() -> None:
    for cut in cuts(7, 6, 5):
        m = cut.coarse(3, 2)
        np.testing.assert_allclose(m.T @ m, np.eye(m.shape[1]), atol=1e-12)
        assert m.shape[0] == 3 * cut.height * cut.width


def test_the_whole_image_is_the_posterior_of_a_finite_set() -> None:
    images, one = pictures(6), noise(pictures(1)[0], a=0.3, s=0.95)
    distance = np.square(one.x - one.a * to_float(images).astype(np.float64)).sum(axis=(1, 2, 3))
    closed = softmax(-distance / (2 * one.s**2))
    np.testing.assert_allclose(posterior_mass([one], images, "whole")[0], closed, rtol=1e-9)
    # a patch that reaches over the image from every place has it all in it every time
    np.testing.assert_allclose(posterior_mass([one], images, 11)[0], 30 * closed, rtol=1e-9)


@pytest.mark.parametrize("patch", [1, 5, "whole"])
def test_masses_add_up_to_the_number_of_places(patch: int | str) -> None:
    found = posterior_mass([noise(x) for x in pictures(3)], pictures(7), patch)
    np.testing.assert_allclose(found.sum(axis=1), 1 if patch == "whole" else 30, rtol=1e-12)
    assert (found >= 0).all()


def test_copies_share_and_order_does_not_matter() -> None:
    images, asked = pictures(5), [noise(x) for x in pictures(2)]
    alone = posterior_mass(asked, images, 3)
    twice = posterior_mass(asked, np.concatenate([images, images[2:3]]), 3)
    np.testing.assert_allclose(twice[:, 2], twice[:, 5], rtol=1e-12)
    assert (twice[:, 2] < alone[:, 2]).all()
    assert (twice[:, 2] > alone[:, 2] / 2).all()  # the two together won what others lost
    everything = posterior_mass(asked, np.concatenate([images, images]), 3)
    np.testing.assert_allclose(everything, np.tile(alone / 2, 2), rtol=1e-10)
    order = np.array([3, 0, 4, 1, 2])
    np.testing.assert_allclose(posterior_mass(asked, images[order], 3), alone[:, order], rtol=1e-10)


def test_blocks_and_company_do_not_matter() -> None:
    images, asked = pictures(9), [noise(x) for x in pictures(3)]
    usual = posterior_mass(asked, images, 3, down=2, alpha=0.5)
    for block in (1, 200, 500):
        found = posterior_mass(asked, images, 3, down=2, alpha=0.5, block=block)
        np.testing.assert_allclose(found, usual, rtol=1e-10)
    for x, row in zip(asked, usual, strict=True):
        np.testing.assert_array_equal(posterior_mass([x], images, 3, down=2, alpha=0.5)[0], row)  # bitwise


def test_little_noise_finds_the_image_and_no_signal_finds_nobody() -> None:
    images = pictures(8)
    near = posterior_mass([noise(images[3], a=0.9999, s=0.0141)], images, 3)[0]
    np.testing.assert_allclose(near[3], 30, rtol=1e-9)
    for patch in (3, "whole"):
        lost = posterior_mass([noise(images[3], a=0.0, s=1.0)], images, patch)[0]
        np.testing.assert_allclose(lost, (1 if patch == "whole" else 30) / 8, rtol=1e-12)


def test_few_places_are_unbiased() -> None:
    images, one = pictures(5), noise(pictures(1)[0])
    each = [posterior_mass([Noised(one.x, one.a, one.s, np.array([u]))], images, 3)[0] for u in range(30)]
    np.testing.assert_allclose(np.mean(each, axis=0), posterior_mass([one], images, 3)[0], rtol=1e-10)
    some = np.array([0, 7, 8, 29])
    found = posterior_mass([Noised(one.x, one.a, one.s, some), one], images, 3)[0]
    np.testing.assert_allclose(found, np.mean([each[u] for u in some], axis=0), rtol=1e-10)
    np.testing.assert_allclose(found.sum(), 30)


def test_every_place_is_in_one_cut() -> None:
    for height, width, patch in [(6, 5, 3), (14, 14, 7), (4, 4, 7), (4, 9, 5), (1, 1, 1), (2, 2, 3)]:
        found = cuts(height, width, patch)
        assert sum(cut.places for cut in found) == height * width
        pairs = sum(cut.places**2 for cut in found)
        if (height, width, patch) == (14, 14, 7):
            assert pairs == 4900  # the cost that is written down


def test_no_matrix_of_all_patches_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    multiply: Callable[..., torch.Tensor] = torch.Tensor.__matmul__

    def watched(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        made = multiply(a, b)
        sizes.append(b.numel())
        return made

    monkeypatch.setattr(torch.Tensor, "__matmul__", watched)
    images = pictures(40)
    posterior_mass([noise(images[0])], images, 3, block=1000)
    assert max(sizes) <= 1000 * 5 / 4  # with the norms, a fourth at the corners; all patches are 40 * 30 * 10 numbers
